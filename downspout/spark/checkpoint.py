"""The position of a streaming query, read from the files of its checkpoint, here or in a bucket; without Spark.

Before a batch runs, Spark writes where it *ends* (``offsets/N``, a line for each source of the query); once it is
complete, ``commits/N``. So a query's position is the end of the last batch that has both. A batch with offsets alone is
*unfinished*, and how much of it was done is unknown. After a restart Spark runs it again, from the end of the batch
before. A spout that takes over must do the same: starting at the unfinished batch's end would lose records. Nothing
counts twice if the sink recognizes rows by their origin, or has nothing of that batch.

A Kafka source's offsets may carry notes (``downspout.spark.source_offsets``), which do not affect the position.

Both files consist of a version, a line of JSON for the query itself, and the sources. In version 2 a name and a colon
precede each source. ``-`` is a source without an offset.

Spark's own Kafka source also records its start (``sources/N/0``), the position until a batch is finished. This
package's source needs no such file: see ``downspout.spark.planning``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.settings.object_path import place
from downspout.sink.object_store import storage_of
from downspout.spark.source_offsets import Offsets, from_json

NOT_A_FOLDER = "the folder that checkpointLocation names, here or in a bucket; one in HDFS has to be copied first"
BY_HAND = "give the spout its start by hand: kafka.start=OFFSETS and kafka.start_offsets"
DAMAGED = f"restore the checkpoint from a copy, or {BY_HAND}"
VERSIONS = ("v1", "v2")


@dataclass(frozen=True)
class Checkpoint:
    """The position of a query."""

    directory: Path  # of the checkpoint
    query: str  # Spark's id of the query; empty if the file is missing
    batch: int | None  # the last finished one; None: the offsets are the query's start
    offsets: Offsets  # the next offset to read, by partition; the lowest if several sources read it
    others: int = 0  # the number of sources other than Kafka
    unfinished: int | None = None  # the batch that was begun after it, if any
    planned: Offsets = field(default_factory=dict)  # the planned end of that batch


def checkpoint_place(directory: str | Path) -> Path:
    """Return the folder of ``checkpointLocation``, on this machine or in a bucket.

    >>> str(checkpoint_place("s3a://bucket/checkpoints/counts"))
    's3://bucket/checkpoints/counts'
    """
    return place(re.sub(r"\As3[an]://", "s3://", str(directory)), "checkpoint")


def read_checkpoint(directory: str | Path) -> Checkpoint:
    """Return the position of the query of a checkpoint, with this package's source or Spark's own.

    Args:
        directory: the value of ``checkpointLocation``: a folder on this machine or in a bucket, which is accessed like
            those of sinks (``parquet.storage_options`` in the environment).

    Raises:
        ConfigError: it is not a checkpoint, is damaged or cannot be read.
    """
    path = checkpoint_place(directory)
    try:
        return _read_checkpoint(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}", cure="look at its permissions, and whether it answers"
        ) from error


def _read_checkpoint(path: Path) -> Checkpoint:
    if not storage_of(path).exists(path / "offsets"):
        raise ConfigError(f"{path} is not the checkpoint of a streaming query: it has no offsets", cure=NOT_A_FOLDER)
    query = _query(path / "metadata")
    begun, finished = batch_numbers(path / "offsets"), batch_numbers(path / "commits")
    last = max(finished, default=None)
    if last is None:
        offsets, others = _initial(path), 0
    else:
        _lines(path / "commits" / str(last))
        offsets, others = _ends(path / "offsets" / str(last))
    unfinished = max((batch for batch in begun if last is None or batch > last), default=None)
    return Checkpoint(path, query, last, offsets, others, unfinished, _planned(path, unfinished))


def _planned(path: Path, unfinished: int | None) -> Offsets:
    """Return the planned end of an unfinished batch; empty if unreadable, since no start depends on it."""
    try:
        return {} if unfinished is None else _ends(path / "offsets" / str(unfinished))[0]
    except ConfigError:
        return {}


def batch_numbers(folder: Path) -> set[int]:
    """Return the batch numbers in a log; checksums and incomplete files have other names."""
    return {int(name) for name in storage_of(folder).names(folder) if name.isdecimal()}


def _query(file: Path) -> str:
    if not storage_of(file).exists(file):
        return ""
    found = _json(_read(file), f"{file}: the id of the query")
    return str(found["id"]) if isinstance(found, dict) and "id" in found else ""


def _initial(path: Path) -> Offsets:
    """Return the start of Spark's own source, for a query without a finished batch."""
    sources, disk = path / "sources", storage_of(path)
    files = [sources / name / "0" for name in sorted(disk.names(sources)) if disk.exists(sources / name / "0")]
    if not files:
        raise ConfigError(
            f"{path}: no batch of this query is finished, so it has no position yet",
            cure="let the query finish one (trigger availableNow); the spout still has its own position",
        )
    # Each file begins with a zero byte, which makes very old versions of Spark reject it.
    lines = {file: _versioned(_read(file).lstrip("\0"), file)[-1] for file in files}
    return _lowest(found for file, line in lines.items() if (found := _kafka(line, str(file))) is not None)


def _ends(file: Path) -> tuple[Offsets, int]:
    """Return the end of a batch and the number of sources other than Kafka."""
    version, _, *sources = _lines(file)
    if version == "v2":
        sources = [source.partition(":")[2] for source in sources]
    if not sources:
        raise ConfigError(f"{file} names no source: the file is truncated", cure=DAMAGED)
    begun = [(number, source) for number, source in enumerate(sources) if source != "-"]
    found = [_kafka(source, f"{file}, source {number}") for number, source in begun]
    known = [offsets for offsets in found if offsets is not None]
    if not known:
        raise ConfigError(
            f"{file}: this query has no Kafka source", cure="give the checkpoint of a query that reads Kafka"
        )
    return _lowest(known), len(found) - len(known)


def _lowest(sources: Iterable[Offsets]) -> Offsets:
    """Merge the offsets of a query's sources; for a partition with several sources, the lowest counts."""
    ends: Offsets = {}
    for offsets in sources:
        for tp, end in offsets.items():
            ends[tp] = min(end, ends.get(tp, end))
    return ends


def _kafka(text: str, what: str) -> Offsets | None:
    """Return the offsets of a Kafka source; None for another source.

    >>> _kafka('{"t":{"0":5}}', "x"), _kafka('{"logOffset":3}', "x"), _kafka("17", "x"), _kafka("{}", "x")
    ({TopicPartition(topic='t', partition=0): 5}, None, None, {})
    """
    value = _json(text, what)
    if not isinstance(value, dict) or not all(_has_partitions(value[key]) for key in value if ":" not in key):
        return None
    try:
        return from_json(value, what)
    except ConfigError as error:
        raise ConfigError(error.message, cure=DAMAGED) from None


def _has_partitions(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(key.isdecimal() for key in value)


def _lines(file: Path) -> list[str]:
    if not storage_of(file).exists(file):
        raise ConfigError(f"{file} is missing, although batch {file.name} is finished", cure=DAMAGED)
    return _versioned(_read(file), file)


def _versioned(text: str, file: Path) -> list[str]:
    lines = text.splitlines()
    version = lines[0] if lines else ""
    if re.fullmatch(r"v\d+", version) and version not in VERSIONS:
        raise ConfigError(
            f"{file} has format {version}, of a newer Spark; known formats are {' and '.join(VERSIONS)}", cure=BY_HAND
        )
    if version not in VERSIONS:
        raise ConfigError(f"{file} begins with {version[:20]!r}, not with {' or '.join(VERSIONS)}", cure=DAMAGED)
    if len(lines) < 2:
        raise ConfigError(f"{file} is truncated", cure=DAMAGED)
    return lines


def _read(file: Path) -> str:
    try:
        return storage_of(file).read(file).decode()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", cure="make it readable") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text file", cure=DAMAGED) from None


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{what} is not JSON: {text[:40]!r}", cure=DAMAGED) from None
