"""Shared code for tests of the sinks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pystorm.component import Tuple

from bolts.parquet import ParquetBolt, with_origins
from downspout.audit import visible_files
from downspout.ledger import Origin
from downspout.sink import Disk, Identities, SinkWriter
from downspout.testing import VirtualClock

COLUMNS = ["n:int64"]
TOPIC, TOPIC_ID = "orders", "6jPMvg1sQ2uJmzGz1yRHQw"


class Origins:
    """Rows that hold nothing but their origin and a number."""

    def __init__(self, origins: Sequence[tuple[str, str, int, int, str]]) -> None:
        self.origins = list(origins)

    def columns(self) -> dict[str, Any]:
        names = ("_topic", "_topic_id", "_partition", "_offset", "_path")
        types = (pa.string(), pa.string(), pa.int32(), pa.int64(), pa.string())
        parts = list(zip(*self.origins, strict=True)) or [()] * 5
        origin = {name: pa.array(list(part), kind) for name, part, kind in zip(names, parts, types, strict=True)}
        return {"n": pa.array([o[3] for o in self.origins], pa.int64()), **origin}


def write_rows(
    directory: Path,
    origins: Sequence[tuple[str, str, int, int, str]],
    *,
    writer: str = "w",
    disk: Disk | None = None,
    component: str = "sink",
) -> SinkWriter:
    """Commit rows by a writer of its own, in one flush."""
    made = SinkWriter(directory, topology="t", component=component, columns=COLUMNS, writer=writer, disk=disk)
    made.open()
    identities = Identities.of(origins)
    table = with_origins(pa.table({"n": pa.array([o[3] for o in origins], pa.int64())}), identities)
    made.flush(identities, lambda mask, _: table.filter(pa.array(mask)))
    return made


def sink(
    cls: Any,
    directory: Path,
    *,
    fields: list[str],
    inputs: Any = (("parse", "default"),),
    clock: Any = None,
    **conf: Any,
) -> Any:
    """Return a sink as an engine would build it, with acks and fails collected."""
    bolt = cls(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.clock = clock or VirtualClock()
    bolt.component_name, bolt.task_id = "sink", 3
    bolt.acked, bolt.failed = [], {}
    bolt.ack = lambda given: bolt.acked.append(given if isinstance(given, str) else given.id)
    bolt.fail_because = lambda given, error: bolt.failed.__setitem__(
        given if isinstance(given, str) else given.id, str(error)
    )
    settings = {"topology.name": "t", "parquet.directory": str(directory), **conf}
    context: dict[str, dict[str, Any]] = {}
    for component, stream in inputs:
        context.setdefault(component, {})[stream] = fields
    bolt.initialize(settings, {"source->stream->fields": context})
    return bolt


def tup(origin: Sequence[Any], *values: Any) -> Tuple:
    return Tuple("-".join(map(str, origin)), "parse", "default", 2, (Origin(*origin), *values))


def write(directory: Path, schema: Sequence[str], offsets: Sequence[int], values: Any, **conf: Any) -> None:
    """Write one row for each offset, with a new sink; ``values`` returns the row's values."""
    fields = ["origin", *(word.partition(":")[0] for word in schema)]
    bolt = sink(ParquetBolt, directory, fields=fields, **{"parquet.schema": list(schema), **conf})
    for offset in offsets:
        bolt.process(tup((TOPIC, TOPIC_ID, 0, offset, ""), *values(offset)))
    bolt.drain()
    assert not bolt.failed


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """Return all rows that a reader sees, without Hive folders' columns."""
    return [row for path in visible_files(directory) for row in pq.ParquetFile(path).read().to_pylist()]
