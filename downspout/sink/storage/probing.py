"""Before anything is committed: can files be written here, brought into sight and listed, and names be taken once?

On an object store ``downspout check`` asks the same, before the run.
"""

from __future__ import annotations

from pathlib import Path

from downspout.errors import SinkError
from downspout.sink.storage.layout import Layout, temporary_name
from downspout.sink.storage.port import Storage


def probe(disk: Storage, layout: Layout, writer: str) -> None:
    """Take the steps of a flush with a file that holds nothing; what it leaves is swept as any staged file.

    Args:
        writer: whose file it is, so that it is swept with all of its own.

    Raises:
        SinkError: the store lets two writers create one object.
        OSError: the storage says no.
    """
    staged, target = (layout.staging / temporary_name(writer, number) for number in (0, 1))
    disk.make_folder(staged.parent)
    if disk.is_remote:
        _create_twice(disk, layout, staged)
    else:
        disk.write(staged, b"")
    try:
        disk.rename(staged, target)
    except FileNotFoundError:
        return  # we were paused, and a sweeper has taken it for a dead writer's
    except OSError:
        disk.remove(staged)
        raise
    disk.remove(target)


def _create_twice(disk: Storage, layout: Layout, staged: Path) -> None:
    """Create one object twice: a store that knows no conditions lets the second one through, and so loses entries."""
    disk.put_if_absent(staged, b"", staged)
    if disk.put_if_absent(staged, b"second", staged) or disk.read(staged):
        disk.remove(staged)
        raise SinkError(
            f"{layout.directory}: the store replaces an object although it was told to create one (If-None-Match: *): "
            "two writers would overwrite each other's log entries",
            cure="a store with conditional writes (Amazon S3, MinIO, R2, Ceph since Squid, Google, Azure)",
        )
    disk.has_names(layout.home)
