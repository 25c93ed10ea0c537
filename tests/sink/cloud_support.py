"""Object stores for tests: clients of a real S3 server, a memory store, and what readers see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore.store
import pyarrow.parquet as pq

from downspout.settings.object_path import ObjectPath
from downspout.sink.storage.layout import is_visible
from downspout.sink.storage.object_store import ObjectStore
from downspout.sink.storage.port import Storage


def s3_client(url: str, **options: Any) -> Any:
    """Return a client of the server's bucket."""
    given = {"retry_config": {"max_retries": 4, "backoff": {"init_backoff": _ms(5), "max_backoff": _ms(50), "base": 2}}}
    return obstore.store.S3Store(
        "bucket", endpoint=url, access_key_id="test", secret_access_key="test", region="us-east-1",
        client_options={"allow_http": True}, **{**given, **options},
    )  # fmt: skip


def _ms(count: int) -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=count)


def memory() -> ObjectStore:
    """Return a store in memory."""
    return ObjectStore(obstore.store.MemoryStore())


def visible(disk: Storage, directory: Path) -> list[str]:
    """Return the files that a plain reader of a directory sees."""
    names = (path.relative_to(directory).as_posix() for path in disk.files_below(directory))
    return sorted(name for name in names if is_visible(name))


def rows_in_sight(disk: Storage, directory: Path) -> list[int]:
    """Return the offsets of all rows that a plain reader sees, those that it sees twice twice."""
    import pyarrow as pa

    found: list[int] = []
    for name in visible(disk, directory):
        table = pq.read_table(pa.BufferReader(disk.read(directory / name)))
        found += table.column("_offset").to_pylist()
    return sorted(found)


def out(name: str) -> ObjectPath:
    """Return a directory in the bucket."""
    return ObjectPath(f"s3://bucket/{name}")
