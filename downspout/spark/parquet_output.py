"""Write a stream as Parquet, each row exactly once, to a directory of the query's own.

Spark's file sink lists the files of each finished batch in ``_spark_metadata``, and skips a batch that is repeated
after a crash if it is listed. So a reader that uses the list, as Spark does, sees each row once. A killed process
leaves unlisted files: Spark ignores them; other readers need :func:`committed_files`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from downspout.errors import SinkError
from downspout.settings.folders import local_folder
from downspout.sink.layout import OURS
from downspout.sink.recovery import SPARK_LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_output(directory: str | Path) -> None:
    """Raise if a directory is a sink's, lies in one or contains one, so that a Spark job must not write to it.

    A query would leave its ``_spark_metadata`` there, and Spark would no longer read the sink's files; the audit would
    find unknown rows; and ``mode("overwrite")`` would delete the sink's files.

    Raises:
        SinkError: the message names the sink's directory.
    """
    path = _absolute(directory, "directory")
    below = (folder.parent for folder in path.rglob(OURS)) if path.is_dir() else iter(())
    above = (place for place in (path, *path.parents) if (place / OURS).is_dir())
    if (owner := next(above, None) or next(below, None)) is not None:
        place = "is" if owner == path else "lies in" if owner in path.parents else "holds"
        raise SinkError(
            f"{path} {place} the directory of a topology's sink ({owner}): no Spark job may write there",
            cure="a directory of the job's own, beside that of the sink",
        )


def parquet_stream(frame: DataFrame, directory: str | Path, checkpoint: str | Path | None = None) -> Any:
    """Return a ``DataStreamWriter`` that appends a stream to a directory of its own, each row exactly once.

    Args:
        frame: the stream; with an aggregation, one that has a watermark.
        directory: the output; created if missing.
        checkpoint: the query's state, needed to continue the output (default: ``<directory>.checkpoint``).

    Raises:
        SinkError: the directory is a sink's; only one of output and checkpoint exists; or files that the query has read
            are missing.
    """
    path = _absolute(directory, "directory")
    state = _absolute(checkpoint, "checkpoint") if checkpoint else path.with_name(f"{path.name}.checkpoint")
    check_output(path)
    _check_pair(path, state)
    _check_sources(state)
    writer = frame.writeStream.format("parquet").outputMode("append")
    return writer.option("path", str(path)).option("checkpointLocation", str(state))


def _absolute(given: str | Path, name: str) -> Path:
    return local_folder(given, name).absolute()


def _check_pair(output: Path, state: Path) -> None:
    """Raise if output and checkpoint belong to different queries.

    The checkpoint numbers the batches. Without it they begin at 0; the output, which has a batch 0, would skip the new
    one as a repetition, and its rows would be lost. Without the output, its rows would never be written again.
    """
    written = any((output / SPARK_LOG).glob("[0-9]*"))
    if written and not any((state / "offsets").glob("[0-9]*")):
        raise SinkError(
            f"{output} was written with another checkpoint than {state}: new batches would be taken for repetitions",
            cure="the old checkpoint; or start over in another directory",
        )
    if not written and any((state / "commits").glob("[0-9]*")):
        raise SinkError(
            f"{state} records rows that {output} does not hold",
            cure="the output's old directory; or start over with another checkpoint",
        )


def _check_sources(state: Path) -> None:
    """Raise if the first files that the query read are gone.

    Spark identifies files by their paths, so it would read all rows of a moved directory again.
    """
    for log in sorted((state / "sources").glob("[0-9]*")):
        if (files := files_in(log, first=True)) and not files[0].exists():
            raise SinkError(
                f"{state} says that {files[0]} was read, but it is gone: a directory that was moved is read again",
                cure="the directory's old path; or start over with another output and checkpoint",
            )


def committed_files(directory: str | Path) -> list[Path]:
    """Return the files of a query's finished batches; readers other than Spark should read only these.

    ``pandas.concat(map(pandas.read_parquet, committed_files("output/windows")))``

    Raises:
        SinkError: no streaming query has written to the directory.
    """
    log = _absolute(directory, "directory") / SPARK_LOG
    if not log.is_dir():
        raise SinkError(
            f"{directory} is not the output of a streaming query: it has no {SPARK_LOG}", cure="read it as it is"
        )
    return files_in(log)


def files_in(log: Path, *, first: bool = False) -> list[Path]:
    """Return the files (or only the first) that are listed by Spark's file sink or file source.

    Each entry of the list is a file: a line with the version, then one JSON object per line. Every tenth entry is a
    compact one, which repeats all earlier ones.
    """
    entries = [path for path in log.glob("[0-9]*") if path.stem.isdigit()]
    compact = max((int(path.stem) for path in entries if path.suffix == ".compact"), default=-1)
    found: list[Path] = []
    for path in sorted(entries, key=lambda path: int(path.stem)):
        if int(path.stem) > compact or (path.suffix == ".compact" and int(path.stem) == compact):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
            found += [file for line in lines[: 1 if first else None] if (file := _file(line)) is not None]
            if first and found:
                break
    return found


def _file(line: str) -> Path | None:
    """Return the file of a line; None for a line of another source, such as Kafka's.

    >>> _file('{"path":"file:///a/b%20c.parquet","timestamp":1}'), _file('{"topic":{"0":5}}'), _file("0")
    (PosixPath('/a/b c.parquet'), None, None)
    """
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    path = entry.get("path") if isinstance(entry, dict) else None
    return Path(unquote(urlparse(path).path)) if isinstance(path, str) else None
