"""Shared code for tests of exports: both kinds of tables, made and read in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from downspout.tables import Export, open_catalog
from downspout.tables.delta import DeltaTarget
from downspout.tables.export import Target
from downspout.tables.iceberg import IcebergTarget
from tests.sink.support import write_rows

NAME = "downspout.flights"


def write(directory: Path, *offsets: int) -> None:
    write_rows(directory, [("t", "", 0, offset, "") for offset in offsets], writer=f"w{offsets[0]}")


def target(kind: str, place: Path) -> Target:
    if kind == "delta":
        return DeltaTarget(place)
    return IcebergTarget(open_catalog(None, place), NAME)


def export(kind: str, directory: Path, place: Path, **options: Any) -> Export:
    return Export(directory, target(kind, place), **options)


def table(kind: str, place: Path) -> pa.Table:
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(str(place)).to_pyarrow_table()
    return open_catalog(None, place).load_table(NAME).scan().to_arrow()


def numbers(kind: str, place: Path) -> list[int]:
    return sorted(table(kind, place)["n"].to_pylist())
