"""Object stores for tests: clients of a real S3 server, a memory store, and what readers see."""

from __future__ import annotations

import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore.store
import pyarrow.parquet as pq

from demos.s3 import s3_server
from downspout.settings import ObjectPath
from downspout.sink import ObjectStore, Storage, is_visible
from downspout.system import jars
from downspout.system.ports import free_port
from downspout.testing.simulation.fault_proxy import SharedFolder
from downspout.testing.simulation.store import Bucket, SimulatedStore

SERVERS = ["moto", "s3proxy"]
"""Two that share no code: what both do is S3's protocol, and not one program's opinion of it."""


@contextmanager
def server_of(name: str) -> Iterator[str]:
    """Run an S3 server with an empty ``bucket``; yield its URL."""
    with s3_server() if name == "moto" else _s3proxy() as url:
        yield url


@contextmanager
def _s3proxy() -> Iterator[str]:
    """Run S3Proxy, whose objects are in memory, as a process."""
    with tempfile.TemporaryDirectory(prefix="downspout-s3proxy-") as folder:
        url, settings, said = f"http://127.0.0.1:{free_port()}", Path(folder, "settings"), Path(folder, "log")
        lines = {
            "s3proxy.endpoint": url, "s3proxy.authorization": "none", "jclouds.provider": "transient-nio2",
            "jclouds.identity": "test", "jclouds.credential": "test",
        }  # fmt: skip
        settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        command = [jars.java(), "-Xmx512m", "-jar", str(jars.resolve("s3proxy")[0]), "--properties", str(settings)]
        with said.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            request = urllib.request.Request(f"{url}/bucket", method="PUT")
            deadline = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(request, timeout=10).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise AssertionError(said.read_text(encoding="utf-8", errors="replace")) from None
                    time.sleep(0.1)
            yield url
        finally:
            process.kill()
            process.wait()


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


class _Calm:
    """A process in a simulated world in which nothing goes wrong."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: ""


def simulated(top: Path) -> ObjectStore:
    """Return the store of a simulated world."""
    process: Any = _Calm()
    return SimulatedStore(process, Bucket(SharedFolder(top, time.time), later=lambda request: None))


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
