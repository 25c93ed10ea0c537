"""Chunks at bolts and spouts under pystorm's own ``run``; a Storm in memory ends the worker where ShellBolt would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import streamparse
from pystorm.bolt import BatchingBolt
from streamparse import Stream, TicklessBatchingBolt

from downspout.component import Bolt
from downspout.ledger import Origin
from downspout.origins import origins
from downspout.parse import ChunkBolt
from downspout.wire import CHUNKS, Encoder, MultilangComponent, pack, parse, unpack
from downspout.wire import json_messages as serializing
from tests.wire.storm_pipe import Sink, Source, frame, handshake, received, through_java

FIELDS = ["origin", "value"]
CONF = {CHUNKS: {"spout": ["default"], "bolt": ["default"]}}
SHUFFLE = {"type": "SHUFFLE"}
TICK = {"id": "-9", "comp": "__system", "stream": "__tick", "task": -1, "tuple": [1]}


def batch(*values: Any, first: int = 10) -> pa.RecordBatch:
    numbers = range(first, first + len(values))
    return pa.RecordBatch.from_arrays([origins("t", "", 0, numbers), pa.array(values, pa.string())], names=FIELDS)


def chunk(number: int, *values: Any, source: str = "spout", first: int = 10) -> bytes:
    tup = {
        "id": str(number),
        "comp": source,
        "stream": "default",
        "task": 1,
        "tuple": pack(batch(*values, first=first)),
    }
    return through_java(Encoder().encode(tup)) + b"\nend\n"


def record(number: int, value: Any) -> bytes:
    return frame(
        {"id": str(number), "comp": "spout", "stream": "default", "task": 1, "tuple": [["t", "", 0, 1, ""], value]}
    )


class ShellBolt:
    """What Storm does with the commands of a bolt; it raises where Storm's ShellBolt ends the worker."""

    def __init__(self, said: list[Any], given: set[str]) -> None:
        self.emits: list[Any] = []
        self.ends: list[tuple[str, str]] = []
        open_ids = set(given)
        for message in said:
            command = message["command"]
            if command in ("ack", "fail"):
                open_ids.remove(message["id"])  # KeyError: acked or failed a non-existent id
                self.ends.append((command, message["id"]))
            elif command == "emit":
                assert set(message["anchors"]) <= open_ids, "anchored onto after ack/fail"
                assert len(set(message["anchors"])) == len(message["anchors"])
                self.emits.append(message)
        self.left = open_ids


def run(
    cls: Any, directory: Path, *messages: bytes, targets: Any = None, conf: Any = None
) -> tuple[ShellBolt, list[Any]]:
    """Run a bolt on these messages; return what Storm made of what it said, and all that it said."""
    context = {
        "source->stream->fields": {"spout": {"default": FIELDS}, "stock": {"default": FIELDS}},
        "stream->outputfields": {"default": FIELDS},
        "stream->target->grouping": {"default": {"next": SHUFFLE} if targets is None else targets},
        "task->component": {"3": "bolt", "4": "next", "5": "next"},
    }
    script = [frame(handshake(directory, CONF if conf is None else conf, context, "bolt")), *messages]
    sink = Sink()
    component = cls(Source(lambda: script.pop(0) if script else None), sink, rdb_signal=None)
    with pytest.raises(SystemExit):
        component.run()
    said = [message for message in sink.said if "pid" not in message and message.get("command") != "log"]
    ids = {parse(message[:-5])["id"] for message in messages}
    return ShellBolt(said, ids), said


def rows(emits: list[Any]) -> list[Any]:
    found: list[Any] = []
    for message in emits:
        values = message["tuple"]
        if str(values[0]).startswith("\0chunk:"):
            found += [(row["origin"]["offset"], row["value"]) for row in unpack(values).to_pylist()]
        else:
            values = received(Encoder().encode(values))
            found.append((values[0][3], values[1]))
    return found


class Upper(ChunkBolt):
    outputs: ClassVar = FIELDS
    chunks: ClassVar[list[Any]] = []

    def process_chunk(self, tup: Any) -> None:
        self.chunks.append(tup)
        values = [value and value.upper() for value in tup.values.column("value").to_pylist()]
        self.emit(
            pa.RecordBatch.from_arrays([tup.values.column("origin"), pa.array(values, pa.string())], names=FIELDS)
        )


class Records(Bolt):
    """Emits each record that it is given, anchored; does with it what the test says."""

    outputs: ClassVar = FIELDS
    seen: ClassVar[list[Any]]
    work: ClassVar[Callable[[Any, Any], Any]] = lambda bolt, tup: None

    def process(self, tup: Any) -> None:
        self.seen.append(tup)
        self.emit(list(tup.values))
        type(self).work(self, tup)


def records(work: Callable[[Any, Any], Any] = lambda bolt, tup: None, **attributes: Any) -> Any:
    return type("Records", (Records,), {"seen": [], "work": work, **attributes})


def test_a_bolt_with_process_chunk_gets_the_chunk(tmp_path: Path) -> None:
    """It gets a RecordBatch with origins, emits one anchored to it, and one ack goes to Storm."""
    Upper.chunks.clear()
    storm, _ = run(Upper, tmp_path, chunk(1, "a", None), record(2, "b"))
    assert [tup.values.num_rows for tup in Upper.chunks] == [2, 1]
    assert (Upper.chunks[0].id, Upper.chunks[0].component, Upper.chunks[0].stream) == ("1", "spout", "default")
    assert rows(storm.emits) == [(10, "A"), (11, None), (1, "B")]
    assert [message["anchors"] for message in storm.emits] == [["1"], ["2"]]
    assert [len(message["tuple"]) for message in storm.emits] == [2, 2]
    assert storm.ends == [("ack", "1"), ("ack", "2")]


def test_a_bolt_for_records_gets_the_records(tmp_path: Path) -> None:
    """Each is a tuple of its own with its origin; what it emits is anchored to the chunk, which is acked at the end."""
    cls = records()
    storm, said = run(cls, tmp_path, chunk(1, "a", "b", None), record(2, "c"))
    assert [tuple(tup.values)[1] for tup in cls.seen] == ["a", "b", None, "c"]
    assert cls.seen[1].values.origin == Origin("t", "", 0, 11)
    assert len({tup.id for tup in cls.seen}) == 4
    assert [message["anchors"] for message in storm.emits] == [["1"], ["1"], ["1"], ["2"]]
    assert [message["command"] for message in said] == ["emit"] * 3 + ["ack", "emit", "ack"]


def fail_second(bolt: Any, tup: Any) -> None:
    """Fail one record, and let pystorm ack it as well."""
    if tup.values.value == "bad":
        bolt.fail(tup)


def raise_second(bolt: Any, tup: Any) -> None:
    if tup.values.value == "bad":
        raise ValueError("bad")


@pytest.mark.parametrize("work", [fail_second, raise_second])
def test_one_record_that_fails_fails_the_chunk_once(tmp_path: Path, work: Any) -> None:
    """Storm hears one fail; what was not handed out yet of that chunk is dropped, and the next tuple is processed."""
    cls = records(work)
    storm, _ = run(cls, tmp_path, chunk(1, "a", "bad", "c"), record(2, "d"))
    assert storm.ends == [("fail", "1"), ("ack", "2")]
    assert [tup.values.value for tup in cls.seen] == ["a", "bad", "d"]


def test_a_chunk_whose_records_are_acked_late_and_twice(tmp_path: Path) -> None:
    """Held records complete the chunk when the last is acked; second acks and late emits change nothing."""
    held: list[Any] = []

    def hold(bolt: Any, tup: Any) -> None:
        held.append(tup)
        if tup.id == "2":
            for each in [*held, *held[:-1]]:
                bolt.ack(each)
            bolt.emit(list(tup.values), anchors=held[:-1])

    storm, _ = run(records(hold, auto_ack=False), tmp_path, chunk(1, "a", "b"), record(2, "c"))
    assert storm.ends == [("ack", "1"), ("ack", "2")]
    assert storm.emits[-1]["anchors"] == []


def test_a_record_that_nobody_acks_leaves_the_chunk_open(tmp_path: Path) -> None:
    """A bolt that forgets one record of a chunk has Storm time the chunk out, like any tuple."""

    def forget(bolt: Any, tup: Any) -> None:
        if tup.values.value != "forgotten":
            bolt.ack(tup)

    storm, _ = run(records(forget, auto_ack=False), tmp_path, chunk(1, "a", "forgotten", "c"))
    assert (storm.ends, storm.left) == ([], {"1"})


class Batching(MultilangComponent, BatchingBolt):
    """Emits how many records came between two ticks."""

    outputs: ClassVar = FIELDS
    ticks_between_batches = 0
    exit_on_exception = False

    def group_key(self, tup: Any) -> Any:
        return tup.values.value[0]

    def process_batch(self, key: Any, tups: Any) -> None:
        if key == "x":
            raise ValueError(key)
        self.emit([None, f"{key}{len(tups)}"])

    def process_chunk(self, tup: Any) -> None:
        raise AssertionError


def test_a_batching_bolt_gets_records(tmp_path: Path) -> None:
    """Its batches cut across chunks; each chunk is acked once all batches with records of it are."""
    storm, _ = run(Batching, tmp_path, chunk(1, "a1", "b1"), chunk(2, "a2", "b2", "b3"), frame(TICK))
    assert [message["tuple"][1] for message in storm.emits] == ["a2", "b3"]
    assert [message["anchors"] for message in storm.emits] == [["1", "2"], ["1", "2"]]
    assert storm.ends[0] == ("ack", "-9")
    assert sorted(storm.ends[1:]) == [("ack", "1"), ("ack", "2")]


def test_a_batch_that_raises_fails_its_chunks(tmp_path: Path) -> None:
    storm, _ = run(Batching, tmp_path, chunk(1, "a1", "x1"), chunk(2, "x2", "x3"), chunk(3, "x4"), frame(TICK))
    assert sorted(storm.ends) == [("ack", "-9"), ("fail", "1"), ("fail", "2"), ("fail", "3")]


class Tickless(MultilangComponent, TicklessBatchingBolt):
    outputs: ClassVar = FIELDS
    secs_between_batches = 0.01

    def process_batch(self, key: Any, tups: Any) -> None:
        pass


def test_a_thread_may_ack_while_records_are_handed_out(tmp_path: Path) -> None:
    """A TicklessBatchingBolt acks from its own thread what the main thread reads; each chunk is acked once."""
    values = [f"value {n}" for n in range(3_000)]
    script = [chunk(number, *values) for number in range(1, 6)]
    storm, _ = run(Tickless, tmp_path, *script)
    assert len(storm.ends) + len(storm.left) == 5
    assert {command for command, _ in storm.ends} <= {"ack"}


def test_rows_go_one_by_one_where_storm_must_look_into_them(tmp_path: Path) -> None:
    """For a fields grouping with several tasks, or a reader that is not on our wire, each row is a tuple."""
    fields = {"next": {"type": "FIELDS", "fields": ["value"]}}
    for how in (
        {"targets": fields},
        {"conf": {CHUNKS: {"spout": ["default"]}}},
        {"targets": {"next": {"type": "CUSTOM"}}},
    ):
        storm, _ = run(Upper, tmp_path, chunk(1, "a", "b"), **how)
        assert [(message["tuple"], message["anchors"]) for message in storm.emits] == [
            ([["t", "", 0, 10, ""], "A"], ["1"]),
            ([["t", "", 0, 11, ""], "B"], ["1"]),
        ]
        assert storm.ends == [("ack", "1")]


def test_an_empty_chunk_is_acked_and_shown_to_nobody(tmp_path: Path) -> None:
    """As in the local engine, nobody gets a chunk without records, and nothing waits for it."""
    Upper.chunks.clear()
    storm, _ = run(Upper, tmp_path, chunk(1))
    assert (Upper.chunks, storm.emits, storm.ends) == ([], [], [("ack", "1")])


def test_a_bolt_may_emit_an_empty_chunk(tmp_path: Path) -> None:
    cls = type("Filter", (Upper,), {"process_chunk": lambda bolt, tup: bolt.emit(tup.values.slice(0, 0))})
    storm, _ = run(cls, tmp_path, chunk(1, "a"))
    assert (storm.emits, storm.ends) == ([], [("ack", "1")])


def test_columns_that_are_not_the_streams_fail_the_chunk(tmp_path: Path) -> None:
    """An emit with other columns than the stream's fields is an error that names both."""
    cls = type("Other", (Upper,), {"process_chunk": lambda bolt, tup: bolt.emit(tup.values.select(["value"]))})
    storm, said = run(cls, tmp_path, chunk(1, "a"))
    assert storm.ends == [("fail", "1")]
    (error,) = [message["msg"] for message in said if message["command"] == "error"]
    assert "has a chunk with the columns value; the stream's fields are origin, value" in error


def test_a_text_of_a_stock_component_is_no_chunk(tmp_path: Path) -> None:
    cls = records()
    text = pack(batch("a"))[0].text
    sent = frame({"id": "1", "comp": "stock", "stream": "default", "task": 1, "tuple": [text, None]})
    run(cls, tmp_path, sent)
    assert [tuple(tup.values) for tup in cls.seen] == [(text, None)]


def test_a_chunk_that_cannot_be_read_fails(tmp_path: Path) -> None:
    """What is broken, or of another version of Arrow, fails with an error that says from whom it is."""
    cls = records()
    broken = frame({"id": "1", "comp": "spout", "stream": "default", "task": 1, "tuple": ["\0chunk:AAAA", None]})
    storm, said = run(cls, tmp_path, broken, record(2, "b"))
    assert storm.ends == [("fail", "1"), ("ack", "2")]
    assert "a chunk of spout cannot be read" in next(
        message["msg"] for message in said if message["command"] == "error"
    )


def test_storm_hears_of_a_bolt_that_is_long_at_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat is read while a chunk's records are handed out, so a sync tells Storm that the bolt lives."""
    now = [0.0]
    monkeypatch.setattr(serializing.time, "monotonic", lambda: now[0])

    def take_long(bolt: Any, tup: Any) -> None:
        now[0] += 0.6

    _, said = run(records(take_long), tmp_path, chunk(1, *["a"] * 10))
    assert [message["command"] for message in said].count("sync") == 4


# --- spouts ---


class Chunks(MultilangComponent, streamparse.Spout):
    """Emits one chunk, and notes what it hears."""

    outputs: ClassVar = [Stream(FIELDS)]
    heard: ClassVar[list[Any]]

    def next_tuple(self) -> None:
        self.emit(batch("a", "b", "c"), tup_id="whole")

    def ack(self, tup_id: Any) -> None:
        self.heard.append(("ack", tup_id))

    def fail(self, tup_id: Any) -> None:
        self.heard.append(("fail", tup_id))


def spout(directory: Path, answers: Callable[[list[Any]], list[str]], targets: Any) -> tuple[list[Any], list[Any]]:
    """Let a spout emit a chunk twice, and answer; return what Storm heard in between the syncs, and the spout."""
    context = {
        "stream->outputfields": {"default": FIELDS},
        "stream->target->grouping": {"default": {"next": targets}},
        "task->component": {"3": "bolt", "4": "next", "5": "next"},
    }
    hello = {**handshake(directory, CONF, {}, "bolt")}
    hello["context"] |= context
    script = [frame(hello), frame({"command": "next"}), frame({"command": "next"})]
    sink, asked = Sink(), [False]

    def more() -> bytes | None:
        if not script and not asked[0]:
            asked[0] = True
            script.extend(frame(json_of(answer)) for answer in answers([m for m in sink.said if "tuple" in m]))
        return script.pop(0) if script else None

    cls = type("Chunks", (Chunks,), {"heard": []})
    component = cls(Source(more), sink, rdb_signal=None)
    with pytest.raises(SystemExit):
        component.run()
    return [message for message in sink.said if message.get("command") in ("emit", "sync")], cls.heard


def json_of(answer: str) -> dict[str, str]:
    command, _, tup_id = answer.partition(" ")
    return {"command": command, "id": tup_id}


def test_a_spouts_chunk_goes_whole(tmp_path: Path) -> None:
    """One tuple with the spout's own id, whose answer is the spout's."""
    said, heard = spout(tmp_path, lambda emits: [f"ack {emits[0]['id']}", f"fail {emits[1]['id']}"], SHUFFLE)
    assert [message.get("id") for message in said if message["command"] == "emit"] == ["whole", "whole"]
    assert heard == [("ack", "whole"), ("fail", "whole")]


def test_a_spouts_chunk_in_records_is_answered_once(tmp_path: Path) -> None:
    """Its records share an id that no other emit has; one ack is heard when all are acked, one fail when one fails."""

    def answers(emits: list[Any]) -> list[str]:
        ids = [message["id"] for message in emits]
        assert len(ids) == 6
        assert len(set(ids)) == 2
        first, second = ids[0], ids[-1]
        return [f"ack {first}", f"ack {second}", f"fail {first}", f"ack {first}", f"ack {second}", f"ack {second}"]

    said, heard = spout(tmp_path, answers, {"type": "FIELDS", "fields": ["value"]})
    assert heard == [("fail", "whole"), ("ack", "whole")]
    assert [message["command"] for message in said].count("sync") == 8  # one for each command
