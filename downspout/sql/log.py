"""Which rows are in a table: a log beside it in the database, written in the transactions that write the rows.

Each flush adds one entry: the identities of its rows (``downspout/sink/identity``), and a *token* that nobody else
gives. Entries are numbered, and number and sink are the key of the log. So of two writers that take the same number one
waits in the database for the other's transaction to end, and then learns that the number is taken: all flushes of a
sink have one order, as in the commit log of a directory.

The log is folded now and then: an entry with all that is covered takes the place of those before it, in the
transaction of a flush. That is done when the entries since the last fold are larger than it is, so it costs no more
than they did.

A writer remembers what it has read, so it also looks whether that is still so. A server's standby that took over may
lack the last commits, and so does a copy that was restored: rows that are covered by what we remember would be acked
and left out, and are nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from downspout.errors import SinkError
from downspout.offsets.stores.database import Database
from downspout.sink.coverage import Coverage
from downspout.sink.identity import KnownInputs
from downspout.sink.log.entry import listed, steps, text

TABLE = "downspout_log"
CREATE = (
    f"{TABLE} (sink TEXT NOT NULL, number BIGINT NOT NULL, token TEXT NOT NULL, entry TEXT NOT NULL, "
    "PRIMARY KEY (sink, number))"
)
FORMAT = 1
FOLD_BYTES = 256 * 1024
"""Fewer bytes of entries are not folded."""


@dataclass(frozen=True)
class SqlEntry:
    """One entry."""

    topology: str  # the topology's name
    component: str  # the sink's name in it
    coverage: Coverage  # the rows that came with it; of a fold, all rows
    inputs: Mapping[str, str]  # the step of each input
    known: Mapping[str, str] = field(default_factory=dict)  # of a fold: the steps of inputs that are no more
    is_fold: bool = False

    def to_text(self) -> str:
        """Return the entry as the log holds it."""
        return orjson.dumps(
            {
                "format": FORMAT, "topology": self.topology, "component": self.component, "fold": self.is_fold,
                "inputs": dict(self.inputs), "known": dict(self.known), "coverage": self.coverage.to_json(),
            }
        ).decode()  # fmt: skip

    @classmethod
    def from_text(cls, content: str) -> SqlEntry:
        """Return what :meth:`to_text` made. It is untrusted: anything out of form raises ValueError."""
        found = orjson.loads(content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("it is of another format")
        try:
            return cls(
                text(found["topology"]), text(found["component"]), Coverage.from_json(listed(found["coverage"])),
                steps(found["inputs"]), steps(found["known"]), found["fold"] is True,
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise ValueError(f"out of form ({error})") from None


class SqlLog:
    """The log of one sink; to be used within a transaction."""

    def __init__(self, database: Database, sink: str) -> None:
        self._database, self._sink = database, sink
        mark = database.mark
        self._read = (
            f"SELECT number, token, CASE WHEN number > {mark} THEN entry ELSE '' END FROM {TABLE} "
            f"WHERE sink = {mark} AND number >= {mark} ORDER BY number"
        )
        self._insert = f"INSERT INTO {TABLE} (sink, number, token, entry) VALUES ({mark}, {mark}, {mark}, {mark})"
        self._delete = f"DELETE FROM {TABLE} WHERE sink = {mark} AND number < {mark}"
        self.coverage, self.inputs = Coverage(), KnownInputs()
        self.owner: tuple[str, str] | None = None  # topology and component
        self._number, self._token = -1, ""  # of the last entry that was read
        self._bytes = self._folded_bytes = 0

    def refresh(self, is_ours: Callable[[str], bool] = lambda token: False) -> bool:
        """Read new entries; return whether one has a token that is ours."""
        rows = self._database.run(self._read, (self._number, self._sink, self._number))
        expected = self._number + 1
        if self._number >= 0:
            if not rows or rows[0][0] != self._number:
                expected = -1  # It is gone. Others may have folded it; then a fold comes first, and holds all.
            elif rows[0][1] != self._token:
                raise self._gone(self._number)
            else:
                rows = rows[1:]
        found = False
        for number, token, content in rows:
            self._take(number, token, content, expected)
            expected = number + 1
            found = found or is_ours(token)
        if expected == -1:
            raise self._gone(self._number)
        return found

    def _take(self, number: int, token: str, content: str, expected: int) -> None:
        try:
            entry = SqlEntry.from_text(content)
        except ValueError as error:
            raise SinkError(
                f"{self._database.location}: entry {number} of {self._sink} in {TABLE} cannot be read: {error}",
                cure="restore the table from a backup; do not delete the entry: its rows would be written again",
            ) from None
        if number != expected and not entry.is_fold:
            raise self._gone(self._number if expected == -1 else expected)
        self._number, self._token = number, token
        self._bytes += len(content)
        if entry.is_fold:
            self.coverage, self.inputs = Coverage(), KnownInputs()
            self.inputs.take(entry.known)
            self._bytes, self._folded_bytes = 0, len(content)
        self.coverage.update(entry.coverage)
        self.inputs.take(entry.inputs)
        self.owner = entry.topology, entry.component

    def _gone(self, number: int) -> SinkError:
        return SinkError(
            f"{self._database.location}: entry {number} of {self._sink} in {TABLE} is gone, and its rows may be too: a "
            "backup was restored, a standby took over that lacked it, or somebody emptied the table",
            cure="start again, with offsets of the same moment: those in this database are; `downspout offsets seek` "
            "sets a consumer group back",
        )

    def append(self, token: str, topology: str, component: str, coverage: Coverage, inputs: Mapping[str, str]) -> None:
        """Add the next entry.

        Raises:
            TakenError: another writer was first; nothing can be done in this transaction any more.
        """
        fold = self._bytes > max(FOLD_BYTES, self._folded_bytes)
        known: Mapping[str, str] = {}
        if fold:
            whole = Coverage()
            whole.update(self.coverage)
            whole.update(coverage)
            coverage, known = whole, self.inputs.steps
        entry = SqlEntry(topology, component, coverage, inputs, known, fold)
        number = self._number + 1
        self._database.run(self._insert, (self._sink, number, token, entry.to_text()))
        if fold:
            self._database.run(self._delete, (self._sink, number))
