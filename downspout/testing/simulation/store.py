"""A bucket in a simulated world, whose requests may be lost, unanswered, repeated or late.

Each process has a :class:`SimulatedStore`: the sinks' object store with a dict instead of requests. This tests how
sinks use requests, without a client library.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from downspout.settings.object_path import ObjectPath
from downspout.sink.object_store import ObjectStore
from downspout.testing.simulation.fault_proxy import Killed, Living, SharedFolder

__all__ = ["Bucket", "SimulatedStore"]

T = TypeVar("T")
WRITES = frozenset({"put", "create", "copy", "delete"})


@dataclass
class Bucket:
    """The objects that all processes of a world see."""

    shared: SharedFolder  # for the age of files
    later: Callable[[Callable[[], None]], None]  # runs something later, even if the process dies
    objects: dict[str, bytes] = field(default_factory=dict)  # by key

    def save(self) -> None:
        """Write the objects to the world's folder, with their keys as paths."""
        for key, content in self.objects.items():
            path = self.shared.top / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class Requester(Living, Protocol):
    """The interface of a process for its store."""

    def store_fault(self, kind: str) -> str:
        """Return the fault of the next request: ``""``, ``"lost"``, ``"unanswered"``, ``"late"`` or ``"twice"``."""


class SimulatedStore(ObjectStore):
    """The bucket, for one process."""

    def __init__(self, process: Requester, bucket: Bucket) -> None:
        super().__init__(client=None)
        self._process, self._bucket = process, bucket

    # --- faults of requests ---------------------------------------------------------------------------------

    def _request(self, kind: str, path: Path, send: Callable[[], T]) -> T:
        try:
            self._process.effect(kind)  # may be killed, or paused and send it later
        except Killed:
            self._arrives_late(kind, path, send, "on its way when it was killed")
            raise
        self._process.travel()
        what = self._process.store_fault(kind)
        self._process.note(f"{kind} {_key(path)}{f' is {what}' if what else ''}")
        if what in ("lost", "late"):
            if what == "late":
                self._arrives_late(kind, path, send, "late")
            self._process.wait_in_vain()
            raise OSError(errno.ETIMEDOUT, f"the request to {kind} had no answer", str(path))
        answer = send()
        if what == "twice":  # the client library got no answer, and retried
            answer = send()
        if what == "unanswered":
            self._process.wait_in_vain()
            raise OSError(errno.ETIMEDOUT, f"the request to {kind} had no answer", str(path))
        return answer

    def _arrives_late(self, kind: str, path: Path, send: Callable[[], object], why: str) -> None:
        if kind not in WRITES:
            return

        def arrive() -> None:
            try:
                send()
                outcome = "done"
            except OSError as error:
                outcome = f"refused ({error.strerror})"
            self._process.note(f"{kind} {_key(path)}, {why}, is {outcome}")

        self._bucket.later(arrive)

    # --- the requests -----------------------------------------------------------------------------------

    def write(self, path: Path, content: bytes) -> None:
        """Write an object whole."""
        self._request("put", path, lambda: self._put(path, content))

    def _put(self, path: Path, content: bytes) -> None:
        self._bucket.objects[_key(path)] = content
        self._bucket.shared.written[path] = self._bucket.shared.wall()

    def _create(self, path: Path, content: bytes) -> None:
        def create() -> None:
            if _key(path) in self._bucket.objects:
                raise FileExistsError(errno.EEXIST, "it is there already", str(path))
            self._put(path, content)

        self._request("create", path, create)

    def _copy(self, source: Path, target: Path) -> None:
        self._request("copy", source, lambda: self._put(target, self._content(source)))

    def remove(self, path: Path) -> None:
        """Remove an object that may be gone already."""
        self._request("delete", path, lambda: self._bucket.objects.pop(_key(path), None))

    def read(self, path: Path) -> bytes:
        """Return the content of an object."""
        return self._request("get", path, lambda: self._content(path))

    def _content(self, path: Path) -> bytes:
        try:
            return self._bucket.objects[_key(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "it is not there", str(path)) from None

    def _head(self, path: Path) -> Any:
        def look() -> dict[str, Any]:
            shared = self._bucket.shared
            size = len(self._content(path))
            return {"size": size, "last_modified": datetime.fromtimestamp(shared.written[path] - shared.ahead_s, UTC)}

        return self._request("head", path, look)

    def modified(self, path: Path) -> float:
        """Return when an object was written, in virtual time."""
        self._bucket.shared.swept += self._bucket.shared.ahead_s > 0
        return super().modified(path)

    changed = modified

    def _list(self, folder: Path, after: str | None = None) -> Iterator[Any]:
        def page() -> list[Any]:
            keys = sorted(
                key for key in self._bucket.objects if key.startswith(f"{_key(folder)}/") and key > (after or "")
            )
            return [{"path": key, "size": len(self._bucket.objects[key])} for key in keys]

        yield from self._request("page", folder, page)

    def _list_folder(self, folder: Path) -> list[str]:
        top = f"{_key(folder)}/"

        def names() -> list[str]:
            return sorted(
                {top + key.removeprefix(top).partition("/")[0] for key in self._bucket.objects if key.startswith(top)}
            )

        return self._request("list", folder, names)


def _key(path: Path) -> str:
    assert isinstance(path, ObjectPath)
    return path.key
