"""What the tests of readers share: compactions, and the rows that readers see."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from downspout.parquet.compaction import Compactor
from downspout.parquet.disk import Disk
from downspout.parquet.entry import COMPACT, FENCE, GENERATION, DataFile, Entry
from downspout.parquet.layout import REPLACED_FOLDER, STAGING_FOLDER, data_name
from downspout.parquet.log import CommitLog
from downspout.parquet.recovery import move
from downspout.parquet.snapshot import read_table, snapshot
from downspout.parquet.view import wherever


def append(log: CommitLog, kind: str, **fields: Any) -> None:
    """Append an entry of the directory's own sink."""
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
        tables = [pq.ParquetFile(wherever(directory, path, _reader)).read() for path in old]
        content = io.BytesIO()
        pq.write_table(pa.concat_tables(tables), content)
        made = str(Path(folder) / data_name(f"hand-{log.length}", log.length))
        disk.make_folder((directory / STAGING_FOLDER / made).parent)
        disk.write(directory / STAGING_FOLDER / made, content.getvalue())
        file = DataFile(made, sum(log.files[path].rows for path in old), len(content.getvalue()))
        append(log, COMPACT, files=(file,), removed=tuple(old))
        move(disk, directory, [made], STAGING_FOLDER, Path())
        left = move(disk, directory, old, STAGING_FOLDER, REPLACED_FOLDER)
        move(disk, directory, left, Path(), REPLACED_FOLDER)


def _reader(path: Path) -> io.BytesIO:
    return io.BytesIO(path.read_bytes())


def fence(directory: Path, *writers: str) -> None:
    """Append a fence."""
    append(CommitLog(directory), FENCE, fenced=writers)


def start_anew(directory: Path) -> None:
    """Start the directory's next generation, and take all files away."""
    log = CommitLog(directory)
    log.refresh()
    old = list(log.files)
    append(log, GENERATION, generation=log.generation + 1)
    move(Disk(), directory, old, Path(), REPLACED_FOLDER)


def delete_replaced(directory: Path) -> None:
    """Delete what was kept for slow readers."""
    for path in (directory / REPLACED_FOLDER).rglob("*.parquet"):
        path.unlink()


def seen(directory: Path) -> list[int]:
    """Return the numbers that readers see who go through the log; of both kinds, which must see the same."""
    table = sorted(read_table(directory, ["n"])["n"].to_pylist())
    with snapshot(directory) as path:
        assert sorted(pq.read_table(path, columns=["n"])["n"].to_pylist()) == table
    return table
