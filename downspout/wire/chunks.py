"""A chunk on Storm's pipe: packed as one tuple, or split into records by the reader or the emitter.

**Packed**: the first field holds the whole record batch as one text, the other fields are null. The text is a mark and,
in base64, an Arrow IPC stream of the batch, compressed with LZ4 from :data:`COMPRESSED_BYTES` on. Types, nulls,
dictionaries and the origin struct survive. A list of values per field would lose the types, be four times as long, and
make Java create and Kryo write an object per value. A text per field would repeat the schema, and no reader uses one
column alone: only components on this wire receive chunks (``downspout.wire.side_streams``). No other value can be
mistaken for a chunk: components on this wire mark every text that begins with NUL, and no other component is expected
to send chunks.

**Split by the reader**: a bolt that only takes records receives the chunk as a series of tuples; each id names the row
and the chunk. The bolt acks, fails and anchors to them as to any other. Storm only sees the chunk: an ack when every
record is acked, a fail when the first one fails. Records of a failed chunk that were not handed out yet are dropped,
since the whole chunk will be replayed. Storm's ShellBolt ends the worker if it gets two answers for one id, or an
anchor that is already settled; so late ones are dropped here, as in the local engine. A chunk is registered as open
before its first record is handed out, and only open chunks can be settled; so a thread that acks
(TicklessBatchingBolt's) never races with the registration.

**Split by the emitter**: if a spout's chunk cannot travel whole, its records are emitted with one shared id. Each emit
gets a new shared id, because answers to an earlier emit of the chunk must not count for a later one. The spout receives
one answer, with its own id.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from downspout.wire.values import MARK, Packed

if TYPE_CHECKING:
    import pyarrow as pa
import itertools

CHUNK = f"{MARK}chunk:"
COMPRESSED_BYTES = 16 * 1024  # Below that the codec costs more than it saves


@cache
def _write_options(compressed: bool) -> Any:
    import pyarrow as pa  # most components never receive a chunk

    if compressed and pa.Codec.is_available("lz4"):
        return pa.ipc.IpcWriteOptions(use_threads=False, compression="lz4")
    return pa.ipc.IpcWriteOptions(use_threads=False)


def pack(batch: pa.RecordBatch) -> list[Any]:
    """Return the tuple that carries a chunk, one value per column. O(bytes).

    >>> import pyarrow as pa
    >>> values = pack(pa.RecordBatch.from_pydict({"word": ["dog", None], "letters": [3, 0]}))
    >>> is_packed([values[0].text, *values[1:]])
    True

    Raises:
        pyarrow.ArrowException: Arrow cannot write one of its types.
    """
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = _write_options(batch.nbytes >= COMPRESSED_BYTES)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    text = b2a_base64(sink.getvalue(), newline=False).decode("ascii")
    return [Packed(CHUNK + text), *[None] * (batch.num_columns - 1)]


def is_packed(values: Any) -> bool:
    """Return whether these values, with their marks still in place, are a packed chunk."""
    return type(values) is list and bool(values) and type(values[0]) is str and values[0].startswith(CHUNK)


def unpack(values: Sequence[Any]) -> pa.RecordBatch:
    """Return the chunk. Raises ValueError: it is unreadable (``pyarrow.ArrowInvalid`` is a ValueError)."""
    import pyarrow as pa

    with pa.ipc.open_stream(a2b_base64(values[0][len(CHUNK) :])) as reader:
        return reader.read_next_batch()


PART = f"{MARK}part:"  # Storm's ids are numbers


class ChunkSplitter:
    """Splits a bolt's chunks into records and joins the answers to them."""

    def __init__(self) -> None:
        self._open: dict[str, bytearray] = {}  # by id: of each record, whether its ack is outstanding
        self._left: dict[str, int] = {}
        self._coming: Iterator[dict[str, Any]] = iter(())

    def take_apart(self, message: dict[str, Any], rows: Iterable[tuple[Any, ...]], count: int) -> None:
        """Queue the records of a chunk for :meth:`next`."""
        whole = message["id"]
        self._left[whole] = count
        self._open[whole] = bytearray(b"\1" * count)
        self._coming = self._messages(message, whole, rows)

    def _messages(self, message: dict[str, Any], whole: str, rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for row, values in enumerate(rows):
            if row and whole not in self._open:
                return  # it has failed
            yield {**message, "id": f"{PART}{row}:{whole}", "tuple": list(values)}

    def next(self) -> dict[str, Any] | None:
        """Return the next record as Storm's message; None if there is none."""
        return next(self._coming, None)

    def settle(self, part: str, failed: bool) -> str | None:
        """Take the answer to one record; return the chunk's id if it settles the chunk.

        >>> parts = ChunkSplitter()
        >>> parts.take_apart({"id": "17"}, [("a",), ("b",)], 2)
        >>> first, second = parts.next()["id"], parts.next()["id"]
        >>> parts.settle(first, failed=False), parts.settle(first, failed=False), parts.settle(second, failed=False)
        (None, None, '17')
        """
        row, whole = _split(part)
        waits = self._open.get(whole)
        if waits is None:
            return None
        if not failed:
            self._left[whole] -= waits[int(row)]
            waits[int(row)] = 0
            if self._left[whole]:
                return None
        del self._open[whole], self._left[whole]
        return whole

    def anchors(self, given: Iterable[Any]) -> list[Any]:
        """Translate anchors into Storm's ids: each chunk once, settled chunks left out."""
        found: dict[Any, None] = {}
        for anchor in given:
            if not is_part(anchor):
                found[anchor] = None
            elif (whole := _split(anchor)[1]) in self._open:
                found[whole] = None
        return list(found)


def is_part(tup_id: Any) -> bool:
    """Return whether an id belongs to a record of a chunk."""
    return type(tup_id) is str and tup_id.startswith(PART)


def _split(part: str) -> tuple[str, str]:
    """Return the row and the chunk's id."""
    row, _, whole = part.removeprefix(PART).partition(":")
    return row, whole


class SharedIds:
    """Shared ids of a spout's chunks that were emitted as records."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._out: dict[str, tuple[Any, int]] = {}

    def open(self, tup_id: Any, count: int) -> str:
        """Return a new shared id for the records of a chunk."""
        share = f"{MARK}share:{next(self._numbers)}"
        self._out[share] = (tup_id, count)
        return share

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the message for the spout, or None if the ack or fail does not settle the chunk.

        >>> shares = SharedIds()
        >>> share = shares.open("a chunk", 2)
        >>> shares.answer({"command": "ack", "id": share}), shares.answer({"command": "ack", "id": share})
        (None, {'command': 'ack', 'id': 'a chunk'})
        """
        share = message["id"]
        if share not in self._out:
            return None  # another of its records has failed
        tup_id, left = self._out[share]
        if message["command"] == "ack" and left > 1:
            self._out[share] = (tup_id, left - 1)
            return None
        del self._out[share]
        return {**message, "id": tup_id}


def is_share(message: Any) -> bool:
    """Return whether a message answers to records that share an id."""
    return (
        type(message) is dict
        and message.get("command") in ("ack", "fail")
        and type(message.get("id")) is str
        and message["id"].startswith(f"{MARK}share:")
    )
