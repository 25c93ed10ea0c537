"""What the entries of a log add up to, and how a checkpoint holds it.

A checkpoint is a cache: the state after *n* entries, so that who opens a directory reads it and the few entries behind
it, however long its history is. It never says anything that the entries do not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downspout.sink.coverage import Coverage
from downspout.sink.identity import KnownInputs
from downspout.sink.log.entry import (
    COMPACT,
    FENCE,
    REBUILD,
    DataFile,
    Entry,
    files_in,
    from_document,
    listed,
    path_below,
    steps,
    text,
    to_document,
    whole,
)
from downspout.sink.log.watermark import Watermark
from downspout.sink.schema import merge_schemas, refusals

CHECKPOINT_FORMAT = 1
WRITERS_MAX = 1000  # Of so many writers and Spark batches the names are remembered, the latest ones


class DirectoryState:
    """The state of a directory after some entries."""

    def __init__(self) -> None:
        self.length = 0  # how many entries; the number of the next one
        self.coverage = Coverage()  # the rows that are in the directory
        self.inputs = KnownInputs()  # the inputs that rows came through, and their steps
        self.topology: str | None = None  # whose the directory is; None before the first entry
        self.component: str | None = None
        self.schemas: tuple[tuple[str, ...], ...] = ()  # the columns of the entries, each version once, as they came
        self.files: dict[str, DataFile] = {}  # the data files that count, by path, in the order in which they came
        # path → number of the entry that has removed it, for those that may still be in sight
        self.removed: dict[str, int] = {}
        self.fenced: set[str] = set()  # writers that may commit no more
        self.writers: dict[str, int] = {}  # who wrote lately → the number of their last entry
        self.rebuild = 0  # the number of the last rebuild of the directory; 0: there was none
        self.watermark = Watermark()  # which windows are final

    @property
    def rows(self) -> int:
        """How many rows are in the files."""
        return sum(file.rows for file in self.files.values())

    @property
    def schema(self) -> tuple[str, ...] | None:
        """The columns in which all files can be read; None before the first entry."""
        return merge_schemas(self.schemas) if self.schemas else None

    def refusals(self, schema: tuple[str, ...]) -> list[str]:
        """Return why nobody may write with these columns: they are no earlier version, and do not extend the others."""
        if schema in self.schemas:
            return []
        known = self.schema
        return refusals(known, schema) if known else []

    def take(self, entry: Entry) -> None:
        """Add the next entry."""
        if entry.kind == REBUILD:
            self._remove(list(self.files), entry.number)
            self.coverage, self.inputs = Coverage(), KnownInputs()
            self.writers = {}  # a Spark batch of before is to be written again
            self.schemas = ()
            self.watermark = Watermark()
            self.rebuild = entry.rebuild
        elif entry.kind == FENCE:
            self.fenced.update(entry.fenced)
        elif entry.kind == COMPACT:
            self.removed = {path: number for path, number in self.removed.items() if number >= entry.gone_before}
            self._remove(entry.removed, entry.number)
        self.files.update((file.path, file) for file in entry.files)
        self.coverage.update(entry.coverage)
        self.watermark.take(entry.times, entry.created_ms)
        self.inputs.take(entry.inputs)
        self.length += 1
        self.topology, self.component = entry.topology, entry.component
        if entry.schema not in self.schemas:
            self.schemas = (*self.schemas, entry.schema)
        self.writers.pop(entry.writer, None)
        self.writers[entry.writer] = entry.number
        if len(self.writers) > WRITERS_MAX:
            del self.writers[next(iter(self.writers))]

    def _remove(self, paths: Any, number: int) -> None:
        for path in paths:
            if self.files.pop(path, None) is not None:
                self.removed[path] = number

    def to_bytes(self) -> bytes:
        """Return the state as a checkpoint holds it. Checkpoints of one log after n entries are the same bytes."""
        return to_document(
            {
                "format": CHECKPOINT_FORMAT,
                "length": self.length,
                "coverage": self.coverage.to_json(),
                "steps": self.inputs.steps,
                "last_inputs": list(self.inputs.last),
                "topology": self.topology,
                "component": self.component,
                "schemas": list(map(list, self.schemas)),
                "files": [file.to_json() for file in self.files.values()],
                "removed": list(self.removed.items()),
                "fenced": sorted(self.fenced),
                "writers": list(self.writers.items()),
                "rebuild": self.rebuild,
                **({"event_times": times} if (times := self.watermark.to_json()) else {}),
            }
        )

    def restore(self, content: bytes) -> None:
        """Take the state that a checkpoint holds."""
        document = from_document(content)
        if (found := document.get("format")) != CHECKPOINT_FORMAT:
            raise ValueError(f"its format is {str(found)[:200]!r}; this version reads {CHECKPOINT_FORMAT}")
        try:
            read = _read(document)
        except KeyError as error:
            raise ValueError(f"out of form (no {error})") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"out of form ({error})") from None
        vars(self).update(read)


def _read(document: Mapping[str, Any]) -> dict[str, Any]:
    inputs = KnownInputs()
    inputs.steps = steps(document["steps"])
    inputs.last = tuple(map(text, listed(document["last_inputs"])))
    return {
        "length": whole(document["length"]),
        "coverage": Coverage.from_json(document["coverage"]),
        "inputs": inputs,
        "topology": text(document["topology"]),
        "component": text(document["component"]),
        "schemas": tuple(tuple(map(text, listed(each))) for each in listed(document["schemas"])),
        "files": {file.path: file for file in files_in(document)},
        "removed": {path_below(path): whole(number) for path, number in listed(document["removed"])},
        "fenced": set(map(text, listed(document["fenced"]))),
        "writers": {text(name): whole(number) for name, number in listed(document["writers"])},
        "rebuild": whole(document["rebuild"]),
        "watermark": Watermark.from_json(document.get("event_times", [])),
    }
