from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduling import LONGER_S, ROOT, read_timings, write_timings


@pytest.mark.xdist_group("a-group")
def test_a_group_stays_together(request: pytest.FixtureRequest) -> None:
    """xdist knows the group of a test, which it reads from the test's id; else three Storms may run at once."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@a-group")


def test_timings_are_kept_where_a_test_did_not_run(tmp_path: Path) -> None:
    """A part of the suite renews its own timings; what is quick is not recorded."""
    file = tmp_path / "timings.json"
    write_timings({"tests/a.py::test_a": 3.14, "tests/b.py::test_b": 2.0, "tests/c.py::test_c": 0.1}, file)
    write_timings({"tests/b.py::test_b": 5.0}, file)
    assert read_timings(file) == {"tests/a.py::test_a": 3.1, "tests/b.py::test_b": 5.0}


def test_longer_limits_name_tests_that_are_there() -> None:
    """An entry for a file that was moved would silently give its tests the usual limit."""
    gone = [start for start in LONGER_S if not list(ROOT.glob(f"{start.partition('::')[0]}*"))]
    assert not gone
