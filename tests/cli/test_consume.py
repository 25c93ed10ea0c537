"""`downspout kafka consume`: ranges, formats and groups."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import errors

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.errors import BrokerError, ConfigError, UnreadableError
from downspout.kafka import END, KafkaCluster, LogPoint, OffsetAndMetadata, TopicPartition, TopicReader
from downspout.ledger import encode
from downspout.testing import FakeKafka
from tests.spout.spout_driver import Kafka, fill

TOPIC, GROUP = "seen", "lookers"
ZERO = TopicPartition(TOPIC, 0)
Consume = Callable[..., list[str]]


@pytest.fixture
def consume(bare_kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> Consume:
    """Runs the command, checks its exit code, and returns what it printed, line by line; errors with ``error=True``."""

    def run(*options: str, code: int = 0, error: bool = False) -> list[str]:
        capsys.readouterr()
        assert main(["kafka", "consume", TOPIC, "--bootstrap", bare_kafka.bootstrap, *options]) == code
        said = capsys.readouterr()
        return (said.err if error else said.out).splitlines()

    return run


def places(lines: list[str]) -> list[str]:
    return [line.split("  ")[0].removeprefix(TOPIC) for line in lines]


def test_records_are_printed_with_all_their_parts(bare_kafka: Kafka, consume: Consume) -> None:
    """Partition by partition: place, time, key, value and headers; the count goes to stderr."""
    bare_kafka.create_topic(TOPIC, 2)
    bare_kafka.produce(TOPIC, b"v\xff", b"k", partition=1, headers=[("h", b"1")], timestamp_ms=1_700_000_000_000)
    bare_kafka.produce(TOPIC, None, partition=0, timestamp_ms=1_700_000_000_001)
    assert consume() == [
        f"{TOPIC}[0]@0  2023-11-14T22:13:20.001Z  null  null",
        f"{TOPIC}[1]@0  2023-11-14T22:13:20.000Z  k  v\\xff  {{h: 1}}",
    ]
    assert consume("--partition", "1", error=True) == ["1 record"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(10)),
        (["--from", "beginning", "--until", "end"], range(10)),
        (["--from", "end"], []),
        (["--from", "7"], range(7, 10)),
        (["--offset", "7", "--limit", "1"], [7]),
        (["--until", "3"], range(3)),
        (["--from", "2", "--until", "4"], [2, 3]),
        (["--until", "99", "--max", "4"], range(4)),
        (["--from", "1970-01-01T00:00:05"], range(5, 10)),
        (["--from", "1970-01-01T00:00:04.5Z", "--until", "1970-01-01T00:00:06"], [5]),
        (["--from", "2200-01-01"], []),
    ],
)
def test_where_to_begin_and_to_end_may_be_said(
    bare_kafka: Kafka, consume: Consume, options: list[str], expected: list[int]
) -> None:
    """As an end of the log, an offset, or a time, which stands for the first record that is as late; old names stay."""
    bare_kafka.create_topic(TOPIC, 1, {"message.timestamp.before.max.ms": str(2**62)})
    for number in range(10):
        bare_kafka.produce(TOPIC, b"%d" % number, timestamp_ms=number * 1000)
    assert places(consume(*options)) == [f"[0]@{offset}" for offset in expected]


def test_an_offset_that_is_not_there_is_said(bare_kafka: Kafka, consume: Consume) -> None:
    """What was deleted, and what is not written yet, is a note, and reading begins where the log does."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 10, topic=TOPIC)
    bare_kafka.delete_records(TOPIC, 0, 4)
    said = consume("--from", "2", "--max", "1", error=True)
    assert said == [f"note: {TOPIC}[0]: reading was to start at 2, but the log begins at 4", "1 record"]
    assert places(consume("--from", "2", "--max", "1")) == ["[0]@4"]
    said = consume("--from", "11", error=True)
    assert said == [f"note: {TOPIC}[0]: reading was to start at 11, but the log ends at 10", "0 records"]


def test_aborted_transactions_are_left_out(bare_kafka: Kafka, consume: Consume) -> None:
    """They are the end of the log here, so that no record comes from there: reading ends all the same."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 2, topic=TOPIC)
    bare_kafka.gap(TOPIC, 0, 4)
    assert places(consume()) == ["[0]@0", "[0]@1"]
    assert places(consume("--from", "3")) == []


@pytest.mark.parametrize("before", [0, 2])
def test_an_open_transaction_is_said_and_can_be_looked_into(bare_kafka: Kafka, consume: Consume, before: int) -> None:
    """Nothing of it is printed, nor what stands behind it; with read_uncommitted it is, and so are aborted ones."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, before, topic=TOPIC)
    transaction = bare_kafka.transaction()
    transaction.send(TOPIC, b"open", partition=0)
    fill(bare_kafka, 1, topic=TOPIC)
    whole = [f"[0]@{offset}" for offset in range(before + 2)]
    assert places(consume()) == whole[:before]
    assert places(consume("--isolation", "read_uncommitted")) == whole
    said = consume(error=True)[0]
    assert said.startswith(f"note: {TOPIC}[0]: a transaction is open; 2 offsets from {before} on are withheld")
    transaction.abort()
    assert places(consume()) == [*whole[:before], whole[-1]]
    assert places(consume("--isolation", "read_uncommitted")) == whole
    assert consume(error=True) == [f"{before + 1} record" + "s" * bool(before)]


@pytest.mark.fake_only("the cleaner of a broker comes when it likes; a test of its own has it clean")
def test_offsets_that_the_cleaner_emptied_end_reading(bare_kafka: FakeKafka, consume: Consume) -> None:
    """The last offsets hold nothing any more, and no record tells that the end is there."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 6, topic=TOPIC)
    bare_kafka.remove_offsets(TOPIC, 0, [1, 2, 4, 5])
    assert places(consume()) == ["[0]@0", "[0]@3"]


# --- groups ---


def test_a_group_goes_on_behind_what_was_printed(bare_kafka: Kafka, consume: Consume) -> None:
    """Each run prints the next records; the commit is behind the last one printed, or at the end of the log."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 5, topic=TOPIC)
    assert places(consume("--group", GROUP, "--max", "2")) == ["[0]@0", "[0]@1"]
    assert bare_kafka.committed(GROUP)[ZERO].offset == 2
    bare_kafka.gap(TOPIC, 0, 2)
    assert places(consume("--group", GROUP)) == ["[0]@2", "[0]@3", "[0]@4"]
    assert bare_kafka.committed(GROUP)[ZERO].offset == 7
    assert consume("--group", GROUP) == []
    assert places(consume("--group", GROUP, "--from", "3", "--max", "1")) == ["[0]@3"]
    assert bare_kafka.committed(GROUP)[ZERO].offset == 4


def test_without_a_group_nothing_is_committed(bare_kafka: Kafka, consume: Consume) -> None:
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 5, topic=TOPIC)
    consume()
    assert not bare_kafka.group_offsets(GROUP)


def test_the_group_of_a_topology_is_refused(bare_kafka: Kafka, consume: Consume) -> None:
    """Its commits say what is done beyond them, and a plain commit would have that processed again."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 5, topic=TOPIC)
    consumer = bare_kafka.consumer(group=GROUP)
    consumer.assign([ZERO])
    consumer.commit({ZERO: OffsetAndMetadata(1, encode(1, topology_id="wc", task=1), -1)})
    consumer.close()
    (said,) = consume("--group", GROUP, code=ConfigError.exit_code, error=True)
    assert f"group {GROUP} belongs to a topology: its commit of {TOPIC}[0]" in said
    assert bare_kafka.committed(GROUP)[ZERO].offset == 1


def test_what_was_not_printed_is_not_committed(bare_kafka: Kafka, consume: Consume) -> None:
    """The reader of the pipe has gone: the records are given again next time."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 5, topic=TOPIC)

    def look() -> None:
        with TopicReader(bare_kafka, TOPIC, group=GROUP) as reader:
            for _ in reader.batches():
                raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        look()
    assert not bare_kafka.group_offsets(GROUP)
    assert len(consume("--group", GROUP)) == 5


# --- formats ---


def test_what_is_consumed_as_json_can_be_produced_again(bare_kafka: Kafka, consume: Consume, tmp_path: Path) -> None:
    """Keys, values, headers, times and partitions come back equal, for any bytes."""
    numbers = random.Random(7)
    bare_kafka.create_topic(TOPIC, 3)

    def some() -> str | None:
        """Return no bytes, any, or those of JSON, in base64."""
        kind, data = numbers.randrange(4), numbers.randbytes(numbers.randrange(60))
        if kind == 0:
            return None
        return base64.b64encode(data if kind < 3 else json.dumps({"a": [data.hex(), 1.5]}).encode()).decode()

    lines = []
    for number in range(300):
        headers = [[f"h{n}\x1b\u2028", {"base64": some() or ""}] for n in range(number % 3)]
        place = {"partition": number % 3, "timestamp": 1_700_000_000_000 + number}
        lines.append({"key_base64": some(), "value_base64": some(), "headers": headers, **place})
    (tmp_path / "first").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    produce = ["kafka", "produce", "--json", "--bootstrap", bare_kafka.bootstrap]
    assert main([*produce, TOPIC, str(tmp_path / "first")]) == 0
    for value_format in ("utf8", "base64", "hex"):
        shown = consume("--json", "--format", value_format, "--key-format", value_format)
        assert len(shown) == 300
        other = f"{TOPIC}-{value_format}"
        bare_kafka.create_topic(other, 3)
        (tmp_path / "again").write_text("\n".join(shown), encoding="utf-8")
        assert main([*produce, other, str(tmp_path / "again")]) == 0
        parts = [
            [(r.partition, r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in bare_kafka.records(topic)]
            for topic in (TOPIC, other)
        ]
        assert parts[0] == parts[1]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], '  k\\x1b  {"a": "\\x1b[2J\\x07"}\\n'),
        (["--format", "hex", "--key-format", "base64"], "  axs=  7b2261223a20221b5b324a07227d0a"),
        (["--format", "base64"], "  k\\x1b  eyJhIjogIhtbMkoHIn0K"),
        (["--json"], '"key":"k\\u001b","value":"{\\"a\\": \\"\\u001b[2J\\u0007\\"}\\n","headers":[]}'),
        (["--json", "--format", "hex"], '"value_hex":"7b2261223a20221b5b324a07227d0a","headers":[]}'),
    ],
)
def test_no_format_lets_a_terminal_be_ordered_about(
    bare_kafka: Kafka, consume: Consume, options: list[str], shown: str
) -> None:
    """What would clear the screen or ring the bell is escaped."""
    bare_kafka.create_topic(TOPIC, 1)
    bare_kafka.produce(TOPIC, b'{"a": "\x1b[2J\x07"}\n', b"k\x1b")
    (line,) = consume(*options)
    assert line.endswith(shown)


def test_json_values_are_part_of_the_line(bare_kafka: Kafka, consume: Consume) -> None:
    bare_kafka.create_topic(TOPIC, 1)
    for value in (b'{"a":\n 1.10}', b"no", b"null"):
        bare_kafka.produce(TOPIC, value)
    lines = consume("--json", "--format", "json")
    assert [line.partition('"value":')[2] for line in lines] == [
        f"{value},\"headers\":[]}}" for value in ('{"a":  1.10}', '"no"', '"null"')
    ]  # fmt: skip
    assert [line.split("  ", 3)[3] for line in consume("--format", "json")] == ['{"a":  1.10}', "no", "null"]


def test_raw_values_are_bytes_but_not_on_a_terminal(
    bare_kafka: Kafka, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe gets what is in Kafka; a terminal what it can show."""
    bare_kafka.create_topic(TOPIC, 1)
    for value in (b"\x1b[2J\xff", None):
        bare_kafka.produce(TOPIC, value)
    command = ["kafka", "consume", TOPIC, "--raw", "--bootstrap", bare_kafka.bootstrap]
    assert main(command) == 0
    assert capsysbinary.readouterr().out == b"\x1b[2J\xff\n\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(command) == 0
    assert capsysbinary.readouterr().out == b"\\x1b[2J\\xff\n\n"


# --- errors ---


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--from", "now"], "--from now is not a position in a topic. Try: beginning, end, an offset, or a time"),
        (["--until", "-1"], "--until -1 is not a position"),
        (["--follow", "--until", "end"], "--follow and --until contradict each other"),
        (["--raw", "--json"], "--raw and --json"),
        (["--raw", "--format", "hex"], "--raw and --format"),
    ],
)
@pytest.mark.fake_only("options are looked at before any broker is")
def test_options_that_make_no_sense_are_refused(consume: Consume, options: list[str], why: str) -> None:
    (said,) = consume(*options, code=ConfigError.exit_code, error=True)
    assert why in said


def test_a_topic_or_a_partition_that_is_not_there_is_named(bare_kafka: Kafka, consume: Consume) -> None:
    (said,) = consume(code=BrokerError.exit_code, error=True)
    assert f"there is no topic {TOPIC}. Try: " in said
    assert TOPIC not in bare_kafka.topic_names()
    bare_kafka.create_topic(TOPIC, 2)
    (said,) = consume("--partition", "2", code=BrokerError.exit_code, error=True)
    assert f"{TOPIC}[2] does not exist: {TOPIC} has 2 partitions, numbered from 0. Try: a partition below 2" in said


@pytest.mark.parametrize(
    ("operation", "error", "cure"),
    [
        ("partitions_for", errors.TopicAuthorizationFailedError({TOPIC}), f"no permission for topic {TOPIC}"),
        ("poll", errors.TopicAuthorizationFailedError({TOPIC}), f"no permission for topic {TOPIC}"),
        ("committed", errors.GroupAuthorizationFailedError(GROUP), f"no permission for group {GROUP}"),
        ("commit", errors.CommitFailedError(), f"the commit of group {GROUP}: CommitFailedError"),
    ],
)
@pytest.mark.fake_only("brokers of the tests take no rights away")
def test_what_a_broker_refuses_is_said_with_a_cure(
    bare_kafka: FakeKafka, consume: Consume, operation: str, error: Exception, cure: str
) -> None:
    """Rights that are missing are to be granted, and trying again would not help."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 1, topic=TOPIC)
    bare_kafka.faults.fail_next(operation, error)
    (said,) = consume("--group", GROUP, code=BrokerError.exit_code, error=True)
    assert cure in said
    assert ("Try: grant the" in said) == ("permission" in said)


def test_errors_that_pass_are_waited_for(bare_kafka: Kafka, consume: Consume) -> None:
    """A leader that moves is asked again."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 1, topic=TOPIC)
    for operation in ("end_offsets", "poll", "committed", "commit"):
        bare_kafka.faults.fail_next(operation, errors.NotLeaderForPartitionError())
    assert places(consume("--group", GROUP)) == ["[0]@0"]


@pytest.mark.fake_only("no batch of a broker is damaged on request here; the client's tests do that")
def test_records_that_cannot_be_read_are_named_and_passed(bare_kafka: FakeKafka, consume: Consume) -> None:
    """The others are printed, and the exit code says that something is missing."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 9, topic=TOPIC)
    bare_kafka.damage(TOPIC, 0, 3, 5)
    said = consume(code=UnreadableError.exit_code, error=True)
    assert said[0].startswith(f"note: {TOPIC}[0]@3: ")
    assert said[1].startswith(f"downspout: 2 offsets of {TOPIC} cannot be read")


# --- logs that change meanwhile ---


@pytest.mark.fake_only("truncation by an unclean election needs several brokers")
def test_a_log_that_is_cut_off_ends_where_it_ends_now(bare_kafka: FakeKafka) -> None:
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 5, topic=TOPIC)
    notes: list[str] = []
    with TopicReader(bare_kafka, TOPIC, note=notes.append) as reader:
        bare_kafka.truncate(TOPIC, 0, 3)
        offsets = [record.offset for records in reader.batches() for record in records]
    assert offsets == [0, 1, 2]
    assert notes == [f"{TOPIC}[0]: the log now ends at 3, no longer at 5"]


def test_records_that_are_deleted_before_they_are_read_are_said(bare_kafka: Kafka) -> None:
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 5, topic=TOPIC)
    notes: list[str] = []
    with TopicReader(bare_kafka, TOPIC, note=notes.append) as reader:
        bare_kafka.delete_records(TOPIC, 0, 3)
        offsets = [record.offset for records in reader.batches() for record in records]
    assert offsets == [3, 4]
    assert notes == [f"{TOPIC}[0]: 0 to 2 were deleted before they were read"]


def test_the_end_is_that_of_the_start(bare_kafka: Kafka) -> None:
    """Records that are written meanwhile are not waited for, nor given; who follows gets them."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 3, topic=TOPIC)
    with (
        TopicReader(bare_kafka, TOPIC, until=END) as bounded,
        TopicReader(bare_kafka, TOPIC, start=LogPoint("offset", 1), until=None, limit=4) as follower,
    ):
        fill(bare_kafka, 2, topic=TOPIC)
        assert [record.offset for records in bounded.batches() for record in records] == [0, 1, 2]
        assert [record.offset for records in follower.batches() for record in records] == [1, 2, 3, 4]


def test_a_request_to_stop_ends_between_two_batches(bare_kafka: Kafka) -> None:
    """What was given before it counts as seen, and is committed."""
    bare_kafka.create_topic(TOPIC, 2)
    fill(bare_kafka, 3, topic=TOPIC)
    seen: list[int] = []
    with TopicReader(bare_kafka, TOPIC, group=GROUP, until=None) as reader:
        for records in reader.batches(seen.__len__):
            seen += [record.offset for record in records]
    assert seen
    assert bare_kafka.committed(GROUP)[ZERO].offset == seen[-1] + 1


# --- as a program ---


@pytest.mark.sweep
@pytest.mark.broker
def test_a_reader_that_goes_away_ends_it(kafka_broker: EmbeddedKafka, topic_name: str) -> None:
    """Whoever reads the pipe has seen enough: no traceback, and the exit code that shells have for it."""
    cluster = KafkaCluster(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 1)
    producer = cluster.producer()
    for number in range(20_000):
        producer.send(topic_name, key=None, value=b"%d" % number)
    producer.close()
    command = [sys.executable, "-m", "downspout", "kafka", "consume", topic_name, "--bootstrap", kafka_broker.bootstrap]
    process = subprocess.Popen([*command, "--group", topic_name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"  0\n")
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 141
    done = cluster.group_offsets(topic_name).get(TopicPartition(topic_name, 0))
    assert done is None or done.offset < 20_000
