"""Step 5 of the demo: check that the output is complete, correct and exactly once.

It uses no code or figures of the topology: it reads the data files with pyarrow, the ends of the partitions from Kafka,
and the flights from the package with pandas, and compares them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from demos import flights_data
from demos.flights_data import Flights
from demos.screen import Screen

RENAMED = {"origin": "from_airport", "dest": "to_airport"}
"""Columns of the package that have other names in the files."""

EXAMPLES_MAX = 3

_NULLABLE: Mapping[pa.DataType, Any] = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        right: whether all is as it should be.
        text: the answer, with figures; where something is wrong, with places.
    """

    right: bool
    text: str


def read_rows(directory: Path) -> pd.DataFrame:
    """Return all visible rows below a sink's directory, with their origins; Hive folders become columns."""
    dataset = ds.dataset(directory, format="parquet", partitioning=ds.partitioning(flavor="hive"))
    # Nullable integers stay integers; pandas' own way would turn a column with one null into floats.
    return dataset.to_table().to_pandas(types_mapper=lambda kind: _NULLABLE.get(kind))


def check_coverage(rows: pd.DataFrame, ends: Sequence[int]) -> Finding:
    """Check that the rows have every offset below each partition's end exactly once, and no others."""
    missing: list[str] = []
    repeated: list[str] = []
    foreign: list[str] = []
    for partition, end in enumerate(ends):
        offsets = rows.loc[rows["_partition"] == partition, "_offset"].to_numpy(dtype=np.int64)
        inside = offsets[(offsets >= 0) & (offsets < end)]
        counts = np.bincount(inside, minlength=end)
        missing += _places(partition, np.flatnonzero(counts == 0))
        repeated += _places(partition, np.flatnonzero(counts > 1))
        foreign += _places(partition, offsets[(offsets < 0) | (offsets >= end)])
    outside = int((~rows["_partition"].isin(range(len(ends)))).sum()) + int((rows["_path"] != "").sum())
    if not (missing or repeated or foreign or outside) and rows["_topic_id"].nunique() <= 1:
        return Finding(True, f"{sum(ends):,} of {sum(ends):,} offsets are in the files, each exactly once")
    problems = [
        f"{len(places):,} {what} ({', '.join(places[:EXAMPLES_MAX])}{', …' if len(places) > EXAMPLES_MAX else ''})"
        for what, places in (("missing", missing), ("more than once", repeated), ("beyond the end", foreign))
        if places
    ]
    if outside:
        problems.append(f"{outside:,} rows from elsewhere")
    if rows["_topic_id"].nunique() > 1:
        problems.append("rows of a topic that was deleted and made again")
    return Finding(False, f"offsets: {'; '.join(problems)}")


def _places(partition: int, offsets: NDArray[np.int64]) -> list[str]:
    return [f"[{partition}]@{offset}" for offset in offsets.tolist()]


def check_values(rows: pd.DataFrame, frame: pd.DataFrame, flights: Flights) -> Finding:
    """Check that each row equals the package's flight at its offset, in all columns of the package.

    Args:
        rows: as :func:`read_rows` returns them; complete, see :func:`check_coverage`.
        frame: the flights in the order of publishing.
        flights: the same as records, by offset.
    """
    place = np.concatenate([np.asarray(part, dtype=np.int64) for part in flights.rows])
    found = rows.sort_values(["_partition", "_offset"], ignore_index=True)
    wanted = frame.iloc[place].reset_index(drop=True)
    for name in frame.columns:
        column = RENAMED.get(name, name)
        if column == "time_hour":
            same = pd.to_datetime(wanted[name], utc=True) == found["scheduled_at"].dt.floor("h")
        else:
            same = (found[column] == wanted[name]).fillna(False) | (found[column].isna() & wanted[name].isna())
        if not same.all():
            row = found.iloc[int(np.flatnonzero(~same.to_numpy(dtype=bool))[0])]
            return Finding(
                False,
                f"{(~same).sum():,} values of {column} differ, the first at "
                f"[{row['_partition']}]@{row['_offset']}: {row[column] if column in row else row['scheduled_at']}",
            )
    return Finding(True, f"all {len(frame.columns)} columns of all {len(found):,} rows equal the package's")


def check_tables(tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame) -> list[Finding]:
    """Check that each table of the report equals pandas' result from the package, bit by bit."""
    wanted = {
        "route_hours": flights_data.reference_route_hours(frame),
        "routes": flights_data.reference_routes(frame),
        "hours": flights_data.reference_hours(frame),
        "weather": flights_data.reference_weather(frame, flights_data.read_table("weather")),
    }
    return [_check_table(name, tables[name], table) for name, table in wanted.items()]


def _check_table(name: str, found: pd.DataFrame, wanted: pd.DataFrame) -> Finding:
    try:
        pd.testing.assert_frame_equal(
            found[list(wanted.columns)], wanted, check_dtype=False, check_exact=True, obj=name
        )
    except (AssertionError, KeyError) as error:
        return Finding(False, f"table {name} differs from pandas': {' '.join(str(error).split())[:300]}")
    return Finding(True, f"table {name}: {len(found):,} rows equal pandas', to the last bit")


def audited(directory: str | Path, *more: str, environment: Mapping[str, str] | None = None) -> Finding:
    """Run ``downspout audit`` on a directory; return its verdict, or its whole output if it finds problems."""
    command = [sys.executable, "-m", "downspout", "audit", str(directory), *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return Finding(done.returncode == 0, said[-1] if done.returncode == 0 and said else "\n".join(said))


def say_all(screen: Screen, findings: Iterable[Finding]) -> bool:
    """Print findings; return whether all are right."""
    right = True
    for finding in findings:
        mark = "[green]✓[/green]" if finding.right else "[red]✗[/red]"
        screen.say(f"{mark} {finding.text}")
        right = right and finding.right
    return right
