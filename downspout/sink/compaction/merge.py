"""Several Parquet files made into one: the same rows in the same order, the same columns, checked before it counts.

What is here takes bytes and gives bytes; which files, and what becomes of them, is the compactor's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from downspout.errors import SinkError
from downspout.sink.columns.encoding import encode
from downspout.sink.columns.schema import ORIGIN_SCHEMA
from downspout.sink.log.entry import DataFile
from downspout.sink.storage.hashing import hash_of

ROW_GROUP_ROWS = 1024 * 1024  # As many as pyarrow gives a row group, and so a sink
ROW_GROUP_BYTES = 64 << 20  # In memory. A row group that spans more is closed earlier: readers take one at a time.


@dataclass(frozen=True)
class Source:
    """A file to merge: what the log says of it, and what it holds."""

    file: DataFile
    content: bytes

    @cached_property
    def parquet(self) -> pq.ParquetFile:
        """The file, opened; pages whose checksum is wrong are an OSError when they are read."""
        return pq.ParquetFile(pa.BufferReader(self.content), page_checksum_verification=True)

    @property
    def codec(self) -> str:
        """The codec of its columns."""
        metadata = self.parquet.metadata
        has_columns = metadata.num_row_groups and metadata.num_columns
        return metadata.row_group(0).column(0).compression.lower() if has_columns else "zstd"

    def check(self, path: object) -> None:
        """Raise a SinkError if it is not what the log says of it."""
        try:
            rows = self.parquet.metadata.num_rows
        except pa.ArrowException as error:
            raise SinkError(f"{path} cannot be read: {error}", cure="restore it from a backup") from None
        if (rows, len(self.content)) != (self.file.rows, self.file.bytes):
            raise SinkError(
                f"{path} holds {rows:,} rows in {len(self.content):,} bytes; by the commit log these are "
                f"{self.file.rows:,} in {self.file.bytes:,}",
                cure="restore it from a backup; downspout audit names the records",
            )
        if hash_of(self.content) != self.file.hash:
            raise SinkError(
                f"{path} was changed since it was written: its content is not that whose hash the commit log holds",
                cure="restore it from a backup; downspout audit --deep lists all such files",
            )

    def check_values(self, path: object) -> None:
        """Raise a SinkError if its values cannot be read. Reads all of them."""
        try:
            self.parquet.read()
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{path} cannot be read: {error}", cure="restore it from a backup") from None


def alike(sources: Sequence[Source]) -> list[list[Source]]:
    """Return the files in groups of one schema, metadata included, and one codec; each group in the order given."""
    groups: list[list[Source]] = []
    for source in sources:
        for group in groups:
            first = group[0]
            same = first.parquet.schema_arrow.equals(source.parquet.schema_arrow, check_metadata=True)
            if same and first.codec == source.codec:
                group.append(source)
                break
        else:
            groups.append([source])
    return groups


def merge(sources: Sequence[Source]) -> bytes:
    """Return one file with the rows of all, which are alike; written with a sink's options.

    Memory: the files as they are, and one row group unpacked.
    """
    codec = "none" if sources[0].codec == "uncompressed" else sources[0].codec
    return encode(_row_groups(sources), sources[0].parquet.schema_arrow, codec, ROW_GROUP_ROWS)


def _row_groups(sources: Sequence[Source]) -> Iterator[pa.Table]:
    """Yield the rows, in pieces that make good row groups."""
    held: list[pa.Table] = []
    rows = size = 0
    for source in sources:
        for number in range(source.parquet.num_row_groups):
            table = source.parquet.read_row_group(number)
            if held and (rows + table.num_rows > ROW_GROUP_ROWS or size + table.nbytes > ROW_GROUP_BYTES):
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
            held.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
    if held:
        yield pa.concat_tables(held)


def check(sources: Sequence[Source], merged: Source, path: object) -> None:
    """Raise a SinkError unless the merged file, read again, holds the rows of the others, each once."""
    wanted = sum(source.file.rows for source in sources)
    schema = sources[0].parquet.schema_arrow
    if merged.parquet.metadata.num_rows != wanted or not merged.parquet.schema_arrow.equals(schema):
        raise _differs(path, f"{merged.parquet.metadata.num_rows:,} rows instead of {wanted:,}, or other columns")
    # Rows keep their order, so each column is compared piece by piece: those that tell which row it is, or all columns
    # where there are none of these. It costs a second reading of these columns, and is what the promise rests on.
    names = [name for name in ORIGIN_SCHEMA.names if name in schema.names]
    # NaN is not equal to itself, so a column of floats cannot be compared like this.
    for name in names or [
        field.name for field in schema if "float" not in str(field.type) and "double" not in str(field.type)
    ]:
        whole: Any = merged.parquet.read(columns=[name]).column(0)
        at = 0
        for source in sources:
            if not whole.slice(at, source.file.rows).equals(source.parquet.read(columns=[name]).column(0)):
                raise _differs(path, f"column {name} differs from that of {source.file.path}")
            at += source.file.rows


def _differs(path: object, what: str) -> SinkError:
    return SinkError(
        f"{path} was not written correctly ({what}); it was discarded, and nothing was replaced",
        cure="start again; if it happens twice, report it: pyarrow, the memory or Downspout is at fault",
    )
