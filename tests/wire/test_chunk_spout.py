"""KafkaSpout in chunk mode on Storm's pipe: ranges out, acks and fails in, commits as in the local engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from downspout.ledger import Origin
from downspout.origins import each
from downspout.testing import FakeKafka
from downspout.wire import CHUNKS, is_packed, unpack
from spouts.kafka import KafkaSpout
from tests.wire.storm_pipe import Sink, Source, frame, handshake

pytestmark = pytest.mark.fake_only("the other end of the pipe is in memory, and answers at once")

TOPIC, GROUP, RECORDS = "orders", "readers", 8
BLIND = {"type": "SHUFFLE"}
BY_VALUE = {"type": "FIELDS", "fields": ["value"]}


class Play:
    """Storm's side, one command after the other, in memory."""

    def __init__(self, kafka: FakeKafka, directory: Path, grouping: Any, **settings: Any) -> None:
        self._sink = Sink()
        self._script: list[Any] = []
        self._spout = KafkaSpout(Source(lambda: next(self._messages, None)), self._sink, rdb_signal=None)
        self._spout.clock = kafka.clock
        conf = {
            "kafka.bootstrap": kafka.bootstrap,
            "kafka.group": GROUP,
            "kafka.topics": [TOPIC],
            "kafka.fields": ["origin", "value"],
            "kafka.emit": "chunk",
            "kafka.value_format": "bytes",
            CHUNKS: {"reader": ["default"]},
            **{f"kafka.{name}": value for name, value in settings.items()},
        }
        context = {
            "stream->outputfields": {"default": ["origin", "value"]},
            "stream->target->grouping": {"default": {"next": grouping}},
        }
        self._hello = frame(handshake(directory, conf, context))
        self._hello = self._hello.replace(
            b'"task->component": {"3"', b'"task->component": {"5": "next", "6": "next", "3"'
        )
        self._steps: Iterator[bytes]
        self.emits: list[Any] = []

    def run(self, steps: Any) -> None:
        """Send what ``steps`` yields: commands, as pairs; it may look at ``emits`` in between."""

        def messages() -> Iterator[bytes]:
            yield self._hello
            for command, tup_id in steps(self):
                yield frame({"command": command, "id": tup_id})
                self.emits = [message for message in self._sink.said if message.get("command") == "emit"]

        self._messages = messages()
        with pytest.raises(SystemExit):
            self._spout.run()
        self.emits = [message for message in self._sink.said if message.get("command") == "emit"]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A topic of eight records, some of them no text."""
    with FakeKafka("wire-chunks") as fake:
        fake.create_topic(TOPIC, 1)
        for number in range(RECORDS):
            fake.produce(TOPIC, b"\xff%d" % number, partition=0)
        yield fake


def committed(kafka: FakeKafka) -> Any:
    return {tp.partition: meta.offset for tp, meta in kafka.committed(GROUP).items()}.get(0)


def span(message: Any) -> tuple[int, int]:
    """Return which offsets a chunk is of, as its id says."""
    start, _, end = message["id"].rpartition("/")[2].partition("-")
    return int(start), int(end)


def test_ranges_leave_as_chunks_and_are_committed(kafka: FakeKafka, tmp_path: Path) -> None:
    """Each emit is one chunk of a range, with origins and exact bytes; its ack commits the whole range."""
    play = Play(kafka, tmp_path, BLIND, chunk_records_max=3)

    def steps(play: Play) -> Iterator[tuple[str, str]]:
        for _ in range(4):
            yield "next", ""
        for message in play.emits[:2]:
            yield "ack", message["id"]

    play.run(steps)
    assert [span(message) for message in play.emits] == [(0, 3), (3, 6), (6, 8)]
    assert all(is_packed(message["tuple"]) for message in play.emits)
    first = unpack(play.emits[0]["tuple"])
    assert first.column("value").to_pylist() == [b"\xff0", b"\xff1", b"\xff2"]
    assert [origin.offset for origin in each(first.column("origin"))] == [0, 1, 2]
    assert next(each(first.column("origin")))._replace(topic_id="") == Origin(TOPIC, "", 0, 0)
    assert committed(kafka) == 6  # before the end of the process


def test_a_chunk_that_fails_comes_back_in_halves(kafka: FakeKafka, tmp_path: Path) -> None:
    """Storm's fail, which has no reason, splits the range until the culprit is alone; all others are acked."""
    play = Play(kafka, tmp_path, BLIND, chunk_records_max=RECORDS, retries_max=1)

    def steps(play: Play) -> Iterator[tuple[str, str]]:
        answered = 0
        for _ in range(80):
            yield "next", ""
            for message in play.emits[answered:]:
                start, end = span(message)
                yield ("fail" if start <= 5 < end else "ack"), message["id"]
            answered = len(play.emits)
            kafka.clock.sleep(1)

    play.run(steps)
    spans = [span(message) for message in play.emits]
    assert spans[0] == (0, RECORDS)
    assert [each for each in spans if each == (5, 6)] == [(5, 6)] * 2  # it stood alone, and had its retry
    assert committed(kafka) == RECORDS


def test_readers_that_need_records_get_records(kafka: FakeKafka, tmp_path: Path) -> None:
    """With a fields grouping over several tasks the spout is in record mode: Storm sees each value, and acks each."""
    play = Play(kafka, tmp_path, BY_VALUE)

    def steps(play: Play) -> Iterator[tuple[str, str]]:
        for _ in range(4):
            yield "next", ""
        for message in play.emits:
            if not message["id"].endswith("/2"):
                yield "ack", message["id"]

    play.run(steps)
    assert [message["tuple"][0][3] for message in play.emits] == list(range(RECORDS))
    assert committed(kafka) == 2
