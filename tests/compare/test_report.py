"""The report of a comparison, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from downspout.compare import compare
from downspout.compare.comparison import EngineRun, Report, Table
from downspout.compare.engines import Spark
from downspout.kafka import TopicPartition

RANGES = {TopicPartition("orders", 0): (5, 1_005), TopicPartition("orders", 1): (0, 234)}


def report(
    tables: dict[str, pa.Table], *others: EngineRun, explicit: bool = False, keys: tuple[str, ...] = ()
) -> Report:
    """Return a report on one table, of engines that ran and of others."""
    runs = [EngineRun(name, 1.25) for name in tables]
    made = [Table("rows", keys, {}, compare(tables))] if tables else []
    return Report("orders", RANGES, [*runs, *others], made, explicit)


ONE, SAME, OTHER = pa.table({"x": [1, 2, 2]}), pa.table({"x": [2, 1, 2]}), pa.table({"x": [1, 2]})
GONE, BROKEN = EngineRun("storm", missing="Storm is stopped"), EngineRun("spark", 3.0, error="exit code 8")


@pytest.mark.parametrize(
    ("made", "code", "verdict"),
    [
        (report({"local": ONE, "native": SAME}), 0, "equal on local, native"),
        (report({"local": ONE, "native": SAME}, GONE), 0, "equal on local, native"),
        (report({"local": ONE, "native": SAME}, GONE, explicit=True), 2, "equal on local, native; storm did not run"),
        (report({"local": ONE, "native": SAME}, BROKEN), 2, "equal on local, native; spark did not run"),
        (report({"local": ONE, "native": OTHER}, BROKEN), 1, "different: rows"),
        (report({"local": ONE}, GONE), 2, "nothing was compared: only local ran"),
        (report({}, GONE, BROKEN), 2, "nothing was compared: no engine ran"),
    ],
)
def test_exit_code_and_verdict(made: Report, code: int, verdict: str) -> None:
    """Different beats not run, not run beats equal, and an engine that nobody asked for may be absent."""
    assert (made.exit_code, made.verdict) == (code, verdict)
    assert made.render().splitlines()[-1] == verdict
    assert json.loads(json.dumps(made.as_dict()))["exit_code"] == code


def test_the_table_names_engines_and_duplicates() -> None:
    """Each engine has a line with rows, result and seconds; one that did not run has its reason."""
    lines = report({"local": ONE, "native": SAME, "other": OTHER}, GONE, BROKEN).render().splitlines()
    assert lines[0] == "orders: 1,234 offsets of orders (2 partitions)"
    assert [" ".join(line.split()) for line in lines[2:5]] == [
        "rows local 3 the reference 1.2", "rows native 3 equal (1 duplicate) 1.2", "rows other 2 differs in 1 row 1.2",
    ]  # fmt: skip
    assert "storm is not available: Storm is stopped" in lines
    assert "spark failed: exit code 8" in lines


def test_a_changed_value_is_shown_beside_what_it_was() -> None:
    """Of a row with one other value the nearest row of the other engine is shown, by key where there is one."""
    local = pa.table({"word": ["a", "b", None], "count": [1, 2, 3]})
    native = pa.table({"word": ["a", "b", None], "count": [1, 5, 4]})
    said = report({"local": local, "native": native}, keys=("word",)).render()
    assert "rows: how often each has this row: local 1, native 0\n    word='b', count=2" in said
    assert "nearest row (local 0, native 1): count is 2 here, 5 there" in said


def test_rows_that_have_nothing_in_common_are_not_called_near() -> None:
    """A row is not explained by another that differs in most of its columns."""
    local, native = pa.table({"x": [1], "y": [1], "z": [1]}), pa.table({"x": [2], "y": [2], "z": [1]})
    assert "nearest" not in report({"local": local, "native": native}).render()


def test_what_an_engine_does_is_said_by_its_log(tmp_path: Path) -> None:
    """Whoever waits for an engine is told the last line of its log, where it has said anything."""
    engine: Any = object.__new__(Spark)
    engine.job = SimpleNamespace(directory=tmp_path)
    assert engine.doing() == "waiting; it has written nothing yet"
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "log").write_text("starting Spark\nbatch 3 is still running\n")
    assert engine.doing() == "waiting; its last line: batch 3 is still running"
