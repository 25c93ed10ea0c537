"""From a sink's directory to its finished table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.compare import Sink
from downspout.compare.outputs import ROUNDING, rounded_alike
from downspout.engine import Component
from downspout.settings import component_config, parse_scope
from downspout.sink import ORIGIN_SCHEMA, Columns

SCHEMA = {"key": "string", "hour": "int8", "delay": "int16", "part": "float64", "money": "decimal(10,2)"}
AGGREGATES = ["count", "count:delay", "sum:delay", "min:delay", "max:delay", "sum:part", "sum:money"]


def sink(**settings: Any) -> Sink:
    schema = [f"{name}:{kind}" for name, kind in settings.pop("schema", SCHEMA).items()]
    conf = component_config("parquet", {"directory": "out", "schema": schema, **settings})
    return Sink.of(Component("rows", object), parse_scope(conf, "parquet"))


ROW = st.fixed_dictionaries(
    {
        "key": st.none() | st.sampled_from("ab"), "hour": st.none() | st.integers(0, 1),
        "delay": st.none() | st.integers(-5, 5), "part": st.none() | st.integers(-3, 3).map(float),
        "money": st.none(),
    }
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(ROW, max_size=12), st.integers(1, 4))
def test_finished_partials_are_the_aggregates_of_all(rows: list[dict[str, Any]], size: int) -> None:
    """However rows are cut into flushes, the finished table is the fold of all rows; null is a key like any other."""
    made = sink(keys=["key", "hour"], aggregates=AGGREGATES).aggregation
    assert made is not None
    everything = pa.Table.from_pylist(rows, schema=Columns.parse([f"{n}:{k}" for n, k in SCHEMA.items()]).schema)
    flushes = [made.fold(everything.slice(at, size)) for at in range(0, max(1, len(rows)), size)]
    found = made.finish(pa.concat_tables(flushes)).to_pylist()
    wanted = made.fold(everything).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_windows_are_compared_whichever_rows_were_late() -> None:
    """What one engine has marked late and another has not is the same finished window."""
    made = sink(schema={"at": "timestamp"}, keys=["window(at, 1 hour)"], aggregates=["count"])
    assert made.aggregation is not None
    rows = pa.table({"at": pa.array([0, 1, 3_600_000_000], pa.timestamp("us", "UTC"))})
    one, other = (
        made.aggregation.finish(made.aggregation.fold(rows, watermark)) for watermark in (None, 3_600_000_000)
    )
    assert one.equals(other)
    assert made.schema.names == ["window_start", "window_end", "count"]


def test_rows_come_without_origins_and_with_folders(tmp_path: Path) -> None:
    """A ParquetBolt's table has the declared columns and types, those that name folders too, and no origins."""
    made = sink(schema={"month": "int8", "name": "string", "text": "string"}, partition_by=["month", "name"])
    for folder, text in (("month=1/name=a%20b", "x"), ("month=2/name=__HIVE_DEFAULT_PARTITION__", None)):
        rows: dict[str, Any] = {"text": pa.array([text], pa.string())}
        origins = {field.name: pa.array([None], field.type) for field in ORIGIN_SCHEMA}
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({**rows, **origins}), tmp_path / folder / "part-1.parquet")
    (tmp_path / "_downspout").mkdir()
    (tmp_path / "_downspout" / "x.parquet").write_bytes(b"no file of Parquet")
    found = made.read(tmp_path)
    assert found.schema.equals(made.schema)
    assert sorted(found.to_pylist(), key=lambda row: row["month"]) == [
        {"month": 1, "name": "a b", "text": "x"},
        {"month": 2, "name": None, "text": None},
    ]


def test_a_sink_that_wrote_nothing_has_no_rows(tmp_path: Path) -> None:
    """Where there is no directory, or no file in it, the table is empty and has its columns."""
    made = sink(keys=["key"], aggregates=["count"])
    for directory in (tmp_path, tmp_path / "none"):
        assert made.read(directory).schema.equals(made.schema)
        assert made.read(directory).num_rows == 0


SUMS = st.lists(st.none() | st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=5)


@given(SUMS, st.data())
def test_rounding_is_no_difference(values: list[float | None], data: st.DataObject) -> None:
    """Sums that differ by less than the tolerance become one value, and null stays null."""
    keys = [f"k{number}" for number in range(len(values))]
    factors = [1 + data.draw(st.floats(-ROUNDING / 4, ROUNDING / 4)) for _ in values]
    others = [None if v is None else v * f for v, f in zip(values, factors, strict=True)]
    one = pa.table({"k": keys, "s": pa.array(values, pa.float64())})
    two = pa.table({"k": keys[::-1], "s": pa.array(others[::-1], pa.float64())})
    made = rounded_alike({"one": one, "two": two}, ["k"], ["s"])
    assert made["one"]["s"].to_pylist() == made["two"]["s"].to_pylist()[::-1]
    assert [value is None for value in made["one"]["s"].to_pylist()] == [value is None for value in values]


@pytest.mark.parametrize("other", [1.0 + 1e-6, -1.0, 0.0, math.inf, math.nan, None])
def test_more_than_rounding_is_left_alone(other: float | None) -> None:
    """Values that differ by more, infinities, NaN and null among them, stay what they are."""
    one = pa.table({"k": pa.array([None], pa.string()), "s": pa.array([1.0])})
    two = pa.table({"k": pa.array([None], pa.string()), "s": pa.array([other], pa.float64(), from_pandas=False)})
    made = rounded_alike({"one": one, "two": two}, ["k"], ["s"])
    assert [repr(table["s"].to_pylist()) for table in made.values()] == ["[1.0]", f"[{other!r}]"]
