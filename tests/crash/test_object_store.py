"""The crash matrix over the object-store port: every request of a flush, a recovery, a conflict and a compaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import obstore
import obstore.store
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError

from downspout.errors import SinkError
from downspout.sink import CommitLog, Compactor, ObjectStore
from downspout.testing import Killed
from tests.sampling import WHOLE
from tests.sink.cloud_support import out, rows_in_sight, visible
from tests.sink.support import write_rows

TOP = out("flights")
LOST, TORN = "HTTP error: connection reset", "Error getting response body"
WRITES = ("put", "create", "copy", "delete")


class Faulty(ObjectStore):
    """A store as one process has it: at one of its requests something happens."""

    def __init__(
        self, client: Any, at: int = 0, what: str = "", meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(client)
        self.count = 0
        self.at, self.what, self.meanwhile = at, what, meanwhile
        self.late: list[Callable[[], object]] = []
        self._dead = False

    def _request(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        return super()._request(kind, path, lambda: self._send(kind, path, send))

    def _send(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        if self._dead:
            raise Killed
        self.count += 1
        if self.count != self.at:
            # A process whose requests are late is cut off: none of the later ones arrives either.
            if self.late and self.what == "delayed":
                raise GenericError(LOST)
            return send()
        return getattr(self, f"_{self.what}")(kind, path, send)

    def _die_before(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        self._dead = True
        raise Killed

    def _die_after(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        send()
        self._dead = True
        raise Killed

    def _lost(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        send()
        raise GenericError(LOST)

    def _torn(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        if kind not in WRITES:
            send()
        raise GenericError(TORN)

    def _refused(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        raise GenericError("Server returned non-2xx status code: 503: SlowDown")

    def _pause(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        self.meanwhile()
        return send()

    def _delayed(self, kind: str, path: Path, send: Callable[[], Any]) -> Any:
        """The request arrives long after its process has given up, which reaches the store no more."""
        self.late.append(send)
        raise GenericError(LOST)

    _overtaken = _delayed
    """The same of one request alone: the others of its process arrive, and it does so before the next process."""


def origins(first: int, end: int) -> list[tuple[str, str, int, int, str]]:
    return [("t", "id", 0, offset, "") for offset in range(first, end)]


def write(client: Any, name: str, first: int, end: int, disk: ObjectStore | None = None) -> None:
    write_rows(TOP, origins(first, end), writer=f"{name}-{uuid.uuid4().hex[:8]}", disk=disk or ObjectStore(client))


def compact(client: Any, name: str, disk: ObjectStore | None = None, **options: Any) -> None:
    Compactor(
        TOP,
        disk=disk or ObjectStore(client),
        writer=f"c-{name}-{uuid.uuid4().hex[:8]}",
        say=lambda line: None,
        **options,
    ).run()


Work = Callable[[Any, ObjectStore], None]
SCENARIOS: dict[str, tuple[int, Work]] = {
    "the first flush": (0, lambda client, disk: write(client, "first", 0, 6, disk)),
    "a flush with replays": (8, lambda client, disk: write(client, "first", 4, 12, disk)),
    "a compaction": (12, lambda client, disk: compact(client, "first", disk)),
}
RECOVERIES: dict[str, Callable[[Any], None]] = {
    "the next writer": lambda client: write(client, "next", 0, 14),
    "a compaction, which sweeps": lambda client: compact(client, "sweeps", sweep_after_s=0.0),
}
WHATS = ("die_before", "die_after", "lost", "torn", "refused", "delayed", "overtaken", "pause")


def prepared(rows: int) -> Any:
    """Return a store whose directory has so many rows, in flushes of four."""
    client = obstore.store.MemoryStore()
    for end in range(4, rows + 1, 4):
        write(client, f"before-{end}", end - 4, end)
    return client


def violations(client: Any, rows: int) -> list[str]:
    """Return what is wrong with a directory that should hold so many rows, for any reader."""
    store = ObjectStore(client)
    log = CommitLog(TOP, store)
    log.refresh()
    log.check_complete()
    seen = rows_in_sight(store, TOP)
    found = [] if seen == list(range(rows)) else [f"{rows} rows were written, and plain readers see {seen}"]
    if visible(store, TOP) != sorted(log.files):
        found.append(f"in sight are {visible(store, TOP)}, and the log names {sorted(log.files)}")
    return found if log.rows == rows else [*found, f"the log counts {log.rows} rows"]


def uncommitted(client: Any) -> list[int]:
    """Return the rows that plain readers see and that no entry covers."""
    store = ObjectStore(client)
    log = CommitLog(TOP, store)
    log.refresh()
    covered = {n for stream in log.coverage.streams() for a, b in log.coverage.ranges(stream) for n in range(a, b)}
    return sorted(set(rows_in_sight(store, TOP)) - covered)


def requests_of(scenario: str) -> int:
    rows, work = SCENARIOS[scenario]
    client = prepared(rows)
    work(client, disk := Faulty(client))
    return disk.count


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_row_is_there_once_whatever_happens_to_a_request(scenario: str, recovery: str, what: str) -> None:
    """A process dies before or after a request, or its answer is lost, torn or refused, or it arrives late, or another
    process does its work meanwhile: no reader ever sees a row that is not committed, and in the end each row once."""
    failed = 0
    for at in range(1, requests_of(scenario) + 1, 1 if WHOLE else 8):
        found, has_failed = run(Faulty, scenario, recovery, what, at)
        assert found == [], f"request {at}"
        failed += has_failed
    assert failed or what in ("lost", "torn", "pause", "overtaken")


def run(cls: type[Faulty], scenario: str, recovery: str, what: str, at: int) -> tuple[list[str], bool]:
    """Let something happen to one request of a scenario; return what is wrong then, and whether the scenario failed."""
    rows, work = SCENARIOS[scenario]
    client, failed = prepared(rows), False
    disk = cls(client, at, what, lambda: RECOVERIES[recovery](client))
    try:
        work(client, disk)
    except (SinkError, Killed):
        failed = True
    found = [f"not committed: {n}" for n in uncommitted(client)]
    if what == "overtaken":
        arrive(disk.late)
    if recovery == "the next writer" or CommitLog(TOP, ObjectStore(client)).refresh():
        RECOVERIES[recovery](client)
    arrive(disk.late)
    found += [f"not committed: {n}" for n in uncommitted(client)]
    write(client, "last", 0, 14)
    found += violations(client, 14)
    compact(client, "last", sweep_after_s=0.0)
    return found + violations(client, 14), failed


def arrive(late: list[Callable[[], object]]) -> None:
    """Let requests arrive whose process waits for them no more."""
    while late:
        with suppress(FileNotFoundError, AlreadyExistsError, StopIteration):
            late.pop()()


class _TakenIsTaken(Faulty):
    """A mistake: a writer that is told that the name is taken does not look whether it is its own entry."""

    def put_if_absent(self, path: Path, content: bytes, temporary: Path) -> bool:
        for _ in range(2):
            try:
                self._create(path, content)
                return True
            except FileExistsError:
                return False
            except OSError:
                continue
        raise OSError(5, "lost", str(path))


class _ErrorMeansNo(Faulty):
    """A mistake: an answer that was lost is taken for a request that did not arrive, and its files are deleted."""

    def put_if_absent(self, path: Path, content: bytes, temporary: Path) -> bool:
        try:
            self._create(path, content)
        except FileExistsError:
            return self.read(path) == content
        except OSError:
            self.is_remote = False
            raise
        return True


@pytest.mark.parametrize(("mistake", "what"), [(_TakenIsTaken, "lost"), (_ErrorMeansNo, "overtaken")])
def test_a_mistake_is_found(mistake: type[Faulty], what: str) -> None:
    """With one mistake built in, some request of a flush loses or doubles rows."""
    wrong: list[str] = []
    for at in range(requests_of("a flush with replays"), 0, -1):
        try:
            wrong, _ = run(mistake, "a flush with replays", "the next writer", what, at)
        except SinkError as error:
            wrong = [str(error)]
        if wrong:
            break
    assert wrong
