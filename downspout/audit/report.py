"""The report of an audit: per partition, in one sentence, and as an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout import offset_ranges
from downspout.audit.output_files import FoundRows
from downspout.formatting import counted
from downspout.offset_ranges import OffsetRanges
from downspout.sink.log import CommitLog
from downspout.sink.log_entry import OFFSET_MAX
from downspout.sink.recovery import log_is_gone

EXIT_CODES = {"missing": 10, "duplicate": 11, "lost": 12, "extra": 13}
EXPLAINED = ("filtered", "dead_lettered", "late", "skipped", "compacted", "replayed")


@dataclass
class PartitionReport:
    """The result for one partition."""

    topic: str
    partition: int
    start: int  # the first offset audited
    end: int | None  # the offset after the last one; None if Kafka was not asked
    rows: int = 0  # rows in the files, of these offsets
    present: int = 0  # offsets with a row
    # offsets by class, see the table in ``audit``
    offsets: dict[str, OffsetRanges] = field(default_factory=dict)
    rows_of: dict[str, int] = field(default_factory=dict)  # rows by class
    # reasons why records fail when rerun, with their offsets; the notes name a few
    reasons: dict[str, OffsetRanges] = field(default_factory=dict)

    def note(self, kind: str, found: OffsetRanges, rows: int | None = None) -> None:
        """Add offsets to a kind; ``rows`` if they have not one row each."""
        if found:
            self.offsets[kind] = offset_ranges.union(self.offsets.get(kind, []), found)
            self.rows_of[kind] = self.rows_of.get(kind, 0) + (offset_ranges.count(found) if rows is None else rows)

    def count(self, kind: str) -> int:
        """Return how many offsets are of a kind."""
        return offset_ranges.count(self.offsets.get(kind, []))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "topic": self.topic, "partition": self.partition, "start": self.start, "end": self.end,
            "rows": self.rows, "present": self.present,
            **{kind: self.count(kind) for kind in (*EXPLAINED, *EXIT_CODES)},
            "offsets": self.offsets, "rows_of": self.rows_of, "reasons": self.reasons,
        }  # fmt: skip


@dataclass
class AuditReport:
    """The result of an audit."""

    directory: Path
    found: FoundRows
    partitions: list[PartitionReport] = field(default_factory=list)  # in the order of topic and number
    kafka: bool = False  # whether Kafka was asked
    notes: list[str] = field(default_factory=list)  # further remarks
    hint: str = ""  # a likely cause of the problems, in brackets

    def count(self, kind: str) -> int:
        """Return how many offsets of all partitions are of a kind."""
        return sum(part.count(kind) for part in self.partitions)

    def missing_beyond(self, commits: Mapping[tuple[str, int], int]) -> int:
        """Return how many missing offsets are at or above a group's commits (0 where it has none)."""
        return sum(
            offset_ranges.count(
                offset_ranges.intersect(
                    part.offsets.get("missing", []), [(commits.get((part.topic, part.partition), 0), OFFSET_MAX)]
                )
            )
            for part in self.partitions
        )

    @property
    def problems(self) -> list[str]:
        """The kinds of problems there are, worst first."""
        kinds = [kind for kind in EXIT_CODES if any(part.offsets.get(kind) for part in self.partitions)]
        # Staged rows already count as missing by their offsets.
        kinds += [kind for kind in ("missing", "extra") if kind not in kinds and any(self._odd_files(kind))]
        return sorted(kinds, key=list(EXIT_CODES).index)

    def _odd_files(self, kind: str) -> Iterator[str]:
        """Yield a phrase for each sort of wrong files."""
        found = self.found
        sorts = {
            "missing": {"gone": found.gone, "unreadable": list(found.unreadable)},
            "extra": {
                "unknown to the log": found.unknown,
                "not Parquet": found.foreign,
                "hidden from some readers, and not from globs": found.hidden,
                "that hides the others from Spark": found.spark_log,
                "not as logged": found.changed,
                "changed since written": list(found.corrupt),
                "from before the last rebuild": found.outdated,
            },
        }
        for what, names in sorts.get(kind, {}).items():
            if names:
                shown = ", ".join(names[:2] + ["…"] * (len(names) > 2))
                yield f"{counted(len(names), 'file')} {what} ({shown})"

    @property
    def exit_code(self) -> int:
        """0 if all is exact, else that of the worst problem."""
        return min((EXIT_CODES[kind] for kind in self.problems), default=0)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        present = sum(part.present for part in self.partitions)
        explained = [f"{self.count(kind):,} {kind.replace('_', '-')}" for kind in EXPLAINED if self.count(kind)]
        what = "added up" if self.found.aggregates else "in the files"
        there = f"{counted(present, 'offset')} {'is' if present == 1 else 'are'} {what}"
        if not self.problems:
            besides = f"; {', '.join(explained)}" if explained else ""
            asked = "" if self.kafka else " (Kafka was not asked)"
            return f"exact: {there}, each exactly once{besides}{asked}"
        places = []
        for kind in self.problems:
            places += [f"{self.count(kind):,} {kind} ({self._examples(kind)})"] if self.count(kind) else []
            places += self._odd_files(kind)
        return f"NOT exact: {'; '.join(places)}; {there}{self.hint and ' ' + self.hint}"

    def _examples(self, kind: str) -> str:
        shown = [
            f"{part.topic}[{part.partition}]{offset_ranges.show(part.offsets[kind], 2)}"
            for part in self.partitions
            if part.offsets.get(kind)
        ]
        return ", ".join(shown[:2] + ["…"] * (len(shown) > 2))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = self.found
        return {
            "directory": str(self.directory), "exit_code": self.exit_code, "verdict": self.verdict,
            "problems": self.problems, "aggregates": found.aggregates, "rows": found.row_count,
            "partitions": [part.as_dict() for part in self.partitions],
            "files": {
                "visible": found.file_count, "gone": found.gone, "staged": found.staged, "unknown": found.unknown,
                "foreign": found.foreign, "hidden": found.hidden, "spark_log": found.spark_log,
                "changed": found.changed, "corrupt": found.corrupt, "checked": found.checked,
                "unreadable": found.unreadable, "leftovers": found.leftovers,
                "repeated": found.repeated_in, "replaced": found.replaced, "outdated": found.outdated,
                "forgotten": found.forgotten,
            },
            "notes": self.notes,
        }  # fmt: skip


def take_notes(report: AuditReport) -> None:
    """Add notes on unusual files."""
    found, notes = report.found, report.notes
    if not report.kafka and found.entries:
        notes.append(
            "compared with the log alone: an older copy of the directory, or a log whose last entries are gone "
            "together with their files, looks the same; only Kafka can tell"
        )
    if not found.entries and not found.read_back:
        cure = log_is_gone(CommitLog(report.directory), found.unknown).cure if found.unknown else ""
        notes.append(
            "there is no commit log, so rows cannot be compared with it"
            + (f"; no sink starts here without it. Try: {cure}" if cure else "")
        )
    for names, what in (
        (found.gone, "named by the log, but gone"),
        (found.staged, "committed but not yet visible; the next start of the topology renames them"),
        (found.replaced, "replaced by a compaction but still visible; downspout compact moves them away"),
        (
            found.outdated,
            "from before the last rebuild but still visible; the next start of the topology moves them away",
        ),
        (found.forgotten, "gone, and forgotten with --forget-missing; their rows are missing"),
        (
            found.unknown if found.entries else [],
            "not named by the log, but readers read them all the same: move them elsewhere",
        ),
        (found.hidden, "hidden from listings, but not from `**/*.parquet` of DuckDB and Polars: move them elsewhere"),
        (found.foreign, "not Parquet, so readers fail on them: move them elsewhere"),
        (found.spark_log, "of a Spark job; Spark reads only the files named there: move it and those files elsewhere"),
        (found.changed, "whose size, row count or columns differ from the log"),
        (list(found.unreadable), "unreadable"),
    ):
        if names:
            shown = ", ".join(names[:3] + ["…"] * (len(names) > 3))
            notes.append(f"{counted(len(names), 'file')} {what}: {shown}")
    notes += [f"{name}: changed since it was written: {what}" for name, what in list(found.corrupt.items())[:3]]
    if found.entries and found.file_count and not found.deep:
        notes.append("values were not compared with their hashes: --deep does")
    if found.deep and found.checked:
        notes.append(f"{counted(found.checked, 'file')} byte for byte as written")
    if found.repeated_in:
        most = sorted(found.repeated_in.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join([f"{name} ({rows:,})" for name, rows in most[:4]] + ["…"] * (len(most) > 4))
        notes.append(f"duplicate rows are in {counted(len(most), 'file')}: {shown}")
    if found.leftovers:
        notes.append(f"{counted(found.leftovers, 'staged file')} of flushes that were stopped; harmless")
    if found.without_origin:
        notes.append(f"{counted(found.without_origin, 'row')} without an origin: written at least once")
    if report.count("lost"):
        notes.append(
            "lost: Kafka dropped them before they were written. If the topology started later on purpose: --from OFFSET"
        )
    if found.aggregates:
        notes.append("the files hold aggregates: which offsets were added up is known from the log")
