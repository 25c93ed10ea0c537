r"""A chunk on Storm's pipe: one tuple, the whole record batch as one text in its first field, null in the others.

The text is a mark, and in base64 an Arrow IPC stream of the batch, compressed with LZ4 from :data:`COMPRESSED_BYTES`
on. Types, nulls, dictionaries and the origin struct arrive as they left.

Why no list of values per field: Java would make an object of each value and Kryo would write each one, the types would
be lost, and it is four times as long. Why not a text for each field: only components on our wire are sent chunks
(``downspout.wire.streams``), none of them uses one column alone, and each would cost a schema of its own.

Why nothing else can be taken for a chunk: components on our wire mark all texts of theirs that begin with NUL
otherwise, and from other components no chunk is expected.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from downspout.wire.values import MARK, Packed

CHUNK = f"{MARK}chunk:"
COMPRESSED_BYTES = 16 * 1024  # Below that the codec costs more than it saves
PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)
SMALL = pa.ipc.IpcWriteOptions(use_threads=False, compression="lz4") if pa.Codec.is_available("lz4") else PLAIN


def pack(batch: pa.RecordBatch) -> list[Any]:
    """Return the values of the tuple that a chunk travels as, one per column. O(bytes).

    >>> values = pack(pa.RecordBatch.from_pydict({"word": ["dog", None], "letters": [3, 0]}))
    >>> is_packed([values[0].text, *values[1:]])
    True

    Raises:
        pyarrow.ArrowException: Arrow cannot write one of its types.
    """
    sink = pa.BufferOutputStream()
    how = SMALL if batch.nbytes >= COMPRESSED_BYTES else PLAIN
    with pa.ipc.new_stream(sink, batch.schema, options=how) as writer:
        writer.write_batch(batch)
    text = b2a_base64(sink.getvalue(), newline=False).decode("ascii")
    return [Packed(CHUNK + text), *[None] * (batch.num_columns - 1)]


def is_packed(values: Any) -> bool:
    """Return whether these values, with their marks as they came, are those of a chunk."""
    return type(values) is list and bool(values) and type(values[0]) is str and values[0].startswith(CHUNK)


def unpack(values: Sequence[Any]) -> pa.RecordBatch:
    """Return the chunk. Raises ValueError: it is none that can be read (``pyarrow.ArrowInvalid`` is one)."""
    with pa.ipc.open_stream(a2b_base64(values[0][len(CHUNK) :])) as reader:
        return reader.read_next_batch()
