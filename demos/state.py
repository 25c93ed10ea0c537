"""The demo's saved state, which makes a second run, or one after kill -9, correct.

=====================================  ===============================================================================
what                                   why
=====================================  ===============================================================================
``.downspout/demo/lock``               two demos at a time would publish the same flights twice; freed by the kernel
                                       when its holder dies, however it dies
``.downspout/demo/broker``             the process id of a broker that the demo started: when a demo is killed its
                                       broker ends soon after, and the next demo must wait for that, not use it
``output/demo.json``                   which topic these files are from, and a number for them. The consumer group is
                                       called after that number: who deletes ``output`` deletes the progress with it
``output/report/_fingerprint.json``    from what the report was made; it still fits → nothing to compute again
=====================================  ===============================================================================
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from downspout.errors import DownspoutError
from downspout.settings import folders
from downspout.sink.layout import Layout

SINKS = ("flights", "route_delays")
MADE = (*SINKS, "report", "charts", "demo.json")
"""All entries that the demo creates below its output directory, and thus may delete."""


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the demo's lock.

    Raises:
        DownspoutError: another demo holds it.
    """
    path = _folder() / "lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownspoutError(
                f"another demo is running here (it holds {path})", cure="wait for it, or stop it"
            ) from None
        yield


def note_broker(pid: int | None) -> None:
    """Record that the demo started this broker; None: that it stopped it."""
    path = _folder() / "broker"
    if pid is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(str(pid), encoding="ascii")


def started_broker(pid: int) -> bool:
    """Return whether an earlier demo started the broker that runs as process ``pid``."""
    try:
        return (_folder() / "broker").read_text(encoding="ascii") == str(pid)
    except FileNotFoundError:
        return False


def _folder() -> Path:
    folder = folders.home() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Output:
    """The demo's output directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._identity = directory / "demo.json"
        self._fingerprint = directory / "report" / "_fingerprint.json"

    def delete(self) -> None:
        """Delete only what the demo created."""
        for name in MADE:
            path = self.directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def group(self, topic_id: str) -> str:
        """Return the consumer group whose progress is that of these files.

        Where a sink's directory is gone, this is a new group, and all flights are read again; the sink that is still
        there recognises its rows and takes none twice. Files that the demo made of another topic (the broker's
        data was deleted in between) are deleted: beside the new topic's rows they would be every flight again.
        """
        known = self._read_identity()
        if known and known["topic_id"] != topic_id:
            self.delete()
            known = {}
        if not known or not all((self.directory / name).is_dir() for name in SINKS):
            known = {"number": uuid.uuid4().hex[:8], "topic_id": topic_id}
            for name in SINKS:
                (self.directory / name).mkdir(parents=True, exist_ok=True)
            _write(self._identity, known)
        return f"flight_delays-{known['number']}"

    def _read_identity(self) -> dict[str, str]:
        try:
            known = json.loads(self._identity.read_text(encoding="utf-8"))
            return {"number": known["number"], "topic_id": known["topic_id"]}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}

    def report_is_current(self, fingerprint: str, files: Iterable[Path]) -> bool:
        """Return whether the report is complete, and was made from the current input."""
        try:
            known = json.loads(self._fingerprint.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return False
        return known == {"fingerprint": fingerprint} and all(path.exists() for path in files)

    def note_report(self, fingerprint: str) -> None:
        """Record the input of the complete report."""
        _write(self._fingerprint, {"fingerprint": fingerprint})

    def fingerprint(self, *inputs: Path) -> str:
        """Return a fingerprint of the sinks' logs and the files ``inputs``. O(log entries)."""
        digest = hashlib.sha256()
        for name in SINKS:
            for entry in sorted(Layout(self.directory / name).log.glob("*.json")):
                digest.update(f"{name}/{entry.name}:{entry.stat().st_size}:{entry.stat().st_mtime_ns}\n".encode())
        for path in inputs:
            digest.update(path.read_bytes())
        return digest.hexdigest()


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"_{path.name}.tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)
