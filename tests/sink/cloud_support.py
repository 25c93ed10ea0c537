"""Object stores for tests: clients of a real S3 server, a memory store, and readers' views."""

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
import pytest

from demos.s3 import s3_server
from downspout.settings import ObjectPath
from downspout.sink import ObjectStore, Storage, is_visible
from downspout.system import jars
from downspout.system.java import java as find_java
from downspout.system.loopback import free_port
from downspout.testing.simulation.fault_proxy import SharedFolder
from downspout.testing.simulation.store import Bucket, SimulatedStore
from tests.waiting import eventually

SERVERS = ["moto", "s3proxy"]
"""Two that share no code: what both do is S3's protocol, and not one program's opinion of it."""
SAMPLED_SERVERS = [pytest.param("moto", marks=pytest.mark.sweep), "s3proxy"]
"""``make test`` runs what is slow against the one that keeps conditional writes strictly."""


@contextmanager
def server_of(name: str) -> Iterator[str]:
    """Run an S3 server with an empty ``bucket``; yield its URL."""
    with s3_server() if name == "moto" else _s3proxy() as url:
        yield url


@contextmanager
def _s3proxy() -> Iterator[str]:
    """Run S3Proxy, whose objects are in memory, as a process."""
    with tempfile.TemporaryDirectory(prefix="downspout-s3proxy-") as folder:
        tries = (_started(Path(folder)) for _ in range(10))  # another process may take the port before it does
        process, url = next(found for found in tries if found is not None)
        try:
            yield url
        finally:
            process.kill()
            process.wait()


def _started(folder: Path) -> tuple[subprocess.Popen[bytes], str] | None:
    """Start S3Proxy with a bucket at a port that was free a moment ago; None if it is not any more."""
    url, settings, said = f"http://127.0.0.1:{free_port()}", folder / "settings", folder / "log"
    lines = {
        "s3proxy.endpoint": url, "s3proxy.authorization": "none", "jclouds.provider": "transient-nio2",
        "jclouds.identity": "test", "jclouds.credential": "test",
    }  # fmt: skip
    settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
    command: list[Any] = [
        find_java(),
        "-Xmx512m",
        "-jar",
        str(jars.resolve("s3proxy")[0]),
        "--properties",
        str(settings),
    ]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def has_bucket() -> bool:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=60).close()
        except OSError:
            return process.poll() is not None
        return True

    try:
        eventually(has_bucket, every_s=0.1, otherwise=lambda: said.read_text(encoding="utf-8", errors="replace"))
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.poll() is None:
        return process, url
    assert "in use" in (told := said.read_text(encoding="utf-8", errors="replace")), told
    return None


def s3_client(url: str, **options: Any) -> Any:
    given = {"retry_config": {"max_retries": 4, "backoff": {"init_backoff": _ms(5), "max_backoff": _ms(50), "base": 2}}}
    return obstore.store.S3Store(
        "bucket", endpoint=url, access_key_id="test", secret_access_key="test", region="us-east-1",
        client_options={"allow_http": True}, **{**given, **options},
    )  # fmt: skip


def _ms(count: int) -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=count)


def memory() -> ObjectStore:
    return ObjectStore(obstore.store.MemoryStore())


class _Calm:
    """A process in a simulated world in which nothing goes wrong."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: ""


def simulated(top: Path) -> ObjectStore:
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
    return ObjectPath(f"s3://bucket/{name}")
