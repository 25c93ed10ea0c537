"""Shared code for tests of readers: compactions, and the rows that readers see."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from downspout.sink import (
    COMPACT,
    FENCE,
    REBUILD,
    CommitLog,
    Compactor,
    DataFile,
    Disk,
    Entry,
    Layout,
    read_table,
    wherever,
)
from downspout.sink.layout import data_name, move
from downspout.sink.snapshot import snapshot


def append(log: CommitLog, kind: str, **fields: Any) -> None:
    while True:
        log.refresh()
        entry = Entry(
            log.length, f"hand-{log.length}", log.topology or "t", log.schema or (), 0,
            component=log.component or "sink", kind=kind, **fields,
        )  # fmt: skip
        if log.append(entry):
            return


def compact(directory: Path, disk: Disk | None = None, *, most: int | None = None) -> None:
    """Compact as ``downspout compact`` does; with ``most``, by hand: that many files of each folder and no more."""
    if most is None:
        Compactor(directory, disk=disk).run()
        return
    disk = disk or Disk()
    log = CommitLog(directory, disk)
    log.refresh()
    for folder in sorted({str(Path(path).parent) for path in log.files}):
        old = [path for path in log.files if str(Path(path).parent) == folder][:most]
        if len(old) < 2:
            continue
        # A compactor reads what is in sight or staged; these are small.
        tables = [pq.ParquetFile(wherever(log.layout, path, _reader)).read() for path in old]
        content = io.BytesIO()
        pq.write_table(pa.concat_tables(tables), content)
        made = str(Path(folder) / data_name(f"hand-{log.length}", log.length))
        disk.make_folder(log.layout.staged(made).parent)
        disk.write(log.layout.staged(made), content.getvalue())
        file = DataFile(made, sum(log.files[path].rows for path in old), len(content.getvalue()))
        append(log, COMPACT, files=(file,), removed=tuple(old))
        staging, sight, replaced = log.layout.places
        move(disk, log.layout, [made], staging, sight)
        left = move(disk, log.layout, old, staging, replaced)
        move(disk, log.layout, left, sight, replaced)


def _reader(path: Path) -> io.BytesIO:
    return io.BytesIO(path.read_bytes())


def fence(directory: Path, *writers: str) -> None:
    append(CommitLog(directory), FENCE, fenced=writers)


def start_anew(directory: Path) -> None:
    log = CommitLog(directory)
    log.refresh()
    old = list(log.files)
    append(log, REBUILD, rebuild=log.rebuild + 1)
    move(Disk(), log.layout, old, directory, log.layout.replaced)


def delete_replaced(directory: Path) -> None:
    for path in Layout(directory).replaced.rglob("*.hidden"):
        path.unlink()


def seen(directory: Path) -> list[int]:
    """Return the numbers that readers see who go through the log; of both kinds, which must see the same."""
    table = sorted(read_table(directory, ["n"])["n"].to_pylist())
    with snapshot(directory) as path:
        assert sorted(pq.read_table(path, columns=["n"])["n"].to_pylist()) == table
    return table
