"""Time in the engine: timeouts, ticks, batches, bounds. All of it virtual."""

from pathlib import Path

import pytest
from streamparse import Bolt, Spout, Topology

from downspout.engine import LAST_TICKS_S, Bounds, Engine, acker, from_class, resolve
from downspout.errors import TopologyError
from downspout.testing import Crash, Lose, VirtualClock, run_topology


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


@pytest.mark.parametrize(("are_on", "timeouts"), [(True, 3), (False, 0)])
def test_timeouts_may_be_switched_off(caplog, are_on, timeouts):
    """As on Storm by topology.enable.message.timeouts: then a tuple may stay out for ever, and the drain says so."""
    config = {"topology.message.timeout.secs": 12, "topology.enable.message.timeouts": are_on, "run.drain_s": 1}
    result = run_topology(Forgotten, spouts={"words": [["a"], ["b"]]}, config=config, until=None, for_s=40)
    assert result.run.timeouts == timeouts
    assert "after 1 s: still 1 tuple in flight" in caplog.text


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


class Sums(Bolt):
    outputs = ("word",)

    def initialize(self, conf, context):
        self.gathered = []

    def process(self, tup):
        self.gathered.append(tup.values.word)

    def process_tick(self, tup):
        if self.gathered:
            self.emit(["".join(sorted(self.gathered))])
        self.gathered = []


@pytest.mark.parametrize("how", [{"until": "end"}, {"records": 3}], ids=["end", "records"])
def test_a_run_that_has_read_all_ends_with_a_tick(how):
    """What bolts have gathered for their next tick is emitted at the end of a bounded run, one bolt behind another."""
    period = {"topology.tick.tuple.freq.secs": 3600}

    class Made(Topology):
        words = Words.spec()
        first = Sums.spec(inputs=[words], config=period)
        second = Sums.spec(inputs=[first], config=period)
        keep = Keep.spec(inputs=[second])

    result = run_topology(Made, spouts={"words": [["a"], ["b"], ["c"]]}, **how)
    assert result.components["keep"][0].got == ["abc"]


class AtOnce(Spout):
    outputs = ("word",)

    def next_tuple(self):
        for word in "abcd":
            self.emit([word], tup_id=word)


class Holding(Sums):
    auto_ack = False

    def process(self, tup):
        super().process(tup)
        if tup.values.word != "d":
            self.ack(tup)


def test_what_was_gathered_is_emitted_though_a_drain_takes_too_long():
    """The last ticks come when run.drain_s is over too, and what they emit gets through; all within a bounded time."""
    period = {"topology.tick.tuple.freq.secs": 3600}

    class Made(Topology):
        words = AtOnce.spec()
        first = Holding.spec(inputs=[words], config=period)
        second = Sums.spec(inputs=[first], config=period)
        keep = Keep.spec(inputs=[second])

    result = run_topology(Made, records=3, config={"run.drain_s": 5})
    assert result.components["keep"][0].got == ["abcd"]
    assert result.run.in_flight == 1
    assert 5 <= result.run.duration_s <= 5 + LAST_TICKS_S + 0.5


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
    with pytest.raises(TopologyError, match=r"the spout words \(Words\) has no end. Try: --for 30s"):
        run_topology(Plain)


class Endless(Spout):
    outputs = ("word",)
    calls: tuple[str, ...] = ()

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
    class Made(Topology):
        words = Endless.spec()
        keep = Keep.spec(inputs=[words])

    result = run_topology(Made, records=5, faults=[Crash("keep", 2)])
    assert (result.run.completed, result.run.failed) == (5, 1)


@pytest.mark.sweep
@pytest.mark.slow
def test_a_run_that_cannot_end_is_given_up():
    """The harness raises instead of running for ever when a row is never acked and never times out."""
    config = {"topology.message.timeout.secs": 10_000}
    with pytest.raises(TimeoutError, match="1 tuple trees are open"):
        run_topology(Plain, spouts={"words": [["a"]]}, config=config, faults=[Lose("keep", 1)])


def test_what_timed_out_is_forgotten():
    """A bolt that never acks does not make the engine grow: timed-out tuples leave its books."""

    class Never(Bolt):
        auto_ack = False

        def process(self, tup):
            pass

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
