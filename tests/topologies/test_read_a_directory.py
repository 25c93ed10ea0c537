"""The how-to on reading a directory runs as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import ROOT, python_blocks

pytestmark = pytest.mark.fake_only("runs a topology in virtual time; what it leaves is read from the disk alone")


@pytest.mark.slow
def test_the_how_to_on_reading_runs(output: Path) -> None:
    """Every line of Python of the page runs, and all engines see the same flights."""
    code = python_blocks(ROOT / "docs" / "how-to" / "read-a-directory.md").replace("output/", f"{output}/")
    names: dict[str, Any] = {}
    exec(compile(code, "read-a-directory.md", "exec"), names)
    flights, late = names["flights"], names["late"]
    assert len(flights) > 100
    assert dict(names["busiest"]) == flights["carrier"].astype(str).value_counts().to_dict()
    wanted = flights[flights["dep_delay"] > 60]
    assert len(late) == len(names["frame"]) == len(names["same"]) == len(wanted) > 0
    assert names["mean"] == [(wanted["dep_delay"].mean(),)]
    assert list(names["table"].column_names) == ["carrier", "dep_delay"]
