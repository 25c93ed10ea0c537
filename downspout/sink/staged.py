"""A flush in two halves, for engines whose tasks may run twice: tasks stage files, one place commits them.

On Spark, many tasks write parts of one batch, some of them more than once, and only the driver knows which attempt
counts. So a task's :class:`StagingWriter` goes as far as the staged file, and the driver's :class:`BatchWriter` appends
one entry for the whole batch. The entry's writer is the batch's name: whoever is asked to commit that batch again,
after a crash between our commit and Spark's, finds it there and leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from downspout.errors import SinkError
from downspout.sink.identity.coverage import Coverage
from downspout.sink.identity.rows import Identities
from downspout.sink.log.commit_log import FencedError
from downspout.sink.log.entry import DataFile, Partition
from downspout.sink.writer import Build, Flushed, SinkWriter, Times


@dataclass(frozen=True)
class Staged:
    """Files that wait for their entry."""

    files: tuple[DataFile, ...]  # below the staging folder
    coverage: Coverage  # the rows that are in them
    steps: dict[str, str]  # of the sink's inputs, as the coverage was made
    covered: int = 0  # rows that were left out, because they are in the directory already
    latest: Mapping[Partition, int] = field(default_factory=dict)  # the greatest times of the rows, by partition
    watermark: int | None = None  # by which late rows were told


class OutdatedError(Exception):
    """What was staged does not fit the directory any more: another writer was there meanwhile. Stage it again."""


class StagingWriter(SinkWriter):
    """Stages what it is given to flush; when ``flush`` returns, the files are durable, and nobody sees them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.staged: list[Staged] = []  # what was staged so far
        self._own = Coverage()

    def open(self) -> None:
        """Read the log. The directory was made and checked by who will commit."""
        try:
            self._catch_up()
        except OSError as error:
            raise self._cannot_write(error) from error

    def _flush(self, identities: Identities, build: Build, times: Times | None) -> Flushed:
        self._catch_up()
        rows = identities.under(self.steps)
        wanted, flushed = self._sorted_out(rows, times, rows.not_in(self._own))
        if not wanted.any():
            self.staged.append(Staged((), Coverage(), dict(self.steps), flushed.covered))
            return flushed
        files, coverage = self._stage_again_if_swept(build(wanted, rows)), rows.coverage(wanted)
        self._own.update(coverage)
        latest = times.latest if times else {}
        self.staged.append(
            Staged(tuple(files), coverage, dict(self.steps), flushed.covered, latest, self.log.watermark.value)
        )
        return replace(flushed, rows=int(wanted.sum()), files=len(files), bytes=sum(file.bytes for file in files))

    def _stage_again_if_swept(self, table: pa.Table) -> list[DataFile]:
        while True:
            self._renew_if_fenced()
            try:
                return self._stage(table)
            except FencedError:
                continue


class BatchWriter(SinkWriter):
    """Commits what tasks have staged, one entry per batch."""

    times_of = ""  # batches are committed whole and one after the other: to the watermark they are one writer

    def commit(self, batch: str, parts: Sequence[Staged]) -> Flushed:
        """Bring the staged files of a batch into sight, all at once; if it is in the log already, discard them.

        Args:
            batch: the batch's name, the same whenever it is computed, and of no other. The log remembers the latest
                thousand; rows with origins are known by these in any case.
            parts: what its tasks have staged; of each task, one attempt.

        Raises:
            SinkError: the directory cannot be written, a file is not there, or two tasks have made rows with one
                identity.
        """
        files = [file for part in parts for file in part.files]
        covered = sum(part.covered for part in parts)
        try:
            self._writer = batch
            while True:
                self._catch_up()
                if batch in self.log.writers:
                    # By an earlier computation of it, which had other files; or by an earlier try for these, whose end
                    # we have not seen.
                    self._discard([file for file in files if not self._is_known(file)])
                    files = [file for file in files if file.path in self.log.files]
                    break
                if not files:
                    return Flushed(covered=covered)
                if self.log.fenced_files([file.path for file in files]):
                    raise FencedError(batch)
                self._check_that_all_are_here(files)
                coverage = self._joined(parts, files)
                if self._append(files, coverage, _latest(parts)):
                    break
            self._reveal(files)
        except FencedError:
            self._discard(files)
            raise OutdatedError from None
        except OSError as error:
            raise self._cannot_write(error) from error
        return Flushed(sum(file.rows for file in files), covered, len(files), sum(file.bytes for file in files))

    def _is_known(self, file: DataFile) -> bool:
        return file.path in self.log.files or file.path in self.log.removed

    def discard(self, parts: Sequence[Staged]) -> None:
        """Delete staged files that will not be committed."""
        self._discard([file for part in parts for file in part.files])

    def _check_that_all_are_here(self, files: Sequence[DataFile]) -> None:
        """Look at each file: an entry that names one that is nowhere would cover rows that nobody will ever see."""
        for file in files:
            if not self.disk.exists(path := self.log.layout.staged(file.path)):
                self._discard(files)
                raise SinkError(
                    f"{path} was written by a task, and is not here: tasks have another {self.directory} than we have",
                    cure="a directory that all machines share, under the same path; nothing of this batch is in sight",
                )

    def _joined(self, parts: Sequence[Staged], files: Sequence[DataFile]) -> Coverage:
        """Return what all parts cover together."""
        joined = Coverage()
        for part in parts:
            outdated = part.steps != self.steps or part.watermark != self.log.watermark.value
            if part.coverage.intersects(self.log.coverage) or (part.files and outdated):
                self._discard(files)
                raise OutdatedError
            if part.coverage.intersects(joined):
                self._discard(files)
                raise SinkError(
                    f"{self.directory}: two tasks of one batch made rows with the same identity",
                    cure="give each row its own, with origin.child(component, index), in the bolt that makes them",
                )
            joined.update(part.coverage)
        return joined


def _latest(parts: Sequence[Staged]) -> dict[Partition, int]:
    """Return the greatest times of all parts together."""
    found: dict[Partition, int] = {}
    for part in parts:
        for place, time in part.latest.items():
            found[place] = max(time, found.get(place, time))
    return found
