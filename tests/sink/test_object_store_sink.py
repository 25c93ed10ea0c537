"""Sinks on a real S3 server: each row once for every reader, whatever happens to requests and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamparse import Topology

from bolts.parquet import ParquetBolt
from demos.s3 import KEYS, FaultProxy
from downspout.audit.audit import audit
from downspout.errors import ConfigError, SinkError
from downspout.settings import ObjectPath
from downspout.sink import CommitLog, Compactor, ObjectStore, read_table, storage_of
from downspout.sink.snapshot import snapshot
from downspout.testing import run_topology
from spouts.kafka import KafkaSpout
from tests.sampling import WHOLE
from tests.sink.cloud_support import SAMPLED_SERVERS, out, rows_in_sight, s3_client, server_of, visible
from tests.sink.support import write, write_rows

ROOT = Path(__file__).resolve().parents[2]


class Lines(Topology):
    """Rows with their origins, into a directory that each test names."""

    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    out = ParquetBolt.spec(inputs=[spout], directory="out", schema=["value:string"])


@pytest.fixture(scope="module", params=SAMPLED_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    with server_of(request.param) as url:
        yield url


@pytest.fixture
def environment(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the environment say how the server is reached, as users do; return its URL."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def directory() -> ObjectPath:
    return out(uuid.uuid4().hex)


def origins(first: int, end: int) -> list[tuple[str, str, int, int, str]]:
    return [("t", "id", 0, offset, "") for offset in range(first, end)]


def expect(directory: ObjectPath, store: ObjectStore, rows: int) -> None:
    """Assert that plain readers and readers through the log see each of so many rows once."""
    assert rows_in_sight(store, directory) == list(range(rows))
    log = CommitLog(directory, store)
    log.refresh()
    assert sorted(visible(store, directory)) == sorted(log.files)
    assert log.rows == rows


# --- a topology ----------------------------------------------------------------------------------------------


def test_a_topology_writes_to_a_bucket_and_every_reader_sees_each_row_once(
    environment: str, directory: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run, replay, compact: pandas on the plain directory, readers through the log and the audit agree."""
    rows = [[("lines", "id", 0, n, ""), f"line {n}"] for n in range(500)]
    for _ in range(2):  # the second run replays all rows
        run_topology(Lines, spouts={"spout": rows}, config={"out:parquet.directory": str(directory),
                                                            "out:parquet.flush_rows": 100})  # fmt: skip
    assert sorted(read_table(directory)["value"].to_pylist()) == sorted(f"line {n}" for n in range(500))
    assert audit(directory, deep=True).exit_code == 0
    done = Compactor(directory).run()
    assert (done.files_before, done.files_after) == (5, 1)
    assert read_table(str(directory), filters=[("value", "==", "line 7")]).num_rows == 1
    assert audit(str(directory), deep=True).exit_code == 0
    plain = _pandas(environment, directory)
    assert sorted(plain["value"]) == sorted(f"line {n}" for n in range(500))


def _pandas(url: str, directory: ObjectPath) -> Any:
    import pandas as pd
    from pyarrow import fs

    host = url.removeprefix("http://")
    there = fs.S3FileSystem(
        endpoint_override=host, scheme="http", access_key="test", secret_key="test", region="us-east-1"
    )
    return pd.read_parquet(f"{directory.bucket}/{directory.key}", filesystem=there)


# --- requests that fail --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["lose", "drop", "slow", "tear"])
def test_a_request_that_fails_once_costs_no_row(server: str, what: str) -> None:
    """Whichever request of a flush is lost, refused (503 SlowDown) or torn: the client asks again, and each row is
    there once."""
    with FaultProxy(server, lambda line: None) as proxy:
        store = ObjectStore(s3_client(proxy.url))
        write_rows(warm := out(uuid.uuid4().hex), origins(0, 5), writer="w", disk=store)
        count = len(proxy.requests)
        expect(warm, ObjectStore(s3_client(server)), 5)
        for nth in range(0, count, 1 if WHOLE else 16):
            directory, seen = out(uuid.uuid4().hex), len(proxy.requests)
            proxy.fault = lambda line, at=seen + nth: what if len(proxy.requests) == at + 1 else None
            write_rows(directory, origins(0, 5), writer="w", disk=store)
            proxy.fault = lambda line: None
            expect(directory, ObjectStore(s3_client(server)), 5)
        assert len(proxy.injected) >= count // 16


def test_a_store_that_goes_away_at_any_request_loses_and_doubles_nothing(server: str) -> None:
    """From some request on each arrives and its answer is lost: the flush fails or was done, and the next writer, which
    gets the same rows, leaves each row there once."""
    direct = ObjectStore(s3_client(server))
    failed = 0
    with FaultProxy(server, lambda line: None) as proxy:
        store = ObjectStore(s3_client(proxy.url, retry_config={"max_retries": 1, "backoff": {
            "init_backoff": _ms(1), "max_backoff": _ms(2), "base": 2}}))  # fmt: skip
        write_rows(out(uuid.uuid4().hex), origins(0, 5), writer="w", disk=store)
        count = len(proxy.requests)
        for nth in range(1, count + 2, 1 if WHOLE else 9):
            directory, seen = out(uuid.uuid4().hex), len(proxy.requests)
            proxy.fault = lambda line, at=seen + nth: "lose" if len(proxy.requests) > at else None
            try:
                write_rows(directory, origins(0, 5), writer="first", disk=store)
            except SinkError:
                failed += 1
            write_rows(directory, origins(0, 8), writer="second", disk=direct)
            expect(directory, direct, 8)
    assert failed


def _ms(count: int) -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=count)


def test_an_entry_that_arrives_after_its_writer_has_given_up_counts(server: str) -> None:
    """The request that creates an entry is held back until its writer has failed: nothing that it names was deleted."""
    direct, directory = ObjectStore(s3_client(server)), out(uuid.uuid4().hex)
    held: list[bytes] = []

    class Late(ObjectStore):
        def _create(self, path: Path, content: bytes) -> None:
            if path.parent.name != "log":
                super()._create(path, content)
                return
            held.append(content)
            raise OSError(5, "timed out", str(path))

    with pytest.raises(SinkError, match="timed out"):
        write_rows(directory, origins(0, 5), writer="slow", disk=Late(s3_client(server)))
    log = CommitLog(directory, direct)
    assert direct.put_if_absent(log.path(0), held[0], log.path(0))
    write_rows(directory, origins(0, 8), writer="next", disk=direct)
    expect(directory, direct, 8)


# --- processes that are killed -------------------------------------------------------------------------------

WRITER = """
import sys
from downspout.settings.object_path import ObjectPath
from tests.sink.support import write, write_rows
directory, writer = ObjectPath(sys.argv[1]), sys.argv[2]
for end in range(5, 205, 5):
    write_rows(directory, [("t", "id", 0, offset, "") for offset in range(end)], writer=f"{writer}-{end}")
    print(end, flush=True)
"""


@pytest.mark.slow
def test_writers_that_are_killed_leave_each_row_once(environment: str, directory: ObjectPath) -> None:
    """Processes write the same rows and are killed (SIGKILL) anywhere; the last one goes on to the end."""
    kills = 5 if WHOLE else 2
    for number in range(kills + 1):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), f"w{number}"], stdout=subprocess.PIPE, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            if number < kills:
                process.stdout.readline()
                time.sleep(0.05 + 0.11 * number)
            else:
                process.stdout.read()
        finally:
            if number < kills:
                process.send_signal(signal.SIGKILL)
            assert process.wait(300) in (0, -signal.SIGKILL)
            process.stdout.close()
    expect(directory, ObjectStore(s3_client(environment)), 200)
    assert audit(directory, deep=True).exit_code == 0


def test_two_writers_at_once_write_each_row_once(server: str, directory: ObjectPath) -> None:
    """Two tasks that hold the same rows flush them at the same time."""
    store = ObjectStore(s3_client(server))

    def write(name: str) -> None:
        for end in range(4, 44, 4):
            write_rows(directory, origins(0, end), writer=f"{name}-{end}", disk=store)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(directory, store, 40)


# --- what it costs -------------------------------------------------------------------------------------------


def test_a_flush_takes_eleven_requests_at_most_however_long_the_log_is(server: str, directory: ObjectPath) -> None:
    """A writer that is open sends as many requests for its tenth flush as for its second."""
    with FaultProxy(server, lambda line: None) as proxy:
        store = ObjectStore(s3_client(proxy.url))
        writer = write_rows(directory, origins(0, 5), writer="w", disk=store)
        for number in range(1, 10):
            before = len(proxy.requests)
            _flush(writer, origins(number * 5, number * 5 + 5))
            assert len(proxy.requests) - before <= 11
    expect(directory, ObjectStore(s3_client(server)), 50)


def _flush(writer: Any, given: list[Any]) -> None:
    import pyarrow as pa

    from bolts.parquet import with_origins
    from downspout.sink import Identities

    identities = Identities.of(given)
    table = with_origins(pa.table({"n": pa.array([origin[3] for origin in given], pa.int64())}), identities)
    writer.flush(identities, lambda mask, _: table.filter(pa.array(mask)))


# --- what is refused -----------------------------------------------------------------------------------------


def test_a_store_without_conditional_writes_is_refused(server: str, directory: ObjectPath) -> None:
    """A store that ignores If-None-Match is found out before anything is committed."""

    class Ignores(ObjectStore):
        def _create(self, path: Path, content: bytes) -> None:
            self.write(path, content)

    with pytest.raises(SinkError, match=r"replaces an object although .*Try: a store with conditional writes"):
        write_rows(directory, origins(0, 5), writer="w", disk=Ignores(s3_client(server)))
    assert visible(ObjectStore(s3_client(server)), directory) == []


def test_a_bucket_that_is_not_there_is_said(environment: str) -> None:
    """The error names the directory and says that the bucket is missing."""
    with pytest.raises(SinkError, match=r"no-such-bucket.*there is no bucket of that name"):
        write_rows(ObjectPath("s3://no-such-bucket/out"), origins(0, 5), writer="w")


def test_a_snapshot_is_refused_with_what_to_read_instead(environment: str, directory: ObjectPath) -> None:
    """An object has no second name, so a snapshot would be a copy."""
    with pytest.raises(ConfigError, match=r"a snapshot would copy all rows.*Try: read_table"), snapshot(str(directory)):
        pass


def test_columns_grow_in_a_bucket(environment: str, directory: ObjectPath) -> None:
    """Old and new writers of a growing schema share a bucket, and readers through the log see one table of both."""
    small, wide = ["n:int32"], ["n:int64", "later:string"]
    write(directory, small, range(3), lambda n: (n,))
    write(directory, wide, range(3, 6), lambda n: (n + 2**40, "new"))
    write(directory, small, range(6, 9), lambda n: (n,))
    found = read_table(directory)
    assert [str(field.type) for field in found.schema] == ["int64", "string"]
    rows = sorted((row["n"], row["later"]) for row in found.to_pylist())
    old = [(n, None) for n in (0, 1, 2, 6, 7, 8)]
    assert rows == old + [(n + 2**40, "new") for n in range(3, 6)]
    Compactor(directory).run()
    assert sorted(read_table(directory).column("n").to_pylist()) == [row[0] for row in rows]
    assert audit(directory, deep=True).exit_code == 0
    with pytest.raises(SinkError, match="n narrows from int64 to int16"):
        write(directory, ["n:int16", "later:string"], range(9, 10), lambda n: (n, "x"))


def test_a_server_that_the_environment_names_later_is_the_one_that_is_asked(
    environment: str, directory: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose AWS_ENDPOINT_URL changes writes to the new server from then on, and not to the old one."""
    storage_of(directory).write(directory / "first", b"1")
    with server_of("s3proxy") as other:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other)
        storage_of(directory).write(directory / "second", b"2")
        assert visible(ObjectStore(s3_client(other)), directory) == ["second"]
    assert visible(ObjectStore(s3_client(environment)), directory) == ["first"]
