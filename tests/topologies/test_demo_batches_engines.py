"""The demo of batches on a real Storm and on real Spark, with few records."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from demos import to_batches
from demos.screen import Screen
from demos.to_batches import BatchDemo

LINES = ["to be or not to be", "that is the question", "", "to be"] * 300


@pytest.mark.sweep
@pytest.mark.broker
@pytest.mark.storm
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_states_equal_a_plain_count_on_storm_and_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words and flights are exact on both, though a process is killed and the broker restarted; so is a reducer."""
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(to_batches, "project_lines", lambda: LINES)
    monkeypatch.setattr(to_batches, "REPEATS", 1)
    monkeypatch.setattr(to_batches, "KINDS", ("opaque",))
    out = io.StringIO()
    demo = BatchDemo(400, 1, Screen(Console(file=out, width=200)), 1, ["storm", "spark"])
    assert demo.run() == 0, out.getvalue()
    said = " ".join(out.getvalue().split())
    for engine in ("Storm", "Spark"):
        assert f"✓ {engine} opaque, words: 1 kill, 1 of them in a batch, the broker restarted, " in said
        assert f"✓ {engine} opaque, flights: 0 kills, " in said
    assert "to 900 900 900" in said
