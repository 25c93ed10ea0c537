"""`downspout kafka produce`: each line is one record; records that are not written are named by line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import errors

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.errors import BrokerError, ConfigError, RecordError
from downspout.kafka import partition_of_key
from tests.spout.spout_driver import Kafka
from tests.waiting import PATIENCE_S, eventually

TOPIC = "lines"
Produce = Callable[..., int]


@pytest.fixture
def produce(bare_kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Produce:
    monkeypatch.chdir(tmp_path)

    def run(data: bytes, *options: str) -> int:
        (tmp_path / "in").write_bytes(data)
        return main(["kafka", "produce", TOPIC, "in", "--bootstrap", bare_kafka.bootstrap, *options])

    return run


def written(kafka: Kafka) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in kafka.records(TOPIC)]


def test_lines_become_records_that_take_turns(
    bare_kafka: Kafka, produce: Produce, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topic is created and said to be; ends of lines go, other bytes stay, and partitions get equally many."""
    assert produce(b"one\r\ntwo\n\n\xff", "--partitions", "2") == 0
    said = capsys.readouterr()
    assert said.out == f"4 records written to {TOPIC}\n"
    assert said.err == f"topic {TOPIC} created with 2 partitions\n"
    assert sorted(value or b"" for _, value in written(bare_kafka)) == [b"", b"one", b"two", b"\xff"]
    assert [len(bare_kafka.records(TOPIC, number)) for number in range(2)] == [2, 2]


def test_keys_headers_and_tombstones_of_plain_lines(bare_kafka: Kafka, produce: Produce) -> None:
    """The first separator counts; the key decides where a record goes; an empty value is a null only on request."""
    bare_kafka.create_topic(TOPIC, 3)
    assert produce(b"a=1=2\nb=\n", "--key-separator", "=", "--header", "by=hand", "--header", "x=") == 0
    assert produce(b"b=\n", "--key-separator", "=", "--tombstones") == 0
    found = bare_kafka.records(TOPIC)
    assert {(r.key, r.value) for r in found} == {(b"a", b"1=2"), (b"b", b""), (b"b", None)}
    assert all(record.partition == partition_of_key(record.key or b"", 3) for record in found)
    assert {tuple(record.headers) for record in found} == {(), (("by", b"hand"), ("x", b""))}


def test_lines_of_json_name_all_parts(bare_kafka: Kafka, produce: Produce) -> None:
    """Value, key, headers, time and partition; the partition and the headers of the options come before those."""
    bare_kafka.create_topic(TOPIC, 3)
    lines = [
        {"value": "x", "key": "k", "headers": {"a": "1"}, "partition": 2, "timestamp": 1_700_000_000_000},
        {"value": None, "key_base64": "/w==", "topic": "other", "offset": 77},
        {"value": {"price": 1.5}, "headers": [["a", None], ["b", {"hex": "ff"}]]},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    assert produce(data, "--json", "--partition", "1", "--header", "h=1") == 0
    first, second, third = sorted(bare_kafka.records(TOPIC), key=lambda r: (-r.partition, r.offset))
    assert (first.partition, first.key, first.value, first.timestamp) == (2, b"k", b"x", 1_700_000_000_000)
    assert list(first.headers) == [("h", b"1"), ("a", b"1")]
    assert (second.partition, second.key, second.value) == (1, b"\xff", None)
    assert third.value == b'{"price": 1.5}'
    assert list(third.headers) == [("h", b"1"), ("a", None), ("b", b"\xff")]


@pytest.mark.parametrize(
    ("line", "options", "why"),
    [
        (b"c", ["--key-separator", "="], "this line does not contain '='"),
        (b"{", ["--json"], "it is not JSON: "),
        (b"[1]", ["--json"], r"it is not a JSON object, but \[1\]"),
        (b'{"vlaue": 1}', ["--json"], "it has 'vlaue', but a record has only"),
        (b'{"key": "a"}', ["--json"], "it has no value; null writes a null"),
        (b'{"value": "a", "value_hex": "61"}', ["--json"], "it has value and value_hex"),
        (b'{"value_hex": "6"}', ["--json"], "value_hex is not hex: '6'"),
        (b'{"value_base64": 1}', ["--json"], "value_base64 is not base64: 1"),
        (b'{"value": 1, "timestamp": "now"}', ["--json"], "the timestamp 'now' is not a time"),
        (b'{"value": 1, "partition": -1}', ["--json"], "the partition -1 is not a whole number"),
        (b'{"value": 1, "headers": 5}', ["--json"], "the headers are neither"),
        (b'{"value": NaN}', ["--json"], "it is not JSON: NaN"),
        (b'{"value": "\\ud800"}', ["--json"], "the value has half of a surrogate pair"),
        (b"\xff", ["--json"], "it is not UTF-8: byte 1 is 0xff"),
    ],
)
@pytest.mark.fake_only("what a line holds is decided before Kafka sees anything of it")
def test_a_line_that_is_no_record_ends_it(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str], line: bytes, options: list[str], why: str
) -> None:
    """Its number and what is wrong are said; what stands before it is written, and nothing behind it."""
    good = b'{"value": "a="}' if options == ["--json"] else b"a="
    assert produce(b"\n".join([good, good, line, good]), *options) == RecordError.exit_code
    said = capsys.readouterr()
    assert said.out == f"2 records written to {TOPIC}\n"
    assert re.search(rf"^downspout: in:3: {why}.*\. Try: .*nothing after it was sent$", said.err, re.MULTILINE)
    assert len(written(bare_kafka)) == 2


@pytest.mark.parametrize("at", [1, 300])
def test_a_line_that_the_topic_does_not_take_is_named_and_the_others_are_written(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    """The error has the file, the line, its size and the topic's limit."""
    bare_kafka.create_topic(TOPIC, 1, {"max.message.bytes": "1000"})
    lines = [b"y" * 4_000 if n == at else b"x" for n in range(1, 401)]
    assert produce(b"\n".join(lines)) == RecordError.exit_code
    said = capsys.readouterr()
    assert said.out == f"399 records written to {TOPIC}, 1 refused\n"
    assert f"in:{at}: a record of 4,000 bytes is too large for topic {TOPIC}. Try: a smaller record" in said.err
    assert written(bare_kafka) == [(None, b"x")] * 399


def test_refused_lines_are_named_each_with_its_reason(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partition that is not there and a missing key, among lines that are written; ten are named at most."""
    bare_kafka.create_topic(TOPIC, 1, {"cleanup.policy": "compact"})
    bad = [{"value": "n"}, {"value": "p", "key": "k", "partition": 7}]
    lines = [{"value": "a", "key": "k"}, *bad, *([{"value": "n"}] * 10), {"value": "z", "key": "k"}]
    assert produce("\n".join(map(json.dumps, lines)).encode(), "--json") == RecordError.exit_code
    said = capsys.readouterr()
    assert said.out == f"2 records written to {TOPIC}, 12 refused\n"
    assert f"in:2: not written to {TOPIC}[0]: " in said.err
    assert "Try: give it a key: the topic is compacted" in said.err
    assert f"in:3: {TOPIC} has no partition 7: it has 1, numbered from 0 to 0" in said.err
    assert said.err.count("downspout: in:") == 10
    assert "more lines are refused" in said.err


@pytest.mark.fake_only("brokers of the tests take no rights away")
def test_a_right_that_is_missing_ends_it(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line would fare better: the error says what to grant, and the exit code is that of the brokers."""
    bare_kafka.create_topic(TOPIC, 1)
    bare_kafka.faults.fail_next("produce", errors.TopicAuthorizationFailedError({TOPIC}))
    assert produce(b"a\nb\n") == BrokerError.exit_code
    said = capsys.readouterr()
    assert said.out == f"0 records written to {TOPIC}, 2 refused\n"
    assert f"nothing can be written to {TOPIC}: no permission for topic {TOPIC}" in said.err
    assert "Try: grant this client WRITE" in said.err


@pytest.mark.fake_only("a broker that does not answer for two minutes is too slow for a test")
def test_lines_without_an_answer_may_have_been_written(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which they are is said, and that they may be there; no line is read any more."""
    bare_kafka.create_topic(TOPIC, 1)
    bare_kafka.faults.fail_next("produce", errors.KafkaTimeoutError("no answer"))
    assert produce(b"a\nb\n") == BrokerError.exit_code
    said = capsys.readouterr()
    assert said.out == f"0 records written to {TOPIC}, 2 without an answer\n"
    assert "in:1 to 2: the brokers have not answered in time for 2 records, which may have been written" in said.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--key-separator", ""], "--key-separator is empty"),
        (["--json", "--key-separator", "="], "--json and --key-separator"),
        (["--json", "--tombstones"], "--json and --tombstones"),
        (["--tombstones"], "--tombstones needs keys"),
        (["--header", "x"], "--header x"),
        (["--set", "produce.mode=synchronous"], "no such setting"),
        (["--set", "linger_ms=many"], "produce.linger_ms = 'many'"),
        (["--partitioner", "wheel"], "is not a partitioner"),
        (["--acks", "1", "--set", "idempotence=true"], "enable_idempotence cannot be combined with acks=1"),
    ],
)
@pytest.mark.fake_only("options are looked at before any broker is")
def test_options_that_make_no_sense_are_refused_before_anything_is_made(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str], options: list[str], why: str
) -> None:
    assert produce(b"a\n", *options) == ConfigError.exit_code
    assert why in capsys.readouterr().err
    assert list(bare_kafka.topic_names()) == []


def test_a_partition_that_the_topic_does_not_have_is_refused_at_once(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    assert produce(b"a\n", "--partition", "1") == ConfigError.exit_code
    assert list(bare_kafka.topic_names()) == []
    bare_kafka.create_topic(TOPIC, 2)
    assert produce(b"a\n", "--partition", "2") == ConfigError.exit_code
    assert f"--partition 2: {TOPIC} has 2 partitions, numbered from 0. Try: a part" in capsys.readouterr().err
    assert produce(b"a\n", "--partition", "1") == 0


@pytest.mark.parametrize("options", [["--compression", "gzip"], ["--partitioner", "sticky", "--acks", "1"]])
def test_how_records_are_sent_may_be_chosen(produce: Produce, bare_kafka: Kafka, options: list[str]) -> None:
    """Codec, partitioner, acks and other settings of KafkaBolt."""
    assert produce(b"a\nb\n", *options, "--set", "produce.linger_ms=0") == 0
    assert sorted(value or b"" for _, value in written(bare_kafka)) == [b"a", b"b"]


def test_with_acks_0_nothing_is_said_to_be_written(
    produce: Produce, bare_kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """No broker answers, so the command does not say that it has the records."""
    bare_kafka.create_topic(TOPIC, 1)
    assert produce(b"a\nb\n", "--acks", "0") == 0
    assert capsys.readouterr().out.startswith(f"2 records sent to {TOPIC}; with acks=0, brokers do not confirm")


def test_a_file_that_cannot_be_read_is_named(bare_kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    for name, why in (("nowhere", "No such file or directory"), (".", "Is a directory")):
        assert main(["kafka", "produce", TOPIC, name, "--bootstrap", bare_kafka.bootstrap]) == 1
        assert f"{name} cannot be read: {why}" in capsys.readouterr().err
    assert TOPIC not in bare_kafka.topic_names()


# --- as a program ---

COMMAND = [sys.executable, "-m", "downspout", "kafka"]


def start(broker: EmbeddedKafka, *arguments: str, **given: Any) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *arguments, "--bootstrap", broker.bootstrap]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **{**pipes, **given})


@pytest.mark.broker
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_request_to_stop_writes_what_was_read(
    kafka_broker: EmbeddedKafka, topic_name: str, number: int, name: str
) -> None:
    """Whole lines are written while the next one is incomplete; then the signal ends it: no part of a line is sent."""
    follower = start(kafka_broker, "produce", topic_name)
    assert follower.stdin is not None
    follower.stdin.write(b"one\ntwo\nthr")
    follower.stdin.flush()

    def read() -> list[bytes] | None:
        reader = start(kafka_broker, "consume", topic_name, "--follow", "--max", "2")
        lines, _ = reader.communicate(timeout=PATIENCE_S)
        return None if reader.returncode else [line.split()[-1] for line in lines.splitlines()]

    assert eventually(read, otherwise="the topic is not there") == [b"one", b"two"]
    follower.send_signal(number)
    out, said = follower.communicate()
    assert follower.returncode == 128 + number
    assert out.decode() == f"2 records written to {topic_name}\n"
    assert said.decode().endswith(f"downspout: stopped by {name} after line 2\n")
