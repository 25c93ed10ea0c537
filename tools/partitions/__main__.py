"""`make partitions`: brokers, workers and a store on machines of their own, whose network, clocks and disks fail."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.system import jars
from tools.partitions import machines
from tools.partitions.schedule import NAMES, STORES, WITH_SHIM, Fault, make_schedule, pause_brokers
from tools.partitions.stage import GOOD_ENDS, Stage

MINUTES, RATE = 20.0, 200.0
CAUGHT_UP_S_MAX = 60.0
"""The promise: so long after the last fault everybody has caught up."""
FINISH_S_MAX = 300.0


@dataclass
class Outcome:
    """What came of a fault: when it ended, whether something met it, and how long it took to catch up afterwards."""

    fault: Fault
    ended: float
    hit: bool
    recovery_s: float | None = None


@dataclass
class Report:
    """What was found."""

    command: str
    caught_up_s_max: float = CAUGHT_UP_S_MAX
    outcomes: list[Outcome] = field(default_factory=list)
    verdict: dict[str, Any] = field(default_factory=dict)
    exit_codes: list[int | None] = field(default_factory=list)
    fallen: list[str] = field(default_factory=list)
    last_s: float | None = None
    """How long it took after the last fault until everybody had caught up; None: nobody waited for so long."""

    @property
    def problems(self) -> list[str]:
        """What is wrong."""
        found = [f"{self.verdict.get(name)} {name}" for name in WRONG if self.verdict.get(name) != 0]
        found += self.fallen
        if any(code not in GOOD_ENDS for code in self.exit_codes):
            found.append(f"workers ended with {self.exit_codes}")
        if self.last_s is None or self.last_s > self.caught_up_s_max:
            found.append(f"caught up {self.last_s and round(self.last_s)} s after the last fault")
        if not any(outcome.hit for outcome in self.outcomes):
            found.append("no fault was met by anything")
        return found

    def text(self) -> str:
        """Return the report as Markdown."""
        lines = ["# Partitions", "", f"`{self.command}`", "", "| fault | done | met | longest recovery |"]
        lines.append("| --- | ---: | ---: | ---: |")
        for kind, name in [*NAMES.items(), ("", "**all**")]:
            if of_kind := [outcome for outcome in self.outcomes if kind in ("", outcome.fault.kind)]:
                took = [outcome.recovery_s for outcome in of_kind if outcome.recovery_s is not None]
                longest = f"{max(took):.1f} s" if took else "–"
                lines.append(f"| {name} | {len(of_kind)} | {sum(each.hit for each in of_kind)} | {longest} |")
        figures = {name: f"{count:,}" for name, count in self.verdict.items()}
        figures["caught up after the last fault"] = "never" if self.last_s is None else f"{self.last_s:.1f} s"
        figures["exits"] = str(len(self.fallen))
        lines += ["", *(f"* {name}: {figure}" for name, figure in figures.items()), ""]
        problems = "; ".join(self.problems)
        return "\n".join([*lines, f"**NOT good:** {problems}." if problems else "**Good.**", ""])


WRONG = ("lost", "doubled", "alien", "dead-lettered")


def play(stage: Stage, faults: list[Fault], report: Report) -> None:
    """Do all faults, and wait until everybody has caught up."""
    began = time.monotonic()

    def told(text: str) -> None:
        status = stage.status
        print(
            f"{time.monotonic() - began:6.0f} s  {text}  ({status['acknowledged']:,} acknowledged, "
            f"{status['waiting']:,} of them not in the output)", file=sys.stderr, flush=True,
        )  # fmt: skip

    def follow() -> None:
        """Note who has caught up, and how long after the last fault that is over."""
        oldest, at = stage.status["oldest"], stage.status["at"]
        for outcome in report.outcomes:
            if outcome.recovery_s is None and at > outcome.ended and (oldest is None or oldest > outcome.ended):
                outcome.recovery_s = max(0.0, at - report.outcomes[-1].ended)

    stage.on_turn = follow
    for fault in faults:
        stage.wait(lambda: False, fault.after_s)
        told(str(fault))
        hit = stage.do(fault)
        report.outcomes.append(Outcome(fault, time.monotonic(), hit))
    told("the last fault is over")
    sent = stage.stop_feeding()
    fed_at = time.monotonic()
    if stage.wait(lambda: stage.status["at"] > fed_at and not stage.status["waiting"], FINISH_S_MAX):
        follow()
        report.last_s = time.monotonic() - report.outcomes[-1].ended
    told("the workers end")
    report.exit_codes = stage.stop_workers()
    stage.compare(sent)
    report.verdict, report.fallen = stage.verdict, stage.fallen


def main() -> int:
    """Parse, play, report."""
    parser = argparse.ArgumentParser(prog="python -m tools.partitions", description=__doc__)
    parser.add_argument("--sink", choices=STORES, default="disk", help="where rows go (default: disk)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (default: 1)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"of faults (default: {MINUTES:g})")
    parser.add_argument("--rate", type=float, default=RATE, help=f"records a second (default: {RATE:g})")
    parser.add_argument("--broker-pauses", type=int, help="instead: pause one broker after the other, so many times")
    parser.add_argument(
        "--caught-up",
        type=float,
        default=CAUGHT_UP_S_MAX,
        metavar="SECONDS",
        help=f"longest time after the last fault (default: {CAUGHT_UP_S_MAX:g}, which is the promise)",
    )
    parser.add_argument("--folder", type=Path, help="where all data go, and stay; otherwise a temporary folder")
    parser.add_argument("--report", type=Path, help="write the report as Markdown")
    given = parser.parse_args()
    if machines.INSIDE not in os.environ:
        if (reason := machines.missing()) is not None:
            print(f"skipped: {reason}", file=sys.stderr)
            return 0
        for jar in ("kafka", *(["s3proxy"] if given.sink == "s3" else [])):
            jars.resolve(jar)  # inside is no way to fetch them
        machines.go_inside("tools.partitions", sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="downspout-partitions-", dir="/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(folder, given.sink, given.rate)
    if stage.network.shim is None:
        print(f"left out, since there is no C compiler: {', '.join(sorted(WITH_SHIM))}", file=sys.stderr)
    command = f"make partitions SINK={given.sink} "
    if given.broker_pauses:
        faults = pause_brokers(given.broker_pauses)
        command += f"BROKER_PAUSES={given.broker_pauses}"
    else:
        faults = make_schedule(given.sink, given.seed, 60 * given.minutes, shim=stage.network.shim is not None)
        command += f"SEED={given.seed} MINUTES={given.minutes:g}"
    report = Report(command, given.caught_up)
    try:
        stage.start()
        play(stage, faults, report)
    finally:
        stage.end()
    print(report.text())
    if given.report:
        given.report.write_text(report.text(), encoding="utf-8")
    if report.problems:
        print(f"the data are in {folder}", file=sys.stderr)
    elif not given.folder:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
