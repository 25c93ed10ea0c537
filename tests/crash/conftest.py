"""Reports at the end of a run which cases of the crash matrix ran."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.crash.matrix import RECOVERIES, Outcome
from tests.machine import LOSSES

OUTCOMES = pytest.StashKey[dict[str, Outcome]]()


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    return request.config.stash.setdefault(OUTCOMES, {})


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Let Arrow not divide what takes a millisecond among threads."""
    before = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    yield
    pa.set_cpu_count(before[0])
    pa.set_io_thread_count(before[1])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many points were tried, and how many of them broke a promise."""
    if not (found := config.stash.get(OUTCOMES, {})):
        return
    points, looks = sum(one.points for one in found.values()), sum(one.looks for one in found.values())
    cells, same = sum(one.cells for one in found.values()), sum(one.same for one in found.values())
    broken = sum(len(one.violations) for one in found.values())
    terminalreporter.write_line(
        f"crash matrix: {points:,} points × {len(RECOVERIES)} recoveries × {len(LOSSES)} disks = {cells:,} cells "
        f"({looks} points are looks, where only a sleep matters; {same:,} cells left a state that was tried before): "
        f"{broken} violations",
        red=bool(broken),
    )
