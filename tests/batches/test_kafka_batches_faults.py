from __future__ import annotations

import logging
import random
from itertools import count
from typing import Any, ClassVar

import pytest
from kafka import errors
from streamparse import Grouping, Topology

from bolts.state import StateBolt
from downspout.batches import BatchRange, BatchStoreError, StaleCoordinatorError
from downspout.batches.batch_reader import BatchStarts, Logs
from downspout.batches.coordinating import KafkaSource
from downspout.errors import BrokerError, ComponentError, ConfigError, DataLossError
from downspout.kafka import TopicPartition
from downspout.settings import parse_scope
from downspout.testing import Crash, Fail, FakeConsumer, FakeKafka, Lose, MemoryBatches, VirtualClock, run_topology
from spouts.batches import BatchCoordinator, KafkaBatches
from tests.batches.counting import LINES, Split, counted, values_of, word_count

pytestmark = pytest.mark.fake_only("what Kafka loses, and when, is said by the fake")
CONFIG = {"kafka.bootstrap": "fake://batches", "batch.store": "memory://test"}


def produce(kafka: FakeKafka, lines: list[str]) -> None:
    for number, line in enumerate(lines):
        kafka.produce("lines", value=line.encode(), partition=number % 3)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize(
    "faults",
    [
        [Fail("split", 1), Fail("split", 9), Fail("counts", 2), Fail("counts", 31)],
        [Crash("split", 3), Crash("counts", 7), Crash("lines", 2)],
        [Lose("split", 4), Lose("counts", 12), Lose("lines", 3)],
        [Fail("lines", number) for number in range(1, 9)],
    ],
    ids=["fails", "exceptions", "time-outs", "no beginning, commit or success is taken"],
)
def test_a_batch_that_fails_begins_again(kafka: FakeKafka, memory: MemoryBatches, kind: str, faults: list[Any]) -> None:
    """Whichever tuple of it fails, raises or is lost, each word is counted once in the end."""
    produce(kafka, LINES * 3)
    topology = word_count(kind, 2, max_active=2, records_max=6)
    result = run_topology(topology, config=CONFIG, faults=faults)
    assert values_of(memory.states["counts"], kind) == counted(LINES * 3)
    coordinator = result.components["coordinator"][0]
    assert coordinator.report()["batches_failed"] >= 1
    assert coordinator.report()["batch_attempts"] > coordinator.report()["batches_succeeded"]


def test_a_bolt_that_always_raises_stops_the_run(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """After so many attempts the error names the transaction, and nothing past it is committed."""
    produce(kafka, LINES)
    topology = word_count(attempts_max=3)
    with pytest.raises(ComponentError, match=r"transaction 1: split raised in 3 attempts in a row") as error:
        run_topology(topology, config=CONFIG, faults=[Crash("split", number) for number in range(1, 60)])
    assert "nothing after transaction 0 is committed" in str(error.value)
    assert "counts" not in memory.states or not memory.states["counts"].forms


def test_a_value_that_cannot_be_decoded_is_named(kafka: FakeKafka, memory: MemoryBatches) -> None:
    kafka.produce("lines", value=b"\xff", partition=1)
    topology = word_count(attempts_max=2)
    with pytest.raises(ComponentError, match=r"lines\[1\]@0: it cannot be decoded.*kafka.value_format=bytes"):
        run_topology(topology, config=CONFIG)


def _stopped_while_active(kafka: FakeKafka, memory: MemoryBatches, kind: str) -> None:
    """Leave a first batch that is stored and not committed."""
    produce(kafka, LINES)
    with pytest.raises(ComponentError):
        run_topology(word_count(kind, attempts_max=1), config=CONFIG, faults=[Crash("counts", 1), Crash("counts", 2)])
    assert memory.coordinator is not None
    assert memory.coordinator.attempts == {1: 0}


def test_a_transactional_batch_whose_records_are_gone_stops_the_run(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """The error names transaction, partition and offsets; a smaller batch is never emitted."""
    _stopped_while_active(kafka, memory, "transactional")
    kafka.delete_records("lines", 1, 1)
    with pytest.raises(DataLossError, match=r"lines\[1\]@0: transaction 1 holds the offsets 0 to 1, but the log"):
        run_topology(word_count("transactional", attempts_max=2), config={**CONFIG, "kafka.on_data_loss": "earliest"})
    assert not memory.states["counts"].forms


@pytest.mark.parametrize("active", [1, 3])
@pytest.mark.parametrize(
    ("start", "lines"),
    [
        ("EARLIEST", LINES),
        ("LATEST", []),
        ("TIMESTAMP", LINES),
        ("UNCOMMITTED_EARLIEST", LINES),
        ("UNCOMMITTED_LATEST", LINES),
    ],
)
def test_a_batch_of_another_topology_is_not_emitted_where_reading_begins_anew(
    kafka: FakeKafka, memory: MemoryBatches, start: str, lines: list[str], active: int
) -> None:
    """A topology that is deployed anew counts each word once: what was pending comes with all other records, or not."""
    produce(kafka, LINES)
    faults = [Crash("counts", number) for number in range(1, 60)]
    settings = {**CONFIG, "kafka.start": start, "kafka.start_timestamp_ms": 0}
    before = word_count("transactional", max_active=active, records_max=3, attempts_max=1)
    with pytest.raises(ComponentError):
        run_topology(before, config={**settings, "kafka.start": "EARLIEST"}, faults=faults)
    assert memory.ranges
    again = word_count("transactional", max_active=active, records_max=3)
    later = VirtualClock()
    later.advance(60)  # an id has the time of its start
    run_topology(again, config=settings, clock=later)
    assert values_of(memory.states["counts"], "transactional") == counted(lines)


def test_a_transactional_batch_that_was_compacted_stops_the_run(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """Its first and last record are there; the one between them is not, and a smaller batch is never emitted."""
    for key in "abc":
        kafka.produce("lines", key=key.encode(), value=b"a word", partition=1)
    with pytest.raises(ComponentError):
        run_topology(word_count("transactional", attempts_max=1), config=CONFIG, faults=[Crash("counts", 1)])
    kafka.remove_offsets("lines", 1, [1])
    with pytest.raises(
        DataLossError, match=r"lines\[1\]@0: transaction 1 .* only 2 of its 3 records are left: the others"
    ):
        run_topology(word_count("transactional", attempts_max=2), config=CONFIG)
    assert not memory.states["counts"].forms


def test_an_opaque_batch_goes_on_without_records_that_are_gone(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """With ``kafka.on_data_loss=earliest`` it counts what is left."""
    _stopped_while_active(kafka, memory, "opaque")
    kafka.delete_records("lines", 1, 1)
    run_topology(word_count(), config={**CONFIG, "kafka.on_data_loss": "earliest"})
    left = [line for number, line in enumerate(LINES) if number != 1]
    assert values_of(memory.states["counts"], "opaque") == counted(left)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_records_that_are_gone_before_their_batch(kafka: FakeKafka, memory: MemoryBatches, kind: str) -> None:
    """By default the run stops; with ``earliest`` they are counted as lost, once, though their batch comes again."""
    produce(kafka, LINES)
    run_topology(word_count(kind), config=CONFIG)
    produce(kafka, LINES)
    kafka.delete_records("lines", 2, 3)
    with pytest.raises(DataLossError, match=r"lines\[2\]@2: the next batch starts here, but the log holds 3 to 4"):
        run_topology(word_count(kind, attempts_max=2), config=CONFIG)
    again = [Fail("split", 1)]
    result = run_topology(word_count(kind), config={**CONFIG, "kafka.on_data_loss": "earliest"}, faults=again)
    assert result.components["lines"][0].report()["lost"] == 1
    assert values_of(memory.states["counts"], kind) == counted([*LINES, *LINES[:2], *LINES[3:]])


def test_partitions_that_are_added_are_read(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """They come to tasks in turns, from their beginning, and others may change their task."""
    produce(kafka, LINES)
    run_topology(word_count(par=2), config=CONFIG)
    kafka.add_partitions("lines", 5)
    for partition in range(5):
        kafka.produce("lines", value=b"added", partition=partition)
    run_topology(word_count(par=2), config=CONFIG)
    assert values_of(memory.states["counts"], "opaque") == counted([*LINES, *["added"] * 5])


def test_a_topology_without_ackers_is_refused(kafka: FakeKafka, memory: MemoryBatches) -> None:
    with pytest.raises(ConfigError, match=r"acker.executors = 0: without ackers, the end of a batch"):
        run_topology(word_count(), config={**CONFIG, "topology.acker.executors": 0})


def test_a_second_topology_with_one_batch_id_is_refused(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """While the first one lives; nothing of the second is committed."""
    memory.owner = "other-1-2"
    with pytest.raises(BrokerError, match="other-1-2 commits batches under"):
        run_topology(word_count(), config=CONFIG)


def test_a_topic_that_does_not_exist(kafka: FakeKafka, memory: MemoryBatches) -> None:
    with pytest.raises(BrokerError, match="topic nothing does not exist on fake://batches"):
        run_topology(word_count(topics=["nothing"]), config=CONFIG)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"emit": "chunk"}, "kafka.emit = 'chunk' cannot be combined with KafkaBatches"),
        ({"translator": ["string"]}, "kafka.translator = "),
        ({"offset_store": "sqlite:///x.db"}, "kafka.offset_store = "),
        ({"guarantee": "AT_MOST_ONCE"}, "kafka.guarantee = 'AT_MOST_ONCE'"),
        ({"behind_max": 100}, "kafka.behind_max = 100 cannot be combined with KafkaBatches"),
        ({"listener": "a.Listener"}, "kafka.listener = 'a.Listener' cannot be combined with KafkaBatches"),
        ({"on_corrupt_batch": "dead_letter"}, "kafka.on_corrupt_batch = 'dead_letter' cannot be combined"),
        ({"max_actve": 3}, "unknown setting kafka.max_actve"),
    ],
)
def test_settings_that_batches_do_not_have_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        KafkaBatches.spec(topics=["lines"], **settings)


def test_a_batch_waits_until_the_coordinator_is_ready(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """The hook of a subclass is asked before each attempt."""
    produce(kafka, LINES)
    clock = VirtualClock()
    begun = clock.monotonic()

    class Later(BatchCoordinator):
        def is_ready(self, txid: int) -> bool:
            return self.clock.monotonic() >= begun + 100 * txid

    result = run_topology(word_count(coordinator=Later, records_max=3), config=CONFIG, clock=clock)
    assert clock.monotonic() - begun >= 200
    assert result.components["coordinator"][0].report()["batches_succeeded"] == 2


@pytest.mark.parametrize("interval_ms", [0, 700])
def test_batches_begin_at_intervals(kafka: FakeKafka, memory: MemoryBatches, interval_ms: int) -> None:
    produce(kafka, LINES * 4)
    clock = VirtualClock()
    begun = clock.monotonic()
    run_topology(word_count(emit_interval_ms=interval_ms, records_max=6), config=CONFIG, clock=clock)
    assert memory.coordinator is not None
    passed = clock.monotonic() - begun
    assert passed >= (memory.coordinator.current - 2) * interval_ms / 1000
    assert passed < 5


def test_an_origin_is_handed_on(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """Fields are those of KafkaSpout, behind the attempt."""
    produce(kafka, LINES[:2])
    result = run_topology(word_count(fields=["value", "origin", "offset"]), config=CONFIG)
    first = result.emitted("lines")[0]
    assert first._fields == ("attempt", "value", "origin", "offset")
    assert first.attempt == (1, 0)
    assert (first.origin.topic, first.origin.offset) == ("lines", 0)


def test_nothing_is_left_behind_of_what_is_done(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """Of each partition the last range stays, and no partitions of transactions that are done but the last."""
    produce(kafka, LINES * 3)
    run_topology(word_count("transactional", 2, records_max=3, max_active=2), config=CONFIG)
    assert memory.coordinator is not None
    assert {len(ranges) for ranges in memory.ranges.values()} <= {1, 2}
    assert min(memory.partitions, default=memory.coordinator.current) >= memory.coordinator.current - 1
    assert memory.coordinator.attempts == {}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_store_that_is_locked_now_and_then_is_waited_for(
    kafka: FakeKafka, memory: MemoryBatches, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What depends on a write waits until it has succeeded; the counts are exact, and a warning says why."""
    produce(kafka, LINES * 2)
    chance = random.Random(1)

    def locked(when: str, what: str) -> None:
        if when == "before" and what != "write" and chance.random() < 0.5:
            raise BatchStoreError("batches.db is locked", passes=True)

    memory.hook = locked
    result = run_topology(word_count(kind, 2, records_max=6), config=CONFIG)
    assert result.run.reason == "end"
    assert values_of(memory.states["counts"], kind) == counted(LINES * 2)
    assert "batches.db is locked; retrying" in caplog.text


@pytest.mark.parametrize("what", ["save_coordinator", "save_ranges"])
def test_a_store_that_fails_for_good_stops_the_run(kafka: FakeKafka, memory: MemoryBatches, what: str) -> None:
    """The error is the store's, and nothing past the last write is committed."""
    produce(kafka, LINES)

    def full(when: str, name: str) -> None:
        if when == "before" and name == what:
            raise BatchStoreError("batches.db: the disk is full", cure="make room")

    memory.hook = full
    with pytest.raises(BatchStoreError, match="the disk is full"):
        run_topology(word_count("transactional"), config=CONFIG)
    assert "counts" not in memory.states or not memory.states["counts"].forms


def test_a_coordinator_whose_claim_is_taken_stops(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """The first write after that is refused, and with it all that depends on it."""
    produce(kafka, LINES)

    def taken(when: str, what: str) -> None:
        if when == "after" and what == "save_ranges":
            memory.epoch += 1

    memory.hook = taken
    with pytest.raises(StaleCoordinatorError):
        run_topology(word_count(records_max=3), config=CONFIG)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("each", [3, 4, 7])
def test_polls_that_fail_now_and_then_lose_nothing(
    kafka: FakeKafka, memory: MemoryBatches, kind: str, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the middle of a batch, when some of its records are read already: all of them come again."""
    produce(kafka, LINES * 4)
    polls, poll = count(1), FakeConsumer.poll

    def shaky(self: FakeConsumer, timeout_ms: int, max_records: int) -> Any:
        number = next(polls)
        if number < 30 and number % each == 0:
            raise errors.KafkaTimeoutError
        return poll(self, timeout_ms, 1)

    monkeypatch.setattr(FakeConsumer, "poll", shaky)
    result = run_topology(word_count(kind, 2, max_active=2, records_max=6), config=CONFIG)
    assert result.components["coordinator"][0].report()["batches_failed"] >= 1
    assert values_of(memory.states["counts"], kind) == counted(LINES * 4)


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_first_batch_whose_start_is_gone_when_it_comes_again(
    kafka: FakeKafka, memory: MemoryBatches, policy: str
) -> None:
    """Where the strategy began is lost as any other offset: by default an error that names it, not a wrong position."""
    produce(kafka, LINES)
    gone = []

    def retention(when: str, what: str) -> None:
        if what == "save_ranges" and not gone:
            gone.append(kafka.delete_records("lines", 1, 1))
            raise BatchStoreError("locked", passes=True)

    memory.hook = retention
    config = {**CONFIG, "kafka.on_data_loss": policy}
    if policy == "fail":
        with pytest.raises(DataLossError, match=r"lines\[1\]@0: the next batch starts here, but the log holds 1 to 2"):
            run_topology(word_count(attempts_max=2), config=config)
    else:
        run_topology(word_count(attempts_max=2), config=config)
        found = values_of(memory.states["counts"], "opaque")  # a word that went back has no value
        assert {word: value for word, value in found.items() if value} == counted([*LINES[:1], *LINES[2:]])


def test_a_start_at_the_end_holds_until_it_is_committed(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """A partition that was left out of the first batches begins where its first attempt did."""
    tp = TopicPartition("lines", 0)
    logs = Logs({tp: 0}, {tp: 5})
    settings = parse_scope({"kafka.topics": ["lines"], "kafka.start": "LATEST"}, "kafka")
    starts, consumer = BatchStarts(settings, "t-1", logging.getLogger("test")), kafka.consumer(group=None)
    assert starts.of(1, tp, None, "id", logs, consumer) == 5
    starts.committed([TopicPartition("lines", 1)])
    assert starts.of(2, tp, None, "id", Logs({tp: 0}, {tp: 9}), consumer) == 5
    starts.committed([tp])
    assert starts.of(3, tp, None, "id", Logs({tp: 0}, {tp: 9}), consumer) == 9


@pytest.mark.parametrize(
    ("policy", "first", "again", "later", "wanted", "lost"),
    [
        ("latest", (15, 20), (15, 24), (26, 30), [20, 20, 30], 20),  # the last one: retention has passed it, too
        ("earliest", (15, 20), (15, 24), (18, 30), [15, 15, 18], 8),
        ("earliest", (0, 5), (0, 14), (0, 30), [0, 0, 0], 0),  # the log was cut, and has grown since
    ],
)
def test_a_batch_that_comes_again_after_a_loss_starts_where_it_did(
    kafka: FakeKafka,
    policy: str,
    first: tuple[int, int],
    again: tuple[int, int],
    later: tuple[int, int],
    wanted: list[int],
    lost: int,
) -> None:
    """What has arrived since its first attempt is not skipped, and what is gone is counted once."""
    tp, before = TopicPartition("lines", 0), BatchRange(5, 9, "t-1", "id")
    settings = parse_scope({"kafka.topics": ["lines"], "kafka.on_data_loss": policy}, "kafka")
    starts, consumer = BatchStarts(settings, "t-1", logging.getLogger("test")), kafka.consumer(group=None)
    found = [
        starts.of(7, tp, before, "id", Logs({tp: begin}, {tp: end}), consumer) for begin, end in (first, again, later)
    ]
    assert (found, starts.lost) == (wanted, lost)
    assert starts.of(9, tp, before, "id", Logs({tp: 0}, {tp: 30}), consumer) == 10  # what a later batch may meet
    starts.committed([tp])
    assert starts.of(7, tp, before, "id", Logs({tp: 0}, {tp: 30}), consumer) == 10


class Elections:
    """Partitions that lose their leaders at a time, and have them again at a later one."""

    def __init__(self, kafka: FakeKafka, clock: VirtualClock, *partitions: int, until_s: float) -> None:
        self.waited = 0
        lost = {TopicPartition("lines", number) for number in partitions}
        ask, begun = FakeConsumer.beginning_offsets, clock.monotonic()

        def hurried(consumer: FakeConsumer, wanted: Any) -> Any:
            try:
                return ask(consumer, wanted)
            except errors.KafkaTimeoutError:
                self.waited += 1
                clock.sleep(4)  # as the client waits for a leader
                raise

        class Coordinator(BatchCoordinator):
            def next_tuple(self) -> None:
                kafka.leaderless.clear()
                if clock.monotonic() < begun + until_s:
                    kafka.leaderless |= lost
                super().next_tuple()

        self.coordinator, self.beginning_offsets = Coordinator, hurried


@pytest.mark.parametrize("away", [(1,), (1, 0), (0, 1, 2)], ids=["one task", "one task and more", "all tasks"])
@pytest.mark.parametrize("started", [False, True], ids=["at the start", "later"])
def test_opaque_batches_go_on_without_partitions_that_have_no_leader(
    kafka: FakeKafka, memory: MemoryBatches, monkeypatch: pytest.MonkeyPatch, away: tuple[int, ...], started: bool
) -> None:
    """Also where one task has no other partition: the others' records are committed, and theirs when they are back."""
    clock = VirtualClock()
    if started:
        produce(kafka, LINES)
        run_topology(word_count(par=3), config=CONFIG, clock=clock)
    produce(kafka, LINES * 10)
    elections = Elections(kafka, clock, *away, until_s=60)
    monkeypatch.setattr(FakeConsumer, "beginning_offsets", elections.beginning_offsets)
    topology = word_count(par=3, records_max=30, coordinator=elections.coordinator, emit_interval_ms=1000)
    result = run_topology(topology, config=CONFIG, clock=clock, for_s=50)
    before = LINES if started else []
    led = [line for number, line in enumerate(LINES * 10) if number % 3 not in away]
    found = values_of(memory.states["counts"], "opaque") if "counts" in memory.states else {}
    assert found == counted([*before, *led])
    assert result.components["coordinator"][0].report()["batches_failed"] == 0
    assert elections.waited == len(away)  # each task once: later it asks without a wait
    topology = word_count(par=3, coordinator=elections.coordinator)
    assert run_topology(topology, config=CONFIG, clock=clock).run.reason == "end"
    assert values_of(memory.states["counts"], "opaque") == counted([*before, *LINES * 10])


def test_a_transactional_batch_waits_for_a_leader(
    kafka: FakeKafka, memory: MemoryBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be another batch without the partition: nothing is committed until the leader is back."""
    produce(kafka, LINES * 2)
    clock = VirtualClock()
    elections = Elections(kafka, clock, 1, until_s=60)
    topology = word_count("transactional", par=3, coordinator=elections.coordinator, emit_interval_ms=1000)
    run_topology(topology, config=CONFIG, clock=clock, for_s=50)
    assert "counts" not in memory.states or not memory.states["counts"].forms
    assert run_topology(topology, config=CONFIG, clock=clock).run.reason == "end"
    assert values_of(memory.states["counts"], "transactional") == counted(LINES * 2)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_brokers_that_do_not_answer_are_waited_for(
    kafka: FakeKafka, memory: MemoryBatches, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where nobody tells which partitions can be read, the attempt fails and begins again; the run does not end."""
    produce(kafka, LINES * 2)
    left = [12]

    def away(self: Any, *given: Any) -> Any:
        left[0] -= 1
        if left[0] > 0:
            raise errors.KafkaTimeoutError("no answer")
        return ends(self, *given)

    ends, describe = FakeConsumer.end_offsets, FakeKafka.describe_logs

    def described(self: Any, *given: Any) -> Any:
        if left[0] > 0:
            raise BrokerError("lines cannot be looked at")
        return describe(self, *given)

    monkeypatch.setattr(FakeKafka, "describe_logs", described)
    topology = word_count(kind, 2)
    monkeypatch.setattr(KafkaSource, "_ends_of", lambda self, found: {tp: kafka.log(tp).end for tp in found})
    monkeypatch.setattr(FakeConsumer, "end_offsets", away)
    result = run_topology(topology, config=CONFIG)
    assert result.components["coordinator"][0].report()["batches_failed"] >= 3
    assert values_of(memory.states["counts"], kind) == counted(LINES * 2)


def test_what_a_failed_attempt_stored_of_a_partition_that_the_next_one_lacks_is_deleted(
    kafka: FakeKafka, memory: MemoryBatches
) -> None:
    """Its records come in a later batch, and are counted once; the deletion names the claim, as any write does."""
    produce(kafka, LINES)
    lost, written = TopicPartition("lines", 1), list[str]()

    def hook(when: str, what: str) -> None:
        if when == "before" and what == "write" and "write" not in written:
            written.append(what)
            kafka.leaderless.add(lost)
            raise RuntimeError("the state is away")
        if when == "after":
            written.append(what)
        if (when, what) == ("after", "save_ranges") and "delete_ranges" in written:
            assert 1 not in memory.ranges["lines/1"]
            kafka.leaderless.clear()

    memory.hook = hook
    run_topology(word_count(), config=CONFIG)
    assert written.index("delete_ranges") > written.index("write")
    assert values_of(memory.states["counts"], "opaque") == counted(LINES)


@pytest.mark.parametrize("gone", [[0], [1], [0, 1]], ids=["first", "last", "all"])
def test_a_transactional_batch_without_its_first_or_last_record_is_an_error(
    kafka: FakeKafka, memory: MemoryBatches, gone: list[int]
) -> None:
    """Compaction took them out: the log still begins and ends where it did, and the batch would be a smaller one."""
    _stopped_while_active(kafka, memory, "transactional")
    kafka.remove_offsets("lines", 1, gone)
    with pytest.raises(DataLossError, match=r"lines\[1\]@0: transaction 1 holds the offsets 0 to 1, but") as error:
        run_topology(word_count("transactional", attempts_max=2), config=CONFIG)
    has = "none of them is left" if len(gone) == 2 else f"the remaining ones are {1 - gone[0]} to {1 - gone[0]}"
    assert has in str(error.value)
    assert not memory.states["counts"].forms


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_first_batch_starts_where_it_is_told_to(kafka: FakeKafka, memory: MemoryBatches, policy: str) -> None:
    """At ``kafka.start_offsets`` in the partitions that it names; an offset that is gone is lost data."""
    produce(kafka, LINES * 2)
    config = {**CONFIG, "kafka.on_data_loss": policy}
    topology = word_count(start="OFFSETS", start_offsets=["lines[0]=1", "lines[1]=3"])
    run_topology(topology, config=config)
    left = [line for number, line in enumerate(LINES * 2) if number not in (0, 1, 4, 7)]
    assert values_of(memory.states["counts"], "opaque") == counted(left)
    memory.ranges.clear()
    kafka.delete_records("lines", 0, 2)
    if policy == "fail":
        with pytest.raises(DataLossError, match=r"lines\[0\]@1: the next batch starts here, but the log holds 2 to 4"):
            run_topology(topology, config=config)
    else:
        result = run_topology(topology, config=config)
        assert result.components["lines"][0].report()["lost"] == 1


# --- a topic that is deleted ---


def _of_two_topics(kafka: FakeKafka, kind: str, topics: tuple[str, ...] = ("lines", "more"), **settings: Any) -> Any:
    """Return a topology with the state that users have, whose kind is transactional."""
    source = KafkaBatches.spec(topics=list(topics), fields=["value"], emit_interval_ms=100, kind=kind, **settings)

    class OfTwo(Topology):
        config: ClassVar[dict[str, Any]] = {"batch.id": "two"}
        coordinator, lines = source
        split = Split.spec(inputs=[lines])
        counts = StateBolt.spec(
            coordinator=coordinator, inputs={split: Grouping.fields("word")}, kind="transactional",
            store="memory://test", key=["word"], update="count",
        )  # fmt: skip

    return OfTwo


def _pending_as_its_topic_is_deleted(kafka: FakeKafka) -> None:
    """Leave a batch that is stored and not committed, with records of a topic that is deleted then."""
    kafka.create_topic("more", 1)
    kafka.produce("more", value=b"gone")
    produce(kafka, LINES)
    with pytest.raises(ComponentError):
        run_topology(_of_two_topics(kafka, "transactional", attempts_max=1), config=CONFIG, faults=[Crash("counts", 1)])
    kafka.delete_topic("more")


@pytest.mark.parametrize("topics", [("lines", "more"), ("lines",)], ids=["named", "taken out"])
def test_a_batch_of_a_deleted_topic_is_an_error_whose_cure_works(
    kafka: FakeKafka, memory: MemoryBatches, topics: tuple[str, ...]
) -> None:
    """After some seconds the run ends; with the settings that it names, for one run, all goes on as before."""
    _pending_as_its_topic_is_deleted(kafka)
    clock = VirtualClock()
    run_topology(_of_two_topics(kafka, "transactional", topics), config=CONFIG, clock=clock, until=None, for_s=5)
    assert not memory.states["counts"].forms
    with pytest.raises(DataLossError, match=r"more\[0\]@0: transaction 1 holds the offsets 0 to 0, but the topic was"):
        run_topology(_of_two_topics(kafka, "transactional", topics), config=CONFIG, clock=clock, until=None, for_s=30)
    cure = {"state.exactly_once": False, "kafka.on_data_loss": "earliest"}
    run_topology(_of_two_topics(kafka, "opaque", topics), config=CONFIG | cure, clock=clock, until=None, for_s=30)
    assert values_of(memory.states["counts"], "transactional") == counted(LINES)
    produce(kafka, LINES)
    run_topology(_of_two_topics(kafka, "transactional", topics), config=CONFIG, clock=clock, until=None, for_s=30)
    assert values_of(memory.states["counts"], "transactional") == counted(LINES * 2)
    assert "more" in topics or not memory.ranges.get("more/0")


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("taken_out", [False, True])
def test_batches_go_on_without_a_topic_that_is_deleted(
    kafka: FakeKafka, memory: MemoryBatches, kind: str, taken_out: bool
) -> None:
    """No batch holds records of it: others are counted. What is stored of it goes once the settings do not name it."""
    kafka.create_topic("more", 1)
    kafka.produce("more", value=b"before")
    config = {**CONFIG, "state.exactly_once": False}
    run_topology(_of_two_topics(kafka, kind), config=config)
    kafka.delete_topic("more")
    produce(kafka, LINES)
    topics = ("lines",) if taken_out else ("lines", "more")
    run_topology(_of_two_topics(kafka, kind, topics), config=config, until=None, for_s=30)
    assert values_of(memory.states["counts"], "transactional") == counted([*LINES, "before"])
    assert bool(memory.ranges.get("more/0")) == (not taken_out)


def test_what_is_stored_of_a_topic_that_is_there_stays(kafka: FakeKafka, memory: MemoryBatches) -> None:
    """It was taken out of the settings, and comes back: it goes on where it was."""
    kafka.create_topic("more", 1)
    kafka.produce("more", value=b"before")
    run_topology(_of_two_topics(kafka, "transactional"), config=CONFIG)
    produce(kafka, LINES)
    run_topology(_of_two_topics(kafka, "transactional", ("lines",)), config=CONFIG)
    kafka.produce("more", value=b"after")
    run_topology(_of_two_topics(kafka, "transactional"), config=CONFIG)
    assert values_of(memory.states["counts"], "transactional") == counted([*LINES, "before", "after"])


@pytest.mark.parametrize("lasts_s", [2, 30], ids=["not there for a moment", "deleted"])
def test_a_topic_that_goes_in_its_first_batch(kafka: FakeKafka, memory: MemoryBatches, lasts_s: int) -> None:
    """No batch has had records of it: one is waited for, as a replay must hold the same; then batches go on without."""
    kafka.create_topic("more", 1)
    kafka.produce("more", value=b"late")
    produce(kafka, LINES)
    clock = VirtualClock()
    names, ids = FakeConsumer.partitions_for, FakeConsumer.topic_ids
    away = [0.0]

    def is_away(topic: str) -> bool:
        return topic == "more" and bool(away[0]) and clock.monotonic() < away[0]

    def hook(when: str, what: str) -> None:
        if (when, what) == ("after", "save_partitions") and not away[0]:
            away[0] = clock.monotonic() + lasts_s

    memory.hook = hook
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeConsumer, "partitions_for", lambda self, name: () if is_away(name) else names(self, name))
        patch.setattr(
            FakeConsumer, "topic_ids", lambda self, some: ids(self, [name for name in some if not is_away(name)])
        )
        run_topology(_of_two_topics(kafka, "transactional"), config=CONFIG, clock=clock, until=None, for_s=60)
    assert values_of(memory.states["counts"], "transactional") == counted([*LINES, "late"])
