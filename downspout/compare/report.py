"""What a comparison found, for people and as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from downspout.compare.multiset import Comparison, Difference
from downspout.errors import coordinates
from downspout.formatting import columns, counted
from downspout.kafka.port import TopicPartition

SHOWN_MAX = 3
ROW_CHARACTERS_MAX = 400


@dataclass(frozen=True)
class EngineRun:
    """How an engine's run went."""

    name: str  # of the engine
    seconds: float = 0.0  # how long it ran, its start and end included
    missing: str = ""  # why it did not begin; empty where it did
    error: str = ""  # why it did not get to its end; empty where it did

    @property
    def ran(self) -> bool:
        """Whether there are tables of its."""
        return not (self.missing or self.error)


@dataclass(frozen=True)
class Table:
    """One sink's table on all engines that ran."""

    name: str  # of the sink
    keys: Sequence[str]  # of an aggregate
    columns_wrong: Mapping[str, Sequence[str]]  # by engine, in what its columns differ; its rows are then not compared
    comparison: Comparison  # of the others

    @property
    def equal(self) -> bool:
        """Whether all are the same."""
        return not self.columns_wrong and self.comparison.equal


@dataclass(frozen=True)
class Report:
    """A whole comparison; the first engine that ran is what the others are held against."""

    topology: str
    ranges: Mapping[TopicPartition, tuple[int, int]]  # the offsets that were read
    engines: Sequence[EngineRun]  # all that were asked for
    tables: Sequence[Table]  # one for each sink
    explicit: bool = False  # whether the engines were named by the user, and so have to run
    left: Sequence[str] = field(default_factory=list)  # groups and topics that could not be deleted

    @property
    def exit_code(self) -> int:
        """0: equal; 1: different; 2: an engine that was to run did not get to its end, or fewer than two did."""
        if not all(table.equal for table in self.tables):
            return 1
        failed = [run for run in self.engines if run.error or (self.explicit and run.missing)]
        return 2 if failed or sum(run.ran for run in self.engines) < 2 else 0

    @property
    def verdict(self) -> str:
        """The result in one line."""
        ran = [run.name for run in self.engines if run.ran]
        if self.exit_code == 1:
            return f"different: {', '.join(table.name for table in self.tables if not table.equal)}"
        if len(ran) < 2:
            return f"nothing was compared: {'only ' + ran[0] if ran else 'no engine'} ran"
        equal = f"equal on {', '.join(ran)}"
        if not self.exit_code:
            return equal
        missing = [run.name for run in self.engines if not run.ran and (run.error or self.explicit)]
        return f"{equal}; {', '.join(missing)} did not run"

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "topology": self.topology,
            "exit_code": self.exit_code,
            "verdict": self.verdict,
            "ranges": {coordinates(*tp): list(given) for tp, given in self.ranges.items()},
            "engines": [
                {
                    "name": run.name,
                    "ran": run.ran,
                    "seconds": round(run.seconds, 3),
                    "why_not": run.missing or run.error,
                }
                for run in self.engines
            ],
            "tables": [_table_as_dict(table) for table in self.tables],
            "left": list(self.left),
        }

    def render(self) -> str:
        """Return it for people: a table, the first differences, and the verdict last."""
        lines = [
            f"{self.topology}: {counted(sum(e - s for s, e in self.ranges.values()), 'offset')} of {_topics(self)}"
        ]
        cells = [("table", "engine", "rows", "result", "seconds"), *self._cells()]
        lines += [f"  {line}" for line in columns(cells, {2, 4})]
        for run in self.engines:
            if not run.ran:
                lines.append(
                    f"{run.name} {'is not available' if run.missing else 'failed'}: {run.missing or run.error}"
                )
        for table in self.tables:
            lines += _explain(table)
        lines += [f"not deleted: {', '.join(self.left)}"] if self.left else []
        return "\n".join([*lines, self.verdict])

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for table in self.tables:
            found = table.comparison
            for run in (run for run in self.engines if run.ran):
                rows = f"{found.rows[run.name]:,}" if run.name in found.rows else ""
                yield table.name, run.name, rows, _result(table, run.name), f"{run.seconds:,.1f}"


def _result(table: Table, engine: str) -> str:
    if wrong := table.columns_wrong.get(engine):
        return f"other columns ({len(wrong)})"
    found = table.comparison
    if engine not in found.rows:
        return "is not made"
    if not any(found.rows.values()):
        return "empty"
    if engine == next(iter(found.rows)):
        return "the reference"
    if differing := found.differing[engine]:
        return f"differs in {counted(differing, 'row')}"
    repeated = found.duplicates[engine]
    return f"equal ({counted(repeated, 'duplicate')})" if repeated else "equal"


def _topics(report: Report) -> str:
    names: dict[str, int] = {}
    for tp in report.ranges:
        names[tp.topic] = names.get(tp.topic, 0) + 1
    return ", ".join(f"{name} ({counted(number, 'partition')})" for name, number in names.items())


def _explain(table: Table) -> list[str]:
    """Return the first differences in words."""
    lines = [f"{table.name}: {engine}: {'; '.join(wrong)}" for engine, wrong in table.columns_wrong.items()]
    found = table.comparison.differences
    for number, difference in enumerate(found[:SHOWN_MAX]):
        have = ", ".join(f"{engine} {count}" for engine, count in difference.counts.items())
        lines.append(f"{table.name}: how often each has this row: {have}")
        lines.append(f"    {_row(difference.row)}")
        if nearest := _nearest(difference, [*found[:number], *found[number + 1 :]], table.keys):
            changes = "; ".join(
                f"{name} is {difference.row[name]!r} here, {nearest.row[name]!r} there"
                for name in difference.row
                if _shown(difference.row[name]) != _shown(nearest.row[name])
            )
            where = ", ".join(f"{engine} {count}" for engine, count in nearest.counts.items())
            lines.append(f"    the nearest row ({where}): {changes}")
    if len(found) > SHOWN_MAX:
        lines.append(f"{table.name}: and more rows; --json has the first 1,000")
    return lines


def _nearest(one: Difference, others: Sequence[Difference], keys: Sequence[str]) -> Difference | None:
    """Return the other differing row with the fewest other values: what became of the row, if it is changed."""

    def distance(other: Difference) -> int:
        return sum(_shown(one.row[name]) != _shown(other.row[name]) for name in one.row)

    same_key = [other for other in others if keys and all(one.row[key] == other.row[key] for key in keys)]
    best = min(same_key or others, key=distance, default=None)
    return best if best is not None and (same_key or distance(best) <= max(1, len(one.row) // 3)) else None


def _shown(value: Any) -> str:
    return repr(value)  # NaN is like NaN


def _row(row: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= ROW_CHARACTERS_MAX else text[: ROW_CHARACTERS_MAX - 1] + "…"


def _table_as_dict(table: Table) -> dict[str, Any]:
    found = table.comparison
    return {
        "name": table.name,
        "equal": table.equal,
        "rows": dict(found.rows),
        "duplicates": dict(found.duplicates),
        "differing": dict(found.differing),
        "columns_wrong": {engine: list(wrong) for engine, wrong in table.columns_wrong.items()},
        "differences": [{"row": dict(each.row), "counts": dict(each.counts)} for each in found.differences],
    }
