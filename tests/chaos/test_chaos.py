"""Chaos in small: all kinds of faults, on one real broker and on three. `make chaos` is the same at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.chaos.__main__ import play
from tools.chaos.plan import FULL, FULL_CLUSTER, Fault
from tools.chaos.report import Report

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ONE = [
    Fault("kill", 1, pause_s=0.3, down_s=0.0),
    Fault("restart", 1, pause_s=0.4, down_s=1.0, hard=True),
    Fault("join", 1, pause_s=0.1, down_s=2.0),
    Fault("kill", 3, pause_s=0.5, down_s=0.0, eager=True),
    Fault("leave", 1, pause_s=0.2, down_s=0.0),
    Fault("stop", 2, pause_s=0.6, down_s=11.0),
]
THREE = [
    Fault("leader", 0, pause_s=0.3, down_s=0.0),
    Fault("kill", 1, pause_s=0.7, down_s=0.0),
    Fault("coordinator", 1, pause_s=0.5, down_s=0.0),
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("brokers", "plan", "kinds"),
    [
        pytest.param(1, ONE, FULL, id="one"),
        pytest.param(3, THREE, FULL_CLUSTER, id="three", marks=pytest.mark.sweep),
    ],
)
def test_whatever_is_killed_each_row_is_there_once(
    brokers: int, plan: list[Fault], kinds: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All faults land, nothing is lost, nothing is there twice, and no more is emitted twice than was in flight."""
    assert {fault.kind for fault in plan} == set(kinds)
    part, interrupted = play(tmp_path, brokers, f"{brokers} broker(s)", plan, lambda text: None, ahead=6_000)
    report = Report([part], seed=0, command="")
    with capsys.disabled():
        print(f"\n{report.text()}")
    assert not interrupted
    assert report.problems == []
    assert report.landed == len(plan)
    assert part.audit["exit_code"] == 0
    assert sum(each["present"] for each in part.audit["partitions"]) == part.records > 10_000
