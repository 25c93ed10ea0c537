"""The chaos tool itself: its counts, plans and verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from downspout.kafka import TopicPartition
from tools.chaos import recorder
from tools.chaos.members import Members
from tools.chaos.plan import FULL, FULL_CLUSTER, NAMES, Fault, make_plan
from tools.chaos.recorder import Recorder, Records
from tools.chaos.report import Part, Report
from tools.chaos.runner import Outcome
from tools.chaos.stage import Gap, Pulse

PARTITIONS = 2
ZERO = TopicPartition("t", 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(recorder.FOLDER, str(tmp_path))
    monkeypatch.setattr(recorder, "OFFSETS_MAX", 1 << 12)
    recorder.prepare(tmp_path, PARTITIONS)
    return tmp_path


def life(folder: Path, pid: int, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(recorder.os, "getpid", lambda: pid)
    made = Recorder()
    made.initialize({}, {})
    made.on_partitions_reassigned(frozenset({ZERO}))
    return made


def emit(to: Recorder, *offsets: int) -> None:
    for offset in offsets:
        to.on_emit(ZERO, offset, [])


def test_what_a_dead_process_had_out_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emits, acks and fails are counted where they survive the process; emits of several processes are added."""
    records = Records(folder, PARTITIONS)
    first = life(folder, 11, monkeypatch)
    emit(first, *range(10))
    for offset in range(4):
        first.on_ack(ZERO, offset)
    first.on_retry(ZERO, 5)
    del first
    second = life(folder, 12, monkeypatch)
    emit(second, *range(4, 12))
    records.follow([11, 12])
    records.follow([12])
    assert records.out(11) == 5
    assert records.mine(11) == [0]
    assert records.out(12) == 8
    assert records.resolved() == 4
    assert (records.out_to(), records.done_to()) == ([12, 0], [4, 0])
    assert records.emitted_again() == (12, 6)
    assert records.last_progress_s()[0] > 0
    assert records.last_progress_s()[1] == 0


def test_a_run_without_room_for_more_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more offsets can be counted a run ends with an error, instead of waiting for records that never come."""
    records = Records(folder, PARTITIONS)
    emit(life(folder, 11, monkeypatch), recorder.OFFSETS_MAX - 2)
    records.follow([11])
    records.check_room()
    emit(life(folder, 12, monkeypatch), recorder.OFFSETS_MAX - 1)
    records.follow([12])
    with pytest.raises(RuntimeError, match="4,096 offsets of a partition were emitted"):
        records.check_room()


def test_what_may_come_again_is_what_no_commit_calls_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was emitted, the offsets below the commit and those in its ranges are known to be done."""
    emit(life(folder, 11, monkeypatch), *range(10), 12, 13)
    records = Records(folder, PARTITIONS)
    records.follow([11])
    assert records.untold(0, 0, []) == 12
    assert records.untold(0, 4, [(6, 8), (12, 20)]) == 4
    assert records.untold(1, 0, []) == 0


def test_a_partition_that_was_lost_has_nothing_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rebalance only what was emitted since is out, whether the partition went or came back."""
    made = life(folder, 11, monkeypatch)
    records = Records(folder, PARTITIONS)
    emit(made, *range(10))
    emit(made, 3, 4)
    assert records.out(11) == 2
    made.on_partitions_reassigned(frozenset())
    assert records.out(11) == 0
    assert records.mine(11) == []


def test_the_whole_plan_is_what_was_promised() -> None:
    """200 kills, 50 joins, leaves and stops, 10 restarts, and 5 kills each of a leader and of the coordinator."""
    plan = make_plan(FULL, 1) + make_plan(FULL_CLUSTER, 1)
    counts = {kind: sum(fault.kind == kind for fault in plan) for kind in NAMES}
    assert counts["kill"] == 200
    assert counts["join"] + counts["leave"] + counts["stop"] == 50
    assert (counts["restart"], counts["leader"], counts["coordinator"]) == (10, 5, 5)
    assert all(fault.down_s > 10 for fault in plan if fault.kind == "stop")
    assert {fault.hard for fault in plan if fault.kind == "restart"} == {True, False}


def test_a_mixed_group_changes_its_mode_with_each_life(tmp_path: Path) -> None:
    """Neighbours begin in different modes, and who is started again has the other one; otherwise all have the same."""
    mixed = Members(tmp_path, "topology.py", {}, {}, "mixed")
    assert [mixed.mode(number) for number in (1, 2, 3, 1, 2, 1)] == [
        "record", "chunk", "record", "chunk", "record", "record",
    ]  # fmt: skip
    assert mixed.lives == {"record": 4, "chunk": 2}
    alike = Members(tmp_path, "topology.py", {}, {}, "chunk")
    assert [alike.mode(number) for number in (1, 2, 1)] == ["chunk"] * 3


def a_part(**changed: Any) -> Part:
    """Return what came of 20 faults that all landed, and did no harm, unless that is changed."""
    outcomes = [Outcome(Fault("kill", 1, 0.0, 0.0), 4_000, 100, True, 50, 3.0) for _ in range(20)]
    audit = {"exit_code": 0, "verdict": "exact", "partitions": []}
    gap = Gap(0, 12.0, 0.0, 12.0)
    made: dict[str, Any] = {"name": "x", "outcomes": outcomes, "records": 9, "again": 1_000, "lag": 0}
    made |= {"exit_codes": [143, 143], "audit": audit, "gap": gap, "undisturbed": gap}
    return Part(**made | changed)


def test_a_good_run_is_good() -> None:
    """Faults that landed and did no harm are no problem, nor are duplicate emits up to the bound."""
    report = Report([a_part()], 1, "make chaos")
    assert report.exit_code == 0
    assert "| kill -9 of a process | 20 | 20 | 3.0 s |" in report.text()
    assert "1,000 (bound: 1,000)" in report.text()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"audit": {"exit_code": 11, "verdict": "NOT exact: 3 duplicate"}}, "3 duplicate"),
        ({"again": 1_001}, "above the bound"),
        ({"lag": 7}, "7 records were not committed"),
        ({"lag": None}, "nobody knows"),
        ({"exit_codes": [143, -9]}, "ended with"),
        ({"fallen": ["member 2 ended with 8: boom"]}, "boom"),
        ({"undisturbed": Gap(2, 30.0, 0.0, 20.1)}, "partition 2 made no progress for 20.1 s"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, Any], says: str) -> None:
    """Each kind of harm makes the run a bad one, with a word on what it was."""
    report = Report([a_part(**changed)], 1, "make chaos")
    assert report.exit_code == 1
    assert any(says in text for text in [*report.problems, *report.delays])
    assert "NOT good" in report.text()


def test_faults_that_do_not_land_make_the_run_void() -> None:
    """Under 95 % of landed faults the figures mean nothing."""
    part = a_part()
    part.outcomes[0].landed = False
    assert not Report([part], 1, "").is_void
    part.outcomes[1].landed = False
    assert "void" in Report([part], 1, "").problems[0]


def test_a_gap_counts_from_the_last_fault_in_it() -> None:
    """The pulse keeps the longest time without progress, and the longest of those after the last disturbance."""
    pulse = Pulse()
    for now in range(100, 112):
        pulse.look([100.0, 0.0], float(now), disturbed_at=105.0)
    assert pulse.longest is not None
    assert pulse.longest_undisturbed is not None
    assert (pulse.longest.seconds, pulse.longest_undisturbed.undisturbed) == (11.0, 6.0)
