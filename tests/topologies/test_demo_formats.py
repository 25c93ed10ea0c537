"""The demo of a schema registry, Delta and Iceberg, with few flights: killed, and read by all readers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from demos import to_formats
from demos.screen import Screen
from demos.to_formats import FormatsDemo, documents, wanted

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS, KILLS = 2_000, 2


@pytest.mark.sweep
@pytest.mark.broker
@pytest.mark.slow
def test_the_demo_is_exact(tmp_path: Path) -> None:
    """Topology and exports are killed; audit, dead letters and all readers but Spark find what they should."""
    code = (
        "import sys; from demos.screen import Screen; from demos.to_formats import FormatsDemo\n"
        f"sys.exit(FormatsDemo({FLIGHTS}, {KILLS}, Screen(), with_spark=False).run())"
    )
    environment = {**os.environ, "DOWNSPOUT_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "exact: 2,000 offsets are in the files, each exactly once; 3 dead-lettered" in said
    assert "3 dead letters, such as " in said
    assert said.count("2,000 flights; sums equal the package's") == 7


def test_half_of_the_flights_have_no_tail_number() -> None:
    """What the first schema does not have is not asked of its half, and what is missing is null."""
    frame = pd.DataFrame({
        "carrier": ["UA"] * 4, "flight": 1, "origin": "EWR", "dest": "IAH", "distance": [1, 2, 3, 4],
        "dep_delay": [1.0, None, 2.0, 3.0], "arr_delay": None, "month": 1, "tailnum": ["a", "b", "c", None],
    })  # fmt: skip
    assert wanted(frame) == (4, 4, 10, 1)
    assert [row["dep_delay"] for row in documents(frame)] == [1, None, 2, 3]


def test_a_reader_that_finds_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"one": lambda: (4, 4, 10, 1), "another": lambda: (4, 3, 10, 1)}
    monkeypatch.setattr(to_formats, "readers", lambda directory: found)
    findings = list(FormatsDemo(4, 0, Screen()).read((4, 4, 10, 1)))
    assert [finding.right for finding in findings] == [True, False]
    assert findings[1].text == "another: (4, 3, 10, 1), not (4, 4, 10, 1)"
