"""``downspout head``: the last rows of a directory, for people and for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bolts.parquet import with_origins
from downspout.cli import main
from downspout.sink import Identities, SinkWriter
from tests.disks import SteppedDisk
from tests.sink.compaction_support import compact, flush


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of three flushes, each with ten rows in two folders."""
    for number in range(3):
        flush(tmp_path / "out", range(number * 10, number * 10 + 10), f"w{number}")
    return tmp_path / "out"


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """Return what the command prints as JSON."""
    assert main(["head", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_last_rows_come_from_the_last_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows of a flush stand behind those of the one before it; what the sink adds to a row is left out."""
    every = rows(capsys, str(directory), "-n", "100")
    assert [sorted(row["value"] for row in every[at : at + 10]) for at in (0, 10, 20)] == [
        [*range(at, at + 10)] for at in (0, 10, 20)
    ]
    assert every[0].keys() == {"month", "value"}
    assert rows(capsys, str(directory)) == every[-10:]
    assert rows(capsys, str(directory), "-n", "3") == every[-3:]


def test_after_a_compaction_all_rows_are_there(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are in the files that the compaction has made."""
    before = rows(capsys, str(directory), "-n", "100")
    compact(directory)
    after = rows(capsys, str(directory), "-n", "100")
    assert sorted(map(str, after)) == sorted(map(str, before))


def test_the_table_has_a_line_for_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers stand flush right, null is empty, and what is long, or would move the cursor, does no harm."""
    columns = ["name:string", "n:int64", "at:timestamp", "raw:binary", "tags:list<string>"]
    writer = SinkWriter(
        tmp_path / "out", topology="t", component="sink", columns=columns, writer="w", disk=SteppedDisk()
    )
    writer.open()
    at = datetime(2026, 11, 29, 12, 30, tzinfo=UTC)
    found = pa.table(
        {
            "name": ["a\x1b[2Jb", None, "x" * 100],
            "n": pa.array([5, 1234, None], pa.int64()),
            "at": pa.array([at, None, at], pa.timestamp("us", "UTC")),
            "raw": pa.array([b"\xff\x00", b"text", None], pa.binary()),
            "tags": pa.array([["p", None], [], None], pa.list_(pa.string())),
        }
    )
    identities = Identities.of([("orders", "id", 0, offset, "") for offset in range(3)])
    table = with_origins(found, identities)
    writer.flush(identities, lambda mask, _: table.filter(pa.array(mask)))
    assert main(["head", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name                                         n  at                         raw       tags",
        'a\\x1b[2Jb                                    5  2026-11-29T12:30:00+00:00  \\xff\\x00  ["p", null]',
        "                                          1234                             text      []",
        f"{'x' * 39}…        2026-11-29T12:30:00+00:00",
    ]
    last = rows(capsys, str(tmp_path / "out"), "-n", "1")
    assert last == [{"name": "x" * 100, "n": None, "at": at.isoformat(), "raw": None, "tags": None}]


def test_what_is_no_sinks_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names it."""
    assert main(["head", str(tmp_path / "none")]) == 7
    assert f"{tmp_path / 'none'} does not exist" in capsys.readouterr().err
