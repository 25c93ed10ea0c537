"""`make chaos`: see docs/decisions/0012."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.chaos.members import EMITS, said
from tools.chaos.plan import FULL, FULL_CLUSTER, Fault, make_plan, scaled
from tools.chaos.report import Part, Report
from tools.chaos.runner import Runner
from tools.chaos.stage import AHEAD, Stage

MINUTES_FULL = 45.0
FINISH_S = 240.0
STAGES = {1: ("One broker", FULL), 3: ("Three brokers", FULL_CLUSTER)}
"""By the number of brokers: a name, and how many faults of each kind."""


def main() -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the plan (default: 1)")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES_FULL, help=f"about how long (default: {MINUTES_FULL:g}, all faults)"
    )
    parser.add_argument("--brokers", type=int, choices=sorted(STAGES), help="only the part on so many brokers")
    parser.add_argument("--emit", choices=EMITS, default="mixed", help="what tuples are (default: mixed, both)")
    parser.add_argument("--bucket", action="store_true", help="write to an S3 server, some of whose answers are lost")
    parser.add_argument("--report", type=Path, help="write the report as Markdown")
    parser.add_argument("--folder", type=Path, help="where all data go, and stay; otherwise a temporary folder")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="downspout-chaos-"))
    began = time.monotonic()

    def told(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    share = arguments.minutes / MINUTES_FULL
    brokers = [arguments.brokers] if arguments.brokers else list(STAGES)
    report = chaos(folder, arguments.seed, share, told, brokers, arguments.emit, arguments.bucket)
    print(report.text())
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(report.text(), encoding="utf-8")
    if report.exit_code:
        print(f"the data are in {folder}", file=sys.stderr)
    elif not arguments.folder:
        shutil.rmtree(folder, ignore_errors=True)
    return report.exit_code


def chaos(
    folder: Path, seed: int, share: float, told: Callable[[str], None], brokers: Sequence[int], emit: str, bucket: bool
) -> Report:
    """Do all parts; after Ctrl-C, report what was done until then."""
    parts: list[Part] = []
    interrupted = False
    for nodes in brokers:
        name, counts = STAGES[nodes]
        plan = make_plan(scaled(counts, share), seed)
        told(f"{name}: {len(plan)} faults")
        part, interrupted = play(folder / f"brokers-{nodes}", nodes, name, plan, told, emit=emit, bucket=bucket)
        parts.append(part)
        if interrupted:
            break
    only = "" if len(brokers) > 1 else f" BROKERS={brokers[0]}"
    only += "" if emit == "mixed" else f" EMIT={emit}"
    only += " BUCKET=1" if bucket else ""
    command = f"make chaos MINUTES={share * MINUTES_FULL:g} SEED={seed}{only}"
    return Report(parts, seed, command, partial=interrupted)


def play(
    folder: Path,
    nodes: int,
    name: str,
    plan: list[Fault],
    told: Callable[[str], None],
    ahead: int = AHEAD,
    emit: str = "mixed",
    bucket: bool = False,
) -> tuple[Part, bool]:
    """Do one plan on one stage; return what came of it, and whether it was interrupted."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with Stage(folder, nodes, ahead, emit, bucket) as stage:
        runner = Runner(stage, told)
        interrupted = False
        try:
            runner.run(plan)
        except KeyboardInterrupt:
            interrupted = True
        except RuntimeError as error:
            told(str(error))
            interrupted = True
        told("the end: no more records, all that is there is processed")
        lag, codes = stage.finish(FINISH_S)
        told("the audit")
        records, again = stage.records.emitted_again()
        logs = [stage.members.log(number) for number in range(1, 6)]
        part = Part(
            name,
            runner.outcomes,
            records,
            again,
            lag,
            codes,
            stage.audit(),
            stage.pulse.longest,
            stage.pulse.longest_undisturbed,
            stage.members.fallen,
            [line for log in logs for line in said(log, "makes no progress")],
            time.monotonic() - began,
            stage.members.lives,
            Counter(text.partition(" ")[0] for text in stage.store.injected) if stage.store else {},
            len(stage.store.requests) if stage.store else 0,
        )
        told(str(part.audit.get("verdict")))
    return part, interrupted


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
