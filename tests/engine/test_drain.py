"""Bolts that hold tuples back: batches, drains, and what a stop does about them."""

import signal
import threading

import pytest
from streamparse import BatchingBolt, Bolt, Spout, TicklessBatchingBolt, Topology

from bolts.parquet import ParquetBolt
from downspout.clock import SYSTEM_CLOCK
from downspout.component import Bolt as OurBolt
from downspout.engine import construct
from downspout.errors import ComponentError
from downspout.testing import run_bolt, run_topology


class Words(Spout):
    outputs = ("word",)


class Keep(Bolt):
    def initialize(self, conf, context):
        self.got = []

    def process(self, tup):
        self.got.append(tup.values.word)


class Batches(BatchingBolt):
    outputs = ("key", "count")

    def group_key(self, tup):
        return tup.values.word[0]

    def process_batch(self, key, tups):
        self.emit([key, len(tups)])


def batching(bolt, **config):
    class Made(Topology):
        words = Words.spec()
        batches = bolt.spec(inputs=[words], config=config)
        keep = Keep.spec(inputs=[words])

    return Made


WORDS = [["ant"], ["ape"], ["bee"]]


def test_a_batching_bolt_batches_by_ticks():
    """A BatchingBolt processes its batches when more than ticks_between_batches ticks came, and acks then."""
    made = batching(Batches, **{"topology.tick.tuple.freq.secs": 1})
    early = run_topology(made, spouts={"words": WORDS}, for_s=1.5, config={"run.drain_s": 0.1})
    late = run_topology(made, spouts={"words": WORDS}, for_s=2.5)
    # The stop after 1.5 s drains too; what tells the two apart is when the trees completed.
    assert early.emitted("batches") == late.emitted("batches") == [("a", 2), ("b", 1)]
    assert early.run.latency_p50_ms == pytest.approx(1500, rel=0.02)
    assert late.run.latency_p50_ms == pytest.approx(2000, rel=0.02)


class Timed(TicklessBatchingBolt):
    outputs = ("key", "count")
    secs_between_batches = 5

    def process_batch(self, key, tups):
        if any(tup.values.word == "bad" for tup in tups):
            raise ValueError("bad batch")
        self.emit([key, len(tups)])


def test_a_tickless_batching_bolt_is_timed_by_the_engine():
    """A TicklessBatchingBolt's batches are processed every secs_between_batches of the engine's clock."""
    result = run_topology(batching(Timed), spouts={"words": WORDS}, until=None, for_s=7)
    assert result.emitted("batches") == [(None, 3)]
    assert result.run.latency_p50_ms == pytest.approx(5000, rel=0.02)


def test_a_failing_batch_fails_its_tuples():
    """An exception in a timed batch reaches the bolt's own handler: its tuples fail and are replayed."""

    class GoesOn(Timed):
        exit_on_exception = False

    result = run_topology(batching(GoesOn), spouts={"words": [["bad"], ["ox"]]}, until=None, for_s=6)
    assert sorted(result.failed("batches")[:2]) == [("bad",), ("ox",)]
    assert "bad batch" in result.errors[0]


def test_a_tickless_bolt_leaves_threads_and_signals_alone():
    """Building one starts no timer, keeps SIGUSR1's handler and the thread's name, and works in any thread."""
    before = signal.getsignal(signal.SIGUSR1), threading.current_thread().name
    built = []
    thread = threading.Thread(target=lambda: built.append(construct(Timed)))
    thread.start()
    thread.join(10)
    bolt = construct(Timed)
    bolt._batcher.join(10)
    assert built
    assert not bolt._batcher.is_alive()
    assert (signal.getsignal(signal.SIGUSR1), threading.current_thread().name) == before


def test_a_bounded_run_drains_what_batches_hold():
    """--until end does not wait for a tick that never comes: batching bolts are asked for their batches."""
    for bolt in (Batches, Timed):
        result = run_topology(batching(bolt), spouts={"words": WORDS})
        assert result.run.reason == "end"
        assert result.run.completed == 3
        assert result.clock.monotonic() < 1


class Holder(Bolt):
    auto_ack = False

    def initialize(self, conf, context):
        self.held = []

    def process(self, tup):
        self.held.append(tup)

    def drain(self):
        while self.held:
            self.ack(self.held.pop())

    def report(self):
        return {"held": len(self.held)}


class Held(Topology):
    words = Words.spec()
    holder = Holder.spec(inputs=[words])


@pytest.mark.parametrize("how", [{"until": "end"}, {"records": 2}, {"for_s": 1}], ids=["end", "records", "for"])
def test_every_stop_drains(how):
    """However a run is bounded, bolts that hold tuples are asked to let go, and nothing stays in flight."""
    result = run_topology(Held, spouts={"words": [["a"], ["b"]]}, **how)
    assert result.run.completed == 2
    assert result.run.drained
    assert result.run.reports["holder"] == {"held": 0}


class Never(Holder):
    def drain(self, unrelated):  # type: ignore[override]
        """A method of the user's own that happens to have this name."""


def test_a_drain_gives_up_after_its_time():
    """A bolt that never acks holds a stop up for run.drain_s, and the result says what is left."""

    class Made(Topology):
        words = Words.spec()
        never = Never.spec(inputs=[words])

    result = run_topology(Made, spouts={"words": [["a"]]}, for_s=1, config={"run.drain_s": 4})
    assert not result.run.drained
    assert result.run.in_flight == 1
    assert 5 <= result.clock.monotonic() < 5.2


@pytest.mark.parametrize("how", [{"records": 1}, {"for_s": 1}], ids=["records", "for"])
def test_a_drain_finishes_nobodys_tuples_too(how):
    """Tuples that are anchored to nothing are in no spout's books; a stop processes all that wait all the same."""

    class Loose(Bolt):
        outputs = ("word",)
        auto_anchor = False

        def process(self, tup):
            for _ in range(40):
                self.emit(["a"])

    class Slow(OurBolt):
        def initialize(self, conf, context):
            self.done = 0

        def process(self, tup):
            self.clock.sleep(0.5)
            self.done += 1

    class Made(Topology):
        words = Words.spec()
        loose = Loose.spec(inputs=[words])
        slow = Slow.spec(inputs=[loose])

    result = run_topology(Made, spouts={"words": [["a"]]}, **how)
    assert result.components["slow"][0].done == 40
    assert result.run.drained


def test_max_spout_pending_bounds_what_is_in_flight():
    """A spout gets no further turn while topology.max.spout.pending trees are open."""

    class Peak(Holder):
        peak = 0

        def process(self, tup):
            super().process(tup)
            self.peak = max(self.peak, len(self.held))

        def process_tick(self, tup):
            self.drain()

    class Made(Topology):
        words = Words.spec()
        peak = Peak.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 1})

    rows = [[n] for n in range(10)]
    result = run_topology(Made, spouts={"words": rows}, config={"topology.max.spout.pending": 3})
    assert result.components["peak"][0].peak == 3
    assert result.run.completed == 10


def test_a_bolt_is_tested_in_a_few_lines():
    """run_bolt gives rows to one bolt and returns what it emitted and acked."""
    result = run_bolt(Batches, [{"word": "ant"}, {"word": "ape"}])
    assert result.emitted("bolt") == [("a", 2)]
    assert result.acked("bolt") == [("ant",), ("ape",)]


class Clocked(Spout):
    """Emits each of its rows when its time has come."""

    outputs = ("origin", "word")
    clock = SYSTEM_CLOCK
    moments = (0.35, 0.9, 2.5)

    def initialize(self, conf, context):
        self.sent = 0
        self.acked = {}

    def next_tuple(self):
        if self.sent < len(self.moments) and self.clock.monotonic() >= self.moments[self.sent]:
            self.emit([("t", "", 0, self.sent, ""), "a"], tup_id=self.sent)
            self.sent += 1

    def ack(self, tup_id):
        self.acked[tup_id] = self.clock.monotonic()


def test_a_row_is_durable_when_it_is_as_old_as_the_setting_says(tmp_path):
    """A flush comes when the first row that is held is flush_age_s old, and not with a tick behind that moment."""

    class Aged(Topology):
        rows = Clocked.spec()
        sink = ParquetBolt.spec(inputs=[rows], directory=str(tmp_path), schema={"word": "string"}, flush_age_s=0.5)

    result = run_topology(Aged, for_s=4)
    acked = result.components["rows"][0].acked
    assert acked == pytest.approx({0: 0.85, 1: 1.4, 2: 3.0}, abs=0.02)


def test_an_engine_waits_for_what_a_bolt_wants_drained():
    """drain is called at the moment that drain_at names, also where nothing else happens, and not before."""

    class Wants(Bolt):
        clock = SYSTEM_CLOCK

        def initialize(self, conf, context):
            self.moments, self.drained = [0.123, 1.7], []

        def process(self, tup):
            pass

        def drain_at(self):
            return self.moments[0] if self.moments else None

        def drain(self):
            if self.moments:
                self.drained.append(self.clock.monotonic() - self.moments.pop(0))

    class Wanted(Topology):
        words = Words.spec()
        wants = Wants.spec(inputs=[words])

    bolt = run_topology(Wanted, spouts={"words": []}, for_s=3).components["wants"][0]
    assert len(bolt.drained) == 2
    assert all(0 <= late < 0.02 for late in bolt.drained)


def test_what_is_due_is_drained_alone_where_a_bolt_can():
    """At the moment of drain_at, drain_old is called where there is one; at the end of the run, drain."""

    class Lingers(Bolt):
        clock = SYSTEM_CLOCK

        def initialize(self, conf, context):
            self.calls = []

        def process(self, tup):
            pass

        def drain_at(self):
            return None if self.calls else 0.5

        def drain_old(self):
            self.calls.append("old")

        def drain(self):
            self.calls.append("all")

    class Lingering(Topology):
        words = Words.spec()
        lingers = Lingers.spec(inputs=[words])

    bolt = run_topology(Lingering, spouts={"words": []}, for_s=3).components["lingers"][0]
    assert (bolt.calls[0], set(bolt.calls[1:])) == ("old", {"all"})


def test_a_drain_at_that_raises_ends_the_run_by_name():
    class Raises(Bolt):
        def process(self, tup):
            pass

        def drain_at(self):
            raise KeyError("when")

    class Wrong(Topology):
        words = Words.spec()
        raises = Raises.spec(inputs=[words])

    with pytest.raises(ComponentError, match=r"raises\[task \d\]: drain_at raised KeyError"):
        run_topology(Wrong, spouts={"words": []}, for_s=1)
