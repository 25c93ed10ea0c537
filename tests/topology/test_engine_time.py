"""Time in the engine: timeouts, ticks, batches, bounds. All of it virtual."""

# ruff: noqa: D102   (components made for one test explain themselves)

import signal
import threading
from pathlib import Path

import pytest
from streamparse import BatchingBolt, Bolt, Spout, TicklessBatchingBolt, Topology

from bolts.parquet import ParquetBolt
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import ComponentError, TopologyError
from downspout.local import acker
from downspout.local.engine import Bounds, Engine
from downspout.local.graph import from_class
from downspout.local.settings import resolve
from downspout.local.task import construct
from downspout.testing import Crash, Lose, VirtualClock, run_bolt, run_topology


class Words(Spout):
    outputs = ("word",)


class Keep(Bolt):
    def initialize(self, conf, context):
        self.got = []

    def process(self, tup):
        self.got.append(tup.values.word)


class Plain(Topology):
    words = Words.spec()
    keep = Keep.spec(inputs=[words])


class Forgetful(Bolt):
    auto_ack = False

    def process(self, tup):
        if tup.values.word != "b":
            self.ack(tup)


class Forgotten(Topology):
    words = Words.spec()
    forgetful = Forgetful.spec(inputs=[words])


def test_timeouts_are_told_with_the_bolt_that_kept_the_tuples(caplog):
    """The line about tuples that timed out says in which bolts they were."""
    config = {"topology.message.timeout.secs": 12}
    run_topology(Forgotten, spouts={"words": [["a"], ["b"], ["c"], ["b"]]}, config=config, for_s=15)
    assert "2 tuples timed out (2 in forgetful)" in caplog.text


def test_a_tuple_that_is_never_acked_times_out_and_is_replayed():
    """A lost tuple fails after topology.message.timeout.secs, not before, and is processed in the end."""
    result = run_topology(
        Plain,
        spouts={"words": [["a"], ["b"]]},
        config={"topology.message.timeout.secs": 12},
        faults=[Lose("keep", 1)],
    )
    assert result.failed("words") == [("a",)]
    assert result.components["keep"][0].got == ["b", "a"]
    assert result.run.timeouts == 1
    assert 12 <= result.clock.monotonic() < 12.2


class LateAck(Bolt):
    """Acks its first tuple when the first tick after its timeout comes."""

    auto_ack = False
    held = None

    def process(self, tup):
        if self.held is None:
            self.held = tup
        else:
            self.ack(tup)

    def process_tick(self, tup):
        if self.held and self.held != "acked":
            self.ack(self.held)
            self.held = "acked"


def test_a_late_ack_is_ignored():
    """An ack after the timeout completes nothing twice: the replay alone counts."""

    class Made(Topology):
        words = Words.spec()
        late = LateAck.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 31})

    result = run_topology(Made, spouts={"words": [["a"]]}, until=None, for_s=40)
    assert (result.run.completed, result.run.timeouts) == (1, 1)
    assert result.components["late"][0].held == "acked"


class Silence(Bolt):
    auto_ack = False

    def process(self, tup):
        pass


def test_a_timeout_that_is_due_by_one_rounding_only_is_waited_for():
    """Where started + timeout is now, but now - timeout is less than started, the engine sleeps on, and it fires."""

    class Silent(Words):
        def next_tuple(self):
            pass

        def fail(self, tup_id):
            pass

    class Made(Topology):
        words = Silent.spec()
        never = Silence.spec(inputs=[words])

    started = 43.27670679050534  # rounded: started + 30 - 30 is less than started
    assert started > (started + 30) - 30
    clock, graph = VirtualClock(), from_class(Made, "made")
    confs = resolve(graph, environ={}, file=Path("/nonexistent")).confs()
    engine = Engine(graph, confs, clock=clock)
    engine.start()
    clock.advance(started)
    spout = engine.spouts[0]
    tree = acker.Tree(spout.forest, "1", started)
    tree.pending = 1
    spout.forest.planted(tree)
    clock.advance(30)
    for _ in range(100):
        engine.round()
    assert spout.timeouts == 1
    engine.wind_up(quietly=False)


class Ticked(Bolt):
    def initialize(self, conf, context):
        self.ticks = []

    def process_tick(self, tup):
        self.ticks.append((round(self.clock.monotonic()), tup.component, tup.stream, tup.task, tup.values))

    clock = None


@pytest.mark.parametrize("where", ["component", "topology"])
def test_ticks_come_at_their_period(where):
    """A bolt gets tick tuples every topology.tick.tuple.freq.secs, set for it or for the whole topology."""
    period = {"topology.tick.tuple.freq.secs": 2}

    class Made(Topology):
        words = Words.spec()
        ticked = Ticked.spec(inputs=[words], config=period if where == "component" else None)
        config = period if where == "topology" else {}

    result = run_topology(Made, spouts={"words": []}, for_s=7)
    assert result.components["ticked"][0].ticks == [(t, "__system", "__tick", -1, (2,)) for t in (2, 4, 6)]


class Batches(BatchingBolt):
    outputs = ("key", "count")

    def group_key(self, tup):
        return tup.values.word[0]

    def process_batch(self, key, tups):
        self.emit([key, len(tups)])


def batching(bolt, **config):
    """Return a topology of words before a batching bolt."""

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
    assert early.run.latency_p50_ms == pytest.approx(1500, abs=20)
    assert late.run.latency_p50_ms == pytest.approx(2000, abs=20)


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
    assert result.run.latency_p50_ms == pytest.approx(5000, abs=20)


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
    """Acks only when asked to drain."""

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
    def drain(self, unrelated):
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


def test_what_timed_out_is_forgotten():
    """A bolt that never acks does not make the engine grow: timed-out tuples leave its books."""

    class Never(Holder):
        drain = None

    class Made(Topology):
        words = Endless.spec(config={"topology.max.spout.pending": 5})
        never = Never.spec(inputs=[words])

    graph = from_class(Made, "Made")
    confs = {name: dict(component.config) for name, component in graph.components.items()}
    bounds = Bounds(for_s=100, drain_s=1)
    engine = Engine(graph, confs, bounds=bounds, clock=VirtualClock(), round_s=0.01)
    result = engine.run()
    assert result.timeouts == 15
    assert len(engine.bolts[0].held) == result.in_flight == 5


class Slow(Words):
    """Waits 50 ms for nothing, as a Kafka spout without records does."""

    clock = None
    calls = 0

    def next_tuple(self):
        self.calls += 1
        self.clock.sleep(0.05)


@pytest.mark.slow
def test_an_idle_spout_does_not_hold_up_a_busy_one():
    """A spout that waits for nothing gets about a tenth of the time while another spout has work."""

    class Made(Topology):
        slow = Slow.spec()
        busy = Endless.spec()
        keep = Keep.spec(inputs=[slow, busy])

    result = run_topology(Made, for_s=10)
    assert 10 <= result.components["slow"][0].calls <= 22


def test_idle_spouts_are_asked_all_the_time():
    """Where no spout has work, none is left alone."""

    class Made(Topology):
        slow = Slow.spec()
        other = Slow.spec()
        keep = Keep.spec(inputs=[slow, other])

    result = run_topology(Made, for_s=10)
    assert all(result.components[name][0].calls > 75 for name in ("slow", "other"))


def test_a_spout_without_an_end_refuses_a_bounded_run():
    """--until end names the spout that has no end, and the ways to bound it otherwise."""
    with pytest.raises(TopologyError, match=r"the spout words \(Words\) knows no end. Try: --for 30s"):
        run_topology(Plain)


class Endless(Spout):
    outputs = ("word",)
    calls = ()

    def next_tuple(self):
        self.emit(["a"], tup_id="1")

    def activate(self):
        self.calls += ("activate",)

    def deactivate(self):
        self.calls += ("deactivate",)

    def close(self):
        self.calls += ("close",)


def test_records_stops_at_its_number():
    """--records ends once that many trees are complete, and emits no more than are needed."""

    class Made(Topology):
        words = Endless.spec()
        keep = Keep.spec(inputs=[words])

    result = run_topology(Made, records=300)
    assert result.run.reason == "records"
    assert result.run.completed == 300
    assert result.components["words"][0].calls == ("activate", "deactivate", "close")


def test_records_replaces_those_that_fail():
    """A tree that failed does not count towards --records."""

    class Made(Topology):
        words = Endless.spec()
        keep = Keep.spec(inputs=[words])

    result = run_topology(Made, records=5, faults=[Crash("keep", 2)])
    assert (result.run.completed, result.run.failed) == (5, 1)


@pytest.mark.slow
def test_a_run_that_cannot_end_is_given_up():
    """The harness raises instead of running for ever when a row is never acked and never times out."""
    config = {"topology.message.timeout.secs": 10_000}
    with pytest.raises(TimeoutError, match="1 tuple trees are open"):
        run_topology(Plain, spouts={"words": [["a"]]}, config=config, faults=[Lose("keep", 1)])


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


def test_a_drain_at_that_raises_ends_the_run_by_name():
    """What a bolt's drain_at raises ends the run, and names the bolt."""

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
