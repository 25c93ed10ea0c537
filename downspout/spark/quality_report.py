"""What a data-quality check found: on screen, as JSON, as Markdown, as an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from downspout.errors import ConfigError, QualityError
from downspout.formatting import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from rich.console import Console

__all__ = ["Check", "Metrics", "Report", "Result", "Severity", "evaluate", "merge"]

Metrics = dict[str, Any]
"""What Spark has counted: ``rows``, and by the number of the check ``failed_…``, ``examples_…`` and ``newest_…``."""

_ORIGIN = ("_topic", "_partition", "_offset", "_path")


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        check: what must hold, in words.
        severity: ``error`` or ``warn``.
        passed: whether it holds.
        failed: number of rows that fail it, even if that few are allowed.
        detail: what was found, in words.
        examples: rows that fail it: their Kafka coordinates, if known, and the columns in question.
    """

    check: str
    severity: str
    passed: bool
    failed: int
    detail: str
    examples: Sequence[Mapping[str, Any]] = ()

    @property
    def verdict(self) -> str:
        """``ok``, ``warn`` or ``ERROR``."""
        return "ok" if self.passed else {"error": "ERROR"}.get(self.severity, self.severity)


@dataclass(frozen=True)
class Report:
    """The results of all checks of a table.

    Attributes:
        name: of the table.
        rows: how many were checked.
        results: one for each check, in their order.
    """

    name: str
    rows: int
    results: Sequence[Result] = field(default_factory=tuple)

    @property
    def errors(self) -> list[Result]:
        """Checks that do not hold and must."""
        return [result for result in self.results if result.verdict == "ERROR"]

    @property
    def warnings(self) -> list[Result]:
        """Checks that do not hold and should."""
        return [result for result in self.results if result.verdict == "warn"]

    @property
    def exit_code(self) -> int:
        """14 if there is an error, else 0; warnings are only reported."""
        return QualityError.exit_code if self.errors else 0

    @property
    def verdict(self) -> str:
        """One sentence."""
        about = f"{self.name}: " if self.name else ""
        good = sum(result.passed for result in self.results)
        counts = [counted(len(self.errors), "error")] * bool(self.errors)
        counts += [counted(len(self.warnings), "warning")] * bool(self.warnings)
        bad = f"; {', '.join(counts)}" if counts else ""
        return f"{about}{good} of {counted(len(self.results), 'check')} hold for {counted(self.rows, 'row')}{bad}"

    def raise_for_errors(self) -> None:
        """Raise where there is an error.

        Raises:
            QualityError: it names the checks that do not hold, and the first offending row of each.
        """
        if self.errors:
            found = "; ".join(
                f"{result.check}: {result.detail}" + "".join(f" ({_example(one)})" for one in result.examples[:1])
                for result in self.errors
            )
            raise QualityError(f"{self.name + ': ' if self.name else ''}{found}", cure="correct the rows or the check")

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.name, "rows": self.rows, "exit_code": self.exit_code, "verdict": self.verdict,
            "checks": [
                {
                    "check": one.check, "severity": one.severity, "passed": one.passed, "failed": one.failed,
                    "detail": one.detail, "examples": [dict(example) for example in one.examples],
                }
                for one in self.results
            ],
        }  # fmt: skip

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=2)

    def to_markdown(self) -> str:
        """Return it as a Markdown page."""
        lines = [f"# {_plain(self.name) or 'Data quality'}", "", f"{_plain(self.verdict)}.", ""]
        lines += ["| | check | found | first offending rows |", "| --- | --- | --- | --- |"]
        for one in self.results:
            examples = "<br>".join(_plain(_example(example)) for example in one.examples)
            lines.append(f"| {one.verdict} | {_plain(one.check)} | {_plain(one.detail)} | {examples} |")
        return "\n".join([*lines, ""])

    def show(self, console: Console | None = None) -> None:
        """Print it as a table.

        Args:
            console: where; default: standard output.
        """
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.verdict), title_justify="left", header_style="bold")
        for heading in ("", "check", "found", "first offending rows"):
            table.add_column(heading, overflow="fold")
        styles = {"ok": "green", "warn": "yellow", "ERROR": "bold red"}
        for one in self.results:
            examples = Text("\n".join(_example(example) for example in one.examples))
            table.add_row(Text(one.verdict, style=styles[one.verdict]), Text(one.check), Text(one.detail), examples)
        (console or Console()).print(table)

    def write(self, path: str | Path) -> None:
        """Write it to a file, made with its folders: ``.json``, or ``.md`` for Markdown.

        Raises:
            ConfigError: another ending.
        """
        path = Path(path)
        forms = {".json": self.to_json, ".md": self.to_markdown}
        if path.suffix not in forms:
            raise ConfigError(f"{path}: a report is written as .json or .md", cure=f"{path.stem}.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(forms[path.suffix](), encoding="utf-8")


def _example(example: Mapping[str, Any]) -> str:
    """Return an offending row in a line.

    >>> _example({"_topic": "flights", "_partition": 2, "_offset": 7, "_path": "", "delay": None})
    'flights[2]@7: delay=null'
    """
    origin = ""
    if example.get("_topic") is not None and example.get("_offset") is not None:
        path = f" {example['_path']}" if example.get("_path") else ""
        origin = f"{example['_topic']}[{example.get('_partition', '?')}]@{example['_offset']}{path}"
    shown = {name: value for name, value in example.items() if not origin or name not in _ORIGIN}
    values = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in shown.items())
    return f"{origin}{': ' if origin and values else ''}{values}"


def _plain(text: str) -> str:
    """Return a text that means nothing to Markdown."""
    for special in ("\\", "|", "<", "*", "_", "`", "[", "#"):
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split())


def merge(one: Metrics, other: Metrics, examples: int) -> Metrics:
    """Return the metrics of two parts of a table together.

    >>> merge({"rows": 2, "newest_0": None, "failed_1": 0}, {"rows": 1, "newest_0": 5, "failed_1": 1}, 3)
    {'rows': 3, 'newest_0': 5, 'failed_1': 1}
    """
    merged: Metrics = {}
    for name in {**one, **other}:
        values = [found[name] for found in (one, other) if found.get(name) is not None]
        if name.startswith("examples_"):
            merged[name] = sorted((text for texts in values for text in texts), key=_place)[:examples]
        elif name.startswith("newest_"):
            merged[name] = max(values, default=None)
        else:
            merged[name] = sum(values)
    return merged


def _place(text: str) -> tuple[Any, ...]:
    example = json.loads(text)
    origin = [example.get(name) for name in _ORIGIN]
    return ("",) if None in origin else ("", *origin)


def evaluate(checks: Sequence[Check], found: Metrics, *, name: str = "", now: datetime | None = None) -> Report:
    """Return the report that Spark's counts make.

    Args:
        checks: what must hold.
        found: the counts.
        name: of the table.
        now: for ``freshness`` checks that have no moment of their own; default: now.
    """
    rows = found["rows"] or 0
    kinds = {"row": _rows, "unique": _unique, "count": _count, "freshness": _fresh}
    moment = now or datetime.now(UTC)
    return Report(
        name, rows, tuple(kinds[one.kind](one, number, rows, found, moment) for number, one in enumerate(checks))
    )


def _rows(one: Check, number: int, rows: int, found: Metrics, _: datetime) -> Result:
    failed = found[f"failed_{number}"] or 0
    passed = failed <= rows * (1 - one.share) + 1e-9 * rows
    part = f" ({_percent(failed, rows)})" if failed else ""
    allowed = f"; {100 * (1 - one.share):.4g} % are allowed" if failed and one.share < 1 else ""
    detail = f"{counted(failed, 'row')} of {rows:,}{part}{allowed}" if failed else "all rows"
    return Result(one.name, one.severity, passed, failed, detail, _examples(found, number))


def _percent(failed: int, rows: int) -> str:
    """Return a share that is never rounded to none, nor to all.

    >>> _percent(1, 336_776), _percent(336_775, 336_776), _percent(2, 4)
    ('< 0.01 %', '> 99.99 %', '50.00 %')
    """
    percent = 100 * failed / rows
    return "< 0.01 %" if percent < 0.005 else "> 99.99 %" if 99.995 <= percent < 100 else f"{percent:.2f} %"


def _unique(one: Check, number: int, rows: int, found: Metrics, _: datetime) -> Result:
    failed = found[f"failed_{number}"] or 0
    detail = f"{counted(failed, 'row')} too many" if failed else "all rows"
    return Result(one.name, one.severity, not failed, failed, detail, _examples(found, number))


def _count(one: Check, number: int, rows: int, found: Metrics, _: datetime) -> Result:
    low, high = one.bounds
    passed = (low is None or rows >= low) and (high is None or rows <= high)
    return Result(one.name, one.severity, passed, 0, counted(rows, "row"))


def _fresh(one: Check, number: int, rows: int, found: Metrics, now: datetime) -> Result:
    assert one.age is not None
    if (newest := found[f"newest_{number}"]) is None:
        return Result(one.name, one.severity, False, 0, "there is no value")
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=newest)
    age = (one.now or now) - at
    # A moment in the future is no old one.
    return Result(one.name, one.severity, age <= one.age, 0, f"the newest is of {at:%Y-%m-%d %H:%M:%S} UTC")


def _examples(found: Metrics, number: int) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(text) for text in found[f"examples_{number}"] or ())


Severity = Literal["error", "warn"]


@dataclass(frozen=True)
class Check:
    """Something that must hold. Made by the functions of this module.

    Attributes:
        name: what must hold, in words.
        kind: ``row`` (looks at each row alone), ``unique``, ``count`` or ``freshness`` (look at the table).
        columns: what it looks at, and what an example shows.
        severity: an error makes the exit code 14; a warning is only reported.
        share: of the rows that must pass, from 0 to 1.
        passes: for ``row``: the condition, as a Column; made late, since a Column needs a session.
        table: for a reference: the other table and its columns.
        bounds: for ``count``: the least and the largest number of rows.
        age: for ``freshness``: the greatest age of the newest value.
        now: for ``freshness``: seen from when; None: from when the check runs.
    """

    name: str
    kind: Literal["row", "unique", "count", "freshness"]
    columns: tuple[str, ...] = ()
    severity: Severity = "error"
    share: float = 1.0
    passes: Callable[[], Column] | None = field(default=None, compare=False, repr=False)
    table: tuple[DataFrame, tuple[str, ...]] | None = field(default=None, compare=False, repr=False)
    bounds: tuple[int | None, int | None] = (None, None)
    age: timedelta | None = None
    now: datetime | None = None

    def __post_init__(self) -> None:
        if self.severity not in ("error", "warn"):
            raise ConfigError(f"{self.name}: severity = {self.severity!r}", cure='"error" or "warn"')
        if not 0 <= self.share <= 1:
            raise ConfigError(f"{self.name}: share = {self.share} is out of range", cure="0.99 for 99 % of the rows")
