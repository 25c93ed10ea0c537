"""Values from data that name folders: through the real sink, on the real disk, and back by readers."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pystorm.component import Tuple

from bolts.parquet import ParquetBolt
from downspout.ledger import Origin
from downspout.sink.schema import NULL_FOLDER, hive_folder
from downspout.testing import VirtualClock

NASTY = [
    "../x", "../../../../tmp/x", "..", ".", "./.", "/etc/passwd", "//", "a/b", "a\\b", "\x00", "a\x00b", "\n",
    "\r\n", "a\tb",
    "x" * 300, "ü" * 200, "/" * 100, "x" * 253, "x" * 251 + "ü", " ", "a ", " a", "a.", ".a", "_a", "a=b", "c=d/e=f",
    "A", "a", "é", "e\u0301", "ﬁ", "%2F", "%", "%00", "%zz", "\u202e", "\ud800", "a\udfff", "\ufffe", "😀", "NUL",
    "CON",
    "~", "$HOME", "$(id)", "`id`", "*", "?", "{a}", "[a]", "^", ":", "'", '"', "#", "null", "true", "1", "01", "1.0",
    "2013-01-31", "-", "--", NULL_FOLDER, "_downspout", "_spark_metadata", "part-0.parquet", "\x7f", "\x1f",
    "\u0085", "\u2028",
]  # fmt: skip
VALUES = st.none() | st.sampled_from(NASTY) | st.text(st.characters(codec=None), max_size=300)
"""Surrogates included: JSON may hold them alone."""


def sink(directory: Path) -> Any:
    """Return a sink with a folder for each value, as an engine would build it."""
    bolt = ParquetBolt(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.clock = VirtualClock()
    bolt.component_name, bolt.task_id = "sink", 3
    bolt.acked, bolt.failed = [], {}
    bolt.ack = lambda given: bolt.acked.append(getattr(given, "id", given))
    bolt.fail_because = lambda tup, error: bolt.failed.__setitem__(getattr(tup, "id", tup), str(error))
    conf = {"parquet.directory": str(directory), "parquet.schema": ["n:int64", "c:string"], "topology.name": "t"}
    fields = {"source->stream->fields": {"parse": {"default": ["origin", "n", "c"]}}}
    bolt.initialize({**conf, "parquet.partition_by": ["c"]}, fields)
    return bolt


def write(directory: Path, values: list[str | None]) -> tuple[list[int], dict[int, str]]:
    """Write one row for each value; return which were acked, and why the others failed."""
    bolt = sink(directory)
    for number, value in enumerate(values):
        bolt.process(Tuple(str(number), "parse", "default", 2, (Origin("t", "", 0, number), number, value)))
    bolt.drain()
    return sorted(map(int, bolt.acked)), {int(tup): error for tup, error in bolt.failed.items()}


def read(directory: Path) -> dict[int, str | None]:
    files = [str(file) for file in directory.rglob("*.parquet") if _is_data(file, directory)]
    if not files:
        return {}
    schema = pa.schema([("n", pa.int64()), ("c", pa.string())])  # type: ignore[arg-type]
    folders = ds.partitioning(pa.schema([("c", pa.string())]), flavor="hive")
    found = ds.dataset(files, schema=schema, partitioning=folders, partition_base_dir=str(directory)).to_table()
    return dict(zip(found["n"].to_pylist(), found["c"].to_pylist(), strict=True))


def _is_data(file: Path, directory: Path) -> bool:
    """Return whether it is a file (a folder, too, may end in .parquet) that readers see."""
    return file.is_file() and not file.relative_to(directory).parts[0].startswith("_")


def is_writable(value: str | None) -> bool:
    """Return whether a value can be the name of a folder at all."""
    try:
        return value is None or len(hive_folder("c", value).encode()) <= 255
    except UnicodeEncodeError:
        return False


def as_pyarrow_reads(value: str | None) -> str | None:
    """Return what pyarrow makes of a value: to it, the text that stands for null is null even where it is escaped."""
    return None if value in ("", NULL_FOLDER) else value


def check(values: list[str | None]) -> None:
    """Write the values; look at the whole neighbourhood of the directory; read them back."""
    with tempfile.TemporaryDirectory() as folder:
        around = Path(folder)
        acked, failed = write(around / "deep" / "out", values)
        assert [path.name for path in around.iterdir()] == ["deep"]
        assert {path.name for path in (around / "deep").iterdir()} <= {"out"}
        assert {path.name[:2] for path in (around / "deep" / "out").iterdir()} <= {"c=", "_d"}
        good = [number for number, value in enumerate(values) if is_writable(value)]
        assert acked == good
        assert sorted(failed) == [number for number in range(len(values)) if number not in good]
        for number, error in failed.items():
            assert f"t[0]@{number}" in error
            assert "c = " in error
            assert len(error) < 1500
        assert read(around / "deep" / "out") == {number: as_pyarrow_reads(values[number]) for number in good}


@pytest.mark.slow
@given(st.lists(VALUES, max_size=8))
@example([*NASTY, None, ""])
@settings(max_examples=25, deadline=None)
def test_no_value_leaves_the_directory_and_each_is_read_back_or_fails_alone(values: list[str | None]) -> None:
    """Whatever the values: only the log appears beside the directory, those that can name a folder are read back as
    they were by pyarrow, and each of the others fails alone, with its place and its column."""
    check(values)
