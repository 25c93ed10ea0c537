"""The report of a chaos run: figures and verdict."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from downspout.errors import BrokerError
from tools.chaos.plan import NAMES
from tools.chaos.runner import Outcome
from tools.chaos.stage import Gap
from tools.chaos.topology import SESSION_MS

LANDED_MIN = 0.95
NO_BROKER = f"ended with {BrokerError.exit_code}:"
"""Exit code of a process that starts or stops without a broker."""
STALL_S_MAX = 2 * SESSION_MS / 1000


@dataclass
class Part:
    """The outcome on one stage.

    Attributes:
        name: of the stage.
        outcomes: of the faults.
        records: how many different ones were emitted.
        again: emits beyond the first of each.
        lag: what the group had not committed at the end.
        exit_codes: of the processes that ended in order.
        audit: what `downspout audit --json` said.
        gap: the longest time without progress.
        undisturbed: the longest after the last fault in it, brokers being there.
        fallen: processes that ended by themselves.
        stalls: warnings of partitions that are stuck.
        seconds: how long all of it took.
        lives: how many processes were started in each mode (``kafka.emit``).
        injected: requests for objects that were answered by 503 (``slow``), or whose answers were lost (``lose``).
        requests: how many requests for objects there were; 0: the rows went to a disk.
    """

    name: str
    outcomes: Sequence[Outcome]
    records: int
    again: int
    lag: int | None
    exit_codes: Sequence[int]
    audit: dict[str, Any]
    gap: Gap | None
    undisturbed: Gap | None
    fallen: Sequence[str] = ()
    stalls: Sequence[str] = ()
    seconds: float = 0.0
    lives: Mapping[str, int] = field(default_factory=dict)
    injected: Mapping[str, int] = field(default_factory=dict)
    requests: int = 0

    def rows(self, kind: str) -> int:
        """Return how many rows, or offsets, the audit found to be of a kind."""
        return sum(part.get("rows_of", {}).get(kind, 0) for part in self.audit.get("partitions", []))


@dataclass
class Report:
    """All parts together."""

    parts: list[Part]
    seed: int
    command: str
    partial: bool = False
    problems: list[str] = field(default_factory=list)
    """What is wrong, however fast the machine."""
    delays: list[str] = field(default_factory=list)
    """What took too long."""

    def __post_init__(self) -> None:
        self.problems += list(self._find_problems())
        self.delays += list(self._find_delays())

    @property
    def outcomes(self) -> list[Outcome]:
        """All faults."""
        return [outcome for part in self.parts for outcome in part.outcomes]

    @property
    def landed(self) -> int:
        """How many landed."""
        return sum(outcome.landed for outcome in self.outcomes)

    @property
    def is_void(self) -> bool:
        """Whether too few faults landed for the rest to mean anything."""
        return self.landed < LANDED_MIN * len(self.outcomes)

    @property
    def exit_code(self) -> int:
        """0: all is well."""
        return 1 if self.problems or self.delays else 0

    def _find_delays(self) -> Iterator[str]:
        for part in self.parts:
            gap = part.undisturbed
            if gap is not None and gap.undisturbed > STALL_S_MAX:
                yield f"{part.name}: partition {gap.partition} made no progress for {gap.undisturbed:.1f} s"

    def _find_problems(self) -> Iterator[str]:
        if self.is_void:
            yield f"void: {self.landed} of {len(self.outcomes)} faults landed, under {LANDED_MIN:.0%}"
        for part in self.parts:
            if part.audit["exit_code"] != 0:
                yield f"{part.name}: {part.audit.get('verdict')}"
            if part.lag != 0:
                count = "nobody knows how many" if part.lag is None else f"{part.lag:,}"
                yield f"{part.name}: {count} records were not committed at the end"
            if any(code not in (0, 143) for code in part.exit_codes):
                yield f"{part.name}: the processes ended with {list(part.exit_codes)}"
            if part.again > (bound := again_max(part.outcomes)):
                yield f"{part.name}: {part.again:,} duplicate emits, above the bound of {bound:,}"
            for text in part.fallen:
                if NO_BROKER not in text:
                    yield f"{part.name}: {text}"

    # --- in words ---

    def text(self) -> str:
        """Return the report as Markdown."""
        lines = ["# Chaos", "", f"`{self.command}`, seed {self.seed}; {_machine()}.", ""]
        if self.partial:
            lines += ["Stopped before its end: what follows is about the faults until then.", ""]
        lines += self._faults()
        for part in self.parts:
            lines += self._part(part)
        verdict = "; ".join([*self.problems, *self.delays]) or "every record is in the files exactly once"
        return "\n".join([*lines, f"**{'NOT good' if self.exit_code else 'Good'}:** {verdict}.", ""])

    def _faults(self) -> list[str]:
        lines = ["| fault | planned | landed | longest recovery |", "| --- | ---: | ---: | ---: |"]
        for kind, name in NAMES.items():
            of_kind = [outcome for outcome in self.outcomes if outcome.fault.kind == kind]
            if of_kind:
                took = [outcome.recovery_s for outcome in of_kind if outcome.recovery_s is not None]
                longest = f"{max(took):.1f} s" if took else "–"
                lines.append(f"| {name} | {len(of_kind)} | {sum(o.landed for o in of_kind)} | {longest} |")
        took = [outcome.recovery_s for outcome in self.outcomes if outcome.recovery_s is not None]
        longest = f"{max(took):.1f} s" if took else "–"
        return [*lines, f"| **all** | {len(self.outcomes)} | {self.landed} | {longest} |", ""]

    @staticmethod
    def _part(part: Part) -> list[str]:
        gap, still = part.gap, part.undisturbed
        figures = {
            "seconds": f"{part.seconds:,.0f}",
            "processes started": ", ".join(f"{count} in {mode} mode" for mode, count in sorted(part.lives.items()))
            or "–",
            "records": f"{part.records:,}",
            "lost (missing rows, and offsets that Kafka dropped)": f"{part.rows('missing') + part.rows('lost'):,}",
            "duplicate rows": f"{part.rows('duplicate'):,}",
            "rows that nobody knows": f"{part.rows('extra'):,}",
            "duplicate emits": f"{part.again:,} (bound: {again_max(part.outcomes):,})",
            "longest time without progress of a partition": f"{gap.seconds:.1f} s" if gap else "–",
            f"… after the last fault in it, at most {STALL_S_MAX:g} s": f"{still.undisturbed:.1f} s" if still else "–",
            "warnings of a stuck partition": f"{len(part.stalls)}",
            "processes that ended by themselves": " · ".join([f"{len(part.fallen)}", *part.fallen]),
            "audit": str(part.audit.get("verdict")),
        }
        if part.requests:
            slow, lost = (part.injected.get(what, 0) for what in ("slow", "lose"))
            figures["requests for objects"] = (
                f"{part.requests:,}, of which {slow:,} were answered by 503, and the answers of {lost:,} were lost"
            )
        return [f"## {part.name}", "", *(f"* {name}: {figure}" for name, figure in figures.items()), ""]


def again_max(outcomes: Sequence[Outcome]) -> int:
    """Return how many duplicate emits the faults may cause: what was emitted and not known to be done at each."""
    return sum(outcome.again_max for outcome in outcomes)


def _machine() -> str:
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
