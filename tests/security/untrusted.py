"""The parsers of untrusted data, with their inputs for the tests and for ``make fuzz``."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecordsBuilder

from downspout.dead_letters import PREFIX as LETTER
from downspout.dead_letters import (
    PlainRecord,
    claim,
    group_dead_letters,
    identity_headers,
    identity_of,
    parse_dead_letter,
)
from downspout.dead_letters.claims import PREFIX as REPLAY
from downspout.errors import ConfigError
from downspout.kafka import FastPathMiss, batches
from downspout.kafka import decode as decode_batches
from downspout.kafka.columns.batch import WireBatch
from downspout.ledger import Isolation, Origin, author_for_another_topic, decode, encode
from downspout.sink import COMPACT, FENCE, REBUILD, Coverage, DataFile, DirectoryState, Entry, Stream, to_document
from downspout.sink.log_entry import from_document
from downspout.spark import from_json, parse_options
from downspout.spark.source_offsets import parse_skips

BASE = 1000


@dataclass(frozen=True)
class Parser:
    """A parser of untrusted input.

    Attributes:
        parse: takes the input.
        refuses: the one kind of error that it may raise.
        samples: valid inputs.
        resealed: what makes an input that was changed inside pass its outer checks; None: it has none.
    """

    parse: Callable[[bytes], Any]
    refuses: tuple[type[Exception], ...]
    samples: tuple[bytes, ...]
    resealed: Callable[[Any], bytes] | None = None


def _coverage() -> Coverage:
    coverage = Coverage()
    coverage.add(Stream("orders", "id", 0, "split.0"), [1, 2, 5])
    coverage.add(Stream("orders", "id", 1, ""), [2**62])
    return coverage


def entries() -> Iterator[Entry]:
    files = (DataFile("c=ü%2F/part-w-0.parquet", 3, 9),)
    known: dict[str, Any] = {"coverage": _coverage(), "component": "sink", "inputs": {"parse": "", "other": "other.0"}}
    head = ("w", "shop", ("n:int64", "/c"), 5)
    yield Entry(0, *head, files, **known)
    yield Entry(1, *head, files, component="sink", kind=COMPACT, removed=("c=ü%2F/part-w-0.parquet",), gone_before=1)
    yield Entry(2, *head, component="sink", kind=FENCE, fenced=("w", "v"))
    yield Entry(3, *head, component="sink", kind=REBUILD, rebuild=1)


def checkpoint() -> bytes:
    history = DirectoryState()
    for entry in entries():
        history.take(entry)
    return history.to_bytes()


def _restore(content: bytes) -> None:
    DirectoryState().restore(content)


def _sealed(document: Any) -> bytes:
    return to_document(document) if isinstance(document, dict) else json.dumps(document).encode()


def _metadata(content: bytes) -> None:
    try:
        text = content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
    told = decode(BASE, text, topic_id="id")
    if told.done:
        again = encode(
            BASE, topology_id=told.topology_id, task=told.task, topic_id="id", done=told.done,
            failures=told.failures.items(), isolation=told.isolation, bytes_max=8 * len(text),
        )  # fmt: skip
        assert again == text or decode(BASE, again, topic_id="id") == told  # another zlib may have packed it
    author_for_another_topic(BASE, text, topic_id="other")


def headers_of(content: bytes) -> list[tuple[str, Any]]:
    """Return headers from bytes: a line each, as name=value; a value of one zero byte is null."""
    headers = []
    for line in content.split(b"\n"):
        name, _, value = line.partition(b"=")
        headers.append((name.decode("utf-8", "replace"), None if value == b"\0" else value))
    return headers


def _letter(content: bytes) -> None:
    headers = headers_of(content)
    record = PlainRecord("letters", 0, 5, -1, None, content, headers)
    letter = parse_dead_letter(record)
    stands_for = claim(headers, "orders", "id", 0, 10**9)
    assert stands_for is None or 0 <= stands_for.offset < 10**18
    origin = identity_of(letter)
    assert origin is None or (origin.partition >= 0 and origin.offset >= 0)
    assert len(group_dead_letters([letter, letter])) == 1


def _lines(headers: Any) -> bytes:
    return b"\n".join(name.encode() + b"=" + value for name, value in headers)


def _letters() -> Iterator[bytes]:
    told = {"topic": b"orders", "topic.id": b"id", "partition": b"0", "offset": b"7", "attempts": b"3"}
    told |= {"first.failure.ms": b"1", "last.failure.ms": b"2", "kind": b"exception", "task": b"4"}
    told |= {"component": b"parse", "exception.class": b"KeyError", "exception.message": b"x"}
    own = [(LETTER + name, value) for name, value in told.items()]
    yield _lines(own)
    yield _lines([*identity_headers(Origin("orders", "A" * 22, 0, 7), "orders"), *own])
    yield _lines([(REPLAY + "topic", b"orders"), ("own", b"\xff")])


def _offsets(content: bytes) -> None:
    text = content.decode("utf-8", "replace")
    head = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    for name in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "skipOffsets"):
        options = {**head, name: text}
        try:
            parse_options(options, streaming=False)
        except ConfigError as error:
            _is_short(error)
    found = parse_skips(text)
    assert all(0 <= start < end < 2**63 for skipped in found.ranges.values() for start, end in skipped)


def _json_offsets(content: bytes) -> None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return
    assert all(0 <= offset < 2**63 and 0 <= tp.partition < 2**31 for tp, offset in from_json(value).items())


def _batches(content: bytes) -> None:
    for batch in batches(content):
        if not isinstance(batch, WireBatch):
            continue  # older formats are the client's business
        found = decode_batches("t", 0, [batch], [batch.records()])
        assert len(found) == batch.records_count
        for array in (found.keys, found.values, found.headers()):
            array.validate(full=True)
        assert sorted(set(found.offsets.tolist())) == found.offsets.tolist()
        assert len(list(found)) == len(found)


def _fetched() -> Iterator[bytes]:
    record = (1_700_000_000_000, b"key", b"value" * 30, [("name", b"x"), ("é", None)])
    for codec in (0, 1, 4):
        builder = MemoryRecordsBuilder(2, codec, 1 << 20)
        for number in range(3):
            builder.append(record[0] + number, *record[1:])
        builder.append(5, None, None, [])
        builder.close()
        yield bytes(builder.buffer())


OURS = encode(
    BASE, topology_id="shop-1", task=3, topic_id="id", done=[(1001, 1004), (1010, 1011)], failures=[(1000, 2)],
    isolation=Isolation(2, 1, 1400, 1700, 1005),
)  # fmt: skip
JAVAS = '{"topologyId":"wc-1-1","taskId":3,"threadName":"Thread-14"}'
OFFSETS = (b'{"orders":{"0":5,"1":-2}}', b'{"t":{"id":"x","0":[[5,9],[12,13]]}}', b'{"t":{"0":23}}')

PARSERS: dict[str, Parser] = {
    "commit metadata": Parser(_metadata, (), (OURS.encode(), JAVAS.encode())),
    "dead letter": Parser(_letter, (), tuple(_letters())),
    "log entry": Parser(Entry.from_bytes, (ValueError,), tuple(e.to_bytes() for e in entries()), _sealed),
    "checkpoint of the log": Parser(_restore, (ValueError,), (checkpoint(),), _sealed),
    "offsets in Spark's options": Parser(_offsets, (ConfigError,), OFFSETS),
    "offsets in a checkpoint": Parser(_json_offsets, (ConfigError,), OFFSETS),
    "record batches": Parser(_batches, (FastPathMiss, CorruptRecordError, struct.error), tuple(_fetched())),
}


def _is_short(error: Exception) -> None:
    assert len(str(error)) < 2000, "the message holds the input"


def document_of(sample: bytes) -> Any:
    """Return a sealed sample as JSON values, without its checksum."""
    return from_document(sample)


def survives(parser: Parser, content: bytes) -> bool:
    """Feed a parser; return whether it took the input. Any error but its own kind goes on."""
    try:
        parser.parse(content)
    except parser.refuses as error:
        _is_short(error)
        return False
    return True
