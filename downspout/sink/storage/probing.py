"""Before anything is committed: can files be written here, brought into sight and listed, and names be taken once?

On an object store ``downspout check`` asks the same, before the run.
"""

from __future__ import annotations

import errno

from downspout.errors import SinkError
from downspout.sink.storage.layout import OURS, Layout
from downspout.sink.storage.port import Storage


def probe(disk: Storage, layout: Layout, name: str) -> None:
    """Take the steps of a flush with a file that holds nothing; what it leaves is swept as any staged file.

    Args:
        name: of the file: that of a log entry before it is linked, and of no other writer.

    Raises:
        SinkError: files cannot be renamed from the log's folder to the directory; or the store lets two writers
            create one object.
        OSError: the storage says no.
    """
    staged, target = layout.staging / name, layout.directory / OURS / name
    disk.make_folder(staged.parent)
    if disk.is_remote:
        _create_twice(disk, layout, name)
    else:
        disk.write(staged, b"")
    try:
        disk.rename(staged, target)
    except FileNotFoundError:
        return  # we were paused, and a sweeper has taken it for a dead writer's
    except OSError as error:
        disk.remove(staged)
        if error.errno != errno.EXDEV:
            raise
        inside = layout.directory / OURS / "log"
        raise SinkError(
            f"{layout.home} is on another file system than {layout.directory}: files cannot be renamed from "
            "one to the other",
            cure=f"mkdir {inside}: then the log is kept in the directory; or use a folder below {layout.directory}",
        ) from None
    disk.remove(target)


def _create_twice(disk: Storage, layout: Layout, name: str) -> None:
    """Create one object twice: a store that knows no conditions lets the second one through, and so loses entries."""
    staged = layout.staging / name
    # It holds nothing, because it goes on to the directory, and Polars refuses one with a file of another kind in it,
    # unless that is empty.
    disk.put_if_absent(staged, b"", staged)
    if disk.put_if_absent(staged, b"second", staged) or disk.read(staged):
        disk.remove(staged)
        raise SinkError(
            f"{layout.directory}: the store replaces an object although it was told to create one (If-None-Match: *): "
            "two writers would overwrite each other's log entries",
            cure="a store with conditional writes (Amazon S3, MinIO, R2, Ceph since Squid, Google, Azure)",
        )
    disk.has_names(layout.home)
