"""`make partitions` on a small scale, into each sink; and that it detects errors."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sample
from tools.partitions import checker, feed, machines
from tools.partitions.__main__ import Outcome, Report
from tools.partitions.schedule import BROKERS, NAMES, STORES, Fault, make_schedule, pause_brokers

ROOT = Path(__file__).parents[2]
LIMIT_S = 840
"""Servers start, and a minute of faults, and all that everybody catches up with: never longer."""


def play(*options: str) -> str:
    """Run it; return what it reports."""
    if (reason := machines.missing()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "tools.partitions", "--caught-up", "240", *options]
    run = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        report, said = run.communicate(timeout=LIMIT_S)
    finally:
        if run.poll() is None:
            os.kill(run.pid, signal.SIGKILL)  # all that it has started ends with it
    assert run.returncode == 0, f"{said}\n{report}"
    return report


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("sink", sample(list(STORES), len(STORES), "partitions"))
def test_rows_are_exact_and_everybody_goes_on(sink: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A minute of cuts, pauses, wrong clocks, slow and full disks: each acknowledged record is in the output once, no
    worker ends, and after the last fault all catch up without help."""
    report = play("--sink", sink, "--minutes", "1")
    with capsys.disabled():
        print(f"\n{report}")


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.sweep
def test_a_transactional_bolt_outlives_ten_pauses_of_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    """Each lasts 20 s, longer than sessions and transactions: no exit, no dead letter, and each result once."""
    report = play("--sink", "kafka", "--broker-pauses", "10")
    with capsys.disabled():
        print(f"\n{report}")


@pytest.mark.parametrize("sink", STORES)
def test_a_schedule_follows_from_its_seed_and_has_faults_of_all_kinds(sink: str) -> None:
    """Another seed has another one; without a compiler no fault is in it whose effect nobody could see."""
    whole = make_schedule(sink, 7, 1_200)
    assert whole == make_schedule(sink, 7, 1_200)
    assert whole != make_schedule(sink, 8, 1_200)
    full = {"full"} if sink in ("disk", "sql") else set()
    assert {fault.kind for fault in whole} == NAMES.keys() - {"full"} | full
    assert {fault.kind for fault in make_schedule(sink, 7, 600, shim=False)} == {"cut", "one-way", "flapping", "pause"}
    assert {fault.victim for fault in pause_brokers(10)} == set(BROKERS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lost": 1}, "1 lost"),
        ({"doubled": 2}, "2 doubled"),
        ({"alien": 3}, "3 alien"),
        ({"dead-lettered": 4}, "4 dead-lettered"),
        ({"exit_codes": [143, 7, 143]}, "workers ended with [143, 7, 143]"),
        ({"fallen": ["w1 ended with 4"]}, "w1 ended with 4"),
        ({"last_s": 61.0}, "caught up 61 s after the last fault"),
        ({"last_s": None}, "caught up None s after the last fault"),
        ({"hit": False}, "no fault was met by anything"),
    ],
)
def test_what_is_wrong_is_in_the_verdict(change: dict[str, object], problem: str) -> None:
    """A report is good without this change alone."""

    def made(changes: dict[str, object]) -> Report:
        verdict = {"lost": 0, "doubled": 0, "alien": 0, "dead-lettered": 0}
        good = Report("", verdict=dict(verdict), exit_codes=[143] * 3, last_s=1.0)
        hit = bool(changes.pop("hit", True))
        good.outcomes.append(Outcome(Fault("cut", "w1"), 0.0, hit, 1.0))
        for name, value in changes.items():
            if name in verdict:
                good.verdict[name] = value
            else:
                setattr(good, name, value)
        return good

    assert made({}).problems == []
    (found,) = made(dict(change)).problems
    assert found == problem


@pytest.mark.parametrize("module", [checker, feed], ids=lambda module: module.__name__)
def test_who_judges_has_nothing_of_ours(module: object) -> None:
    """The feed and the checker import neither the library nor its patches of the client."""
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & {"downspout", "spouts", "bolts", "tools", "tests", "demos"}
