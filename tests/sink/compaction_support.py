"""Shared code for tests of compaction: a sink with Hive folders, and two readers of its directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bolts.parquet import with_origins
from downspout.audit import visible_files
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.sink import CommitLog, Compactor, Disk, Flushed, Identities, Recovery, SinkWriter
from downspout.sink.compact import Compacted
from tests.disks import SteppedDisk

COLUMNS = ["month:int8", "value:int64"]
TOPIC = "orders"
Row = tuple[Any, ...]


def opened(
    directory: Path, writer: str, disk: Disk | None = None, rebuild: int = 0, clock: Clock = SYSTEM_CLOCK
) -> SinkWriter:
    made = SinkWriter(
        directory, topology="t", component="sink", columns=COLUMNS, writer=writer, partition_by=["month"],
        disk=disk or SteppedDisk(), rebuild=rebuild, clock=clock,
    )  # fmt: skip
    made.open()
    return made


def rows(offsets: Iterable[int]) -> tuple[Identities, pa.Table]:
    """Return a row for each offset, of two months and two partitions."""
    wanted = list(offsets)
    identities = Identities.of([(TOPIC, "id", offset % 2, offset, "") for offset in wanted])
    columns: dict[str, Any] = {
        "month": pa.array([offset % 3 // 2 for offset in wanted], pa.int8()),
        "value": pa.array(wanted, pa.int64()),
    }
    return identities, with_origins(pa.table(columns), identities)


def write(sink: SinkWriter, offsets: Iterable[int]) -> Flushed:
    identities, table = rows(offsets)
    return sink.flush(identities, lambda mask, _: table.filter(pa.array(mask)))


def flush(directory: Path, offsets: Iterable[int], writer: str, disk: Disk | None = None, rebuild: int = 0) -> None:
    write(opened(directory, writer, disk, rebuild), offsets)


def compact(directory: Path, disk: Disk | None = None, writer: str = "", **options: Any) -> Compacted:
    return Compactor(directory, disk=disk or SteppedDisk(), writer=writer, say=lambda line: None, **options).run()


def sweep(directory: Path) -> int:
    sink = opened(directory, "sweeper")
    return Recovery(sink).sweep(after_s=0)


def _rows_in(paths: Iterable[Path]) -> Iterator[Row]:
    for path in paths:
        table = pq.ParquetFile(path).read()
        yield from zip(
            [path.parent.name] * table.num_rows, *(column.to_pylist() for column in table.columns), strict=True
        )


def plain(directory: Path) -> Counter[Row]:
    """Return what a reader of the plain directory sees: each row, with its folder, and how often."""
    return Counter(_rows_in(visible_files(directory)))


def through_the_log(directory: Path) -> Counter[Row]:
    """Return what a reader sees that takes the files which count by the log, wherever they are by now."""
    log = CommitLog(directory)
    log.refresh()
    ways = ((directory / path, *log.layout.way(path)) for path in log.files)
    return Counter(_rows_in(next(file for file in way if file.exists()) for way in ways))


def expected(offsets: Iterable[int]) -> Counter[Row]:
    """Return the rows of some offsets as both readers give them."""
    return Counter((f"month={offset % 3 // 2}", offset, TOPIC, "id", offset % 2, offset, "") for offset in offsets)
