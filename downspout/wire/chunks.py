"""A chunk on Storm's pipe: packed as one tuple, or split into records on the reader's or the emitter's side.

**Packed**: the whole record batch is one text in the tuple's first field; the other fields are null. The text is a mark
and, in base64, an Arrow IPC stream of the batch, compressed with LZ4 from :data:`COMPRESSED_BYTES` on. Types, nulls,
dictionaries and the origin struct arrive as they left. Why not a list of values per field? Java would make an object of
each value and Kryo would write each one, the types would be lost, and it is four times as long. Why not a text per
field? Only components on our wire are sent chunks (``downspout.wire.side_streams``), none of them uses one column
alone, and each would cost a schema of its own. No other value can be mistaken for a chunk: components on our wire mark
all their texts that begin with NUL, and from other components no chunk is expected.

**Split by the reader**: a bolt that knows only records sees a chunk as a row of tuples, with ids that name the row and
the chunk. It acks, fails and anchors to them as to any other; Storm hears of the chunk alone: an ack when each of its
records has been acked, a fail when the first has failed. Records of a failed chunk that were not handed out yet are
dropped, since the whole chunk comes again. Storm's ShellBolt ends the worker when it gets two answers for one id, or
an anchor that was settled; so late ones are dropped here, as in the local engine. The reader opens a chunk before it
hands the first record out, and only what is open is settled. So a thread that acks (TicklessBatchingBolt's) finds it
there, or settles nothing.

**Split by the emitter**: a spout's chunk that cannot travel whole leaves as records under an id that they share, and
that is used once: the answers to an earlier emit of the same chunk must not count for a later one. The spout hears of
its own id, once.
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
    import pyarrow as pa  # most components see no chunk, and need none

    if compressed and pa.Codec.is_available("lz4"):
        return pa.ipc.IpcWriteOptions(use_threads=False, compression="lz4")
    return pa.ipc.IpcWriteOptions(use_threads=False)


def pack(batch: pa.RecordBatch) -> list[Any]:
    """Return the values of the tuple that a chunk travels as, one per column. O(bytes).

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
    """Return whether these values, with their marks as they came, are those of a chunk."""
    return type(values) is list and bool(values) and type(values[0]) is str and values[0].startswith(CHUNK)


def unpack(values: Sequence[Any]) -> pa.RecordBatch:
    """Return the chunk. Raises ValueError: it is none that can be read (``pyarrow.ArrowInvalid`` is one)."""
    import pyarrow as pa

    with pa.ipc.open_stream(a2b_base64(values[0][len(CHUNK) :])) as reader:
        return reader.read_next_batch()


PART = f"{MARK}part:"  # Storm's ids are numbers


class ChunkSplitter:
    """The chunks of one bolt that are taken apart."""

    def __init__(self) -> None:
        self._open: dict[str, bytearray] = {}  # by id: of each record, whether its ack is outstanding
        self._left: dict[str, int] = {}
        self._coming: Iterator[dict[str, Any]] = iter(())

    def take_apart(self, message: dict[str, Any], rows: Iterable[tuple[Any, ...]], count: int) -> None:
        """Hand the records of a chunk out, one with each :meth:`next`."""
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
        """Return the next record as Storm's message; None where none waits."""
        return next(self._coming, None)

    def settle(self, part: str, failed: bool) -> str | None:
        """Take the answer to one record; return the chunk's id if that is the answer to the chunk.

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
        """Return the ids that Storm knows for these; a chunk once, and none that is settled."""
        found: dict[Any, None] = {}
        for anchor in given:
            if not is_part(anchor):
                found[anchor] = None
            elif (whole := _split(anchor)[1]) in self._open:
                found[whole] = None
        return list(found)


def is_part(tup_id: Any) -> bool:
    """Return whether an id is that of a chunk's record."""
    return type(tup_id) is str and tup_id.startswith(PART)


def _split(part: str) -> tuple[str, str]:
    """Return the row, and the id of the chunk."""
    row, _, whole = part.removeprefix(PART).partition(":")
    return row, whole


class SharedIds:
    """The chunks of one spout that left as records."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._out: dict[str, tuple[Any, int]] = {}

    def open(self, tup_id: Any, count: int) -> str:
        """Return the id that the records of a chunk share."""
        share = f"{MARK}share:{next(self._numbers)}"
        self._out[share] = (tup_id, count)
        return share

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the spout is to hear of an ack or fail; None: nothing.

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
