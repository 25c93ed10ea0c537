"""A store that is unavailable or full: rows are kept, nothing is acked or failed, and work resumes afterwards."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from streamparse import Topology

from bolts.parquet import ParquetBolt
from demos.s3 import KEYS, FaultProxy, s3_server
from downspout import outages
from downspout.errors import SinkError
from downspout.ledger import Origin
from downspout.settings import ObjectPath
from downspout.sink import Disk, read_table
from downspout.testing import VirtualClock, run_topology
from spouts.kafka import KafkaSpout
from tests.sink.support import rows_of, sink, tup
from tests.waiting import eventually

FIELDS = ["origin", "word"]
MINUTES = 600


class FullDisk(Disk):
    """Fails one operation, as a disk that is full does, or a volume that is gone, while ``full``."""

    def __init__(self, operation: str = "write", code: int = errno.ENOSPC) -> None:
        self.operation, self.code, self.full, self.tries = operation, code, True, 0

    def __getattribute__(self, name: str) -> Any:
        if name != "operation" and name == self.operation and self.full:
            return self._fail
        return super().__getattribute__(name)

    def _fail(self, path: Path, *_: object) -> None:
        self.tries += 1
        raise OSError(self.code, os.strerror(self.code), str(path))


def make(directory: Path, **settings: Any) -> Any:
    return sink(ParquetBolt, directory, fields=FIELDS, **{"parquet.schema": ["word:string"], **settings})


def give(bolt: Any, *offsets: int) -> None:
    """Give a bolt tuples, and let it flush what is due."""
    for offset in offsets:
        bolt.process(tup(("t", "", 0, offset, ""), f"{offset}"))
    bolt.drain()


def wait(bolt: Any, seconds: float) -> list[float]:
    """Let time pass as an engine does: the bolt is drained when it says so. Return when that was."""
    end, tries = bolt.clock.monotonic() + seconds, []
    while (due := bolt.drain_at()) is not None and due < end:
        bolt.clock.sleep(max(0.0, due - bolt.clock.monotonic()))
        tries.append(bolt.clock.monotonic())
        bolt.drain()
    bolt.clock.sleep(max(0.0, end - bolt.clock.monotonic()))
    return tries


@pytest.mark.parametrize("operation", ["make_folder", "write", "sync", "link", "rename"])
def test_a_full_disk_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture, operation: str) -> None:
    """Ten minutes bring no error, no ack, and a line a minute; when there is room, each row is there once."""
    bolt = make(tmp_path / "out")
    disk = bolt.writer.disk = bolt.writer.log.disk = FullDisk(operation)
    give(bolt, 0, 1, 2)
    tries = wait(bolt, MINUTES)
    assert (bolt.acked, bolt.failed, bolt.is_waiting()) == ([], {}, True)
    assert bolt.report()["held"] == 3
    assert bolt.report()["away_s"] == pytest.approx(MINUTES, abs=10)
    assert max(after - before for before, after in pairwise(tries)) == 5.0
    assert len(tries) < 150
    assert 10 <= len(caplog.messages) <= 11
    assert all(f"the disk of {tmp_path / 'out'} has been full since" in each for each in caplog.messages)
    assert "(No space left on device); sink[task 3] waits for it" in caplog.messages[0]
    disk.full = False
    wait(bolt, 5)
    assert bolt.acked == ["t--0-0-", "t--0-1-", "t--0-2-"]
    assert "can be used again, after 10 min" in caplog.messages[-1]
    assert (bolt.is_waiting(), bolt.report()["away_s"]) == (False, 0.0)
    give(bolt, *range(5))
    assert sorted(row["_offset"] for row in rows_of(tmp_path / "out")) == [0, 1, 2, 3, 4]


def test_the_first_line_comes_within_five_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bolt = make(tmp_path)
    bolt.writer.disk = bolt.writer.log.disk = FullDisk()
    give(bolt, 0)
    wait(bolt, 5.1)
    assert len(caplog.messages) == 1


def test_who_wants_an_end_has_one(tmp_path: Path) -> None:
    """After ``parquet.outage_s_max`` the run ends; the error blames no permissions and no record."""
    bolt = make(tmp_path, **{"parquet.outage_s_max": 60.0})
    bolt.writer.disk = bolt.writer.log.disk = FullDisk()
    give(bolt, 0)
    with pytest.raises(SinkError, match=r"has been full \(No space left on device\), for 6\d s. Try: free the disk$"):
        wait(bolt, MINUTES)
    assert (bolt.acked, bolt.failed, bolt.report()["held"]) == ([], {}, 0)


def test_a_start_waits_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that is started again during an outage does not end."""

    class Clock(VirtualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            disk.full = self.monotonic() < 90

    disk = FullDisk("make_folder")

    class Away(ParquetBolt):
        pass

    Away.disk = disk
    Away.clock = Clock()
    bolt: Any = Away(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.component_name, bolt.task_id = "sink", 3
    settings = {"topology.name": "t", "parquet.directory": str(tmp_path / "out"), "parquet.schema": ["word:string"]}
    bolt.initialize(settings, {"source->stream->fields": {"parse": {"default": FIELDS}}})
    assert disk.tries > 10
    assert len(caplog.messages) == 3
    assert bolt.writer.log.length == 0


def test_what_is_held_is_bounded_where_spouts_do_not_rest(tmp_path: Path) -> None:
    """On Storm tuples go on coming: beyond two flushes they are forgotten, time out, and come again."""
    bolt = make(tmp_path / "out", **{"parquet.flush_rows": 100})
    disk = bolt.writer.disk = bolt.writer.log.disk = FullDisk()
    for offset in range(2_000):
        bolt.process(tup(("t", "", 0, offset, ""), "a"))
        assert bolt.report()["held"] <= 200
    disk.full = False
    wait(bolt, 10)
    assert 100 <= len(bolt.acked) <= 200
    give(bolt, *range(2_000))
    assert sorted(row["_offset"] for row in rows_of(tmp_path / "out")) == list(range(2_000))


class Lines(Topology):
    lines = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    files = ParquetBolt.spec(inputs=[lines], schema={"value": "string"}, flush_rows=50)


def test_spouts_rest_and_no_tuple_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the local engine ten minutes of a full disk cost nothing: no timeout, no retry, no dead letter."""
    disk = FullDisk()
    disk.full = False
    monkeypatch.setattr(ParquetBolt, "disk", disk)

    class Clock(VirtualClock):
        def advance(self, seconds: float) -> None:
            super().advance(seconds)
            disk.full = 0.01 < self.monotonic() < MINUTES

    rows = [[Origin("t", "", 0, n, ""), f"{n}"] for n in range(5_000)]
    result = run_topology(
        Lines, spouts={"lines": rows}, config={"parquet.directory": str(tmp_path / "files")}, clock=Clock()
    )
    assert result.clock.monotonic() > MINUTES
    assert sorted(row["_offset"] for row in rows_of(tmp_path / "files")) == list(range(5_000))
    assert (result.run.timeouts, result.failed("lines")) == (0, [])


# --- an object store ---


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def store(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Return a way to it that a test may cut."""
    monkeypatch.setattr("downspout.sink.sink_bolt.SINK_RETRY_S", 0.1)
    with FaultProxy(server, lambda line: None) as proxy:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        yield proxy


CUTS: dict[str, Callable[[str], str | None]] = {
    "refused": lambda line: "drop",
    "503": lambda line: "slow",
    "no entries": lambda line: "drop" if line.startswith("PUT") and ".json" in line else None,
    "no answers": lambda line: "lose",
    "no copies": lambda line: "drop" if line.startswith("PUT") and ".json" not in line else None,
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_store_that_is_away_is_waited_for(store: FaultProxy, cut: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever requests fail, nothing is acked meanwhile; then each row is there once."""
    bolt = make(ObjectPath(f"s3://bucket/{cut.replace(' ', '-')}"))
    give(bolt, 0)
    store.fault = CUTS[cut]
    give(bolt, 1, 2)
    wait(bolt, 5)
    assert (bolt.acked, bolt.is_waiting()) == (["t--0-0-"], True)
    assert f"at {store.url} has not answered since" in caplog.messages[-1]
    store.fault = lambda line: None
    wait(bolt, 6)
    assert bolt.acked == ["t--0-0-", "t--0-1-", "t--0-2-"]
    assert sorted(read_table(bolt.writer.directory).column("word").to_pylist()) == ["0", "1", "2"]


def test_a_refusal_is_not_waited_for(store: FaultProxy) -> None:
    """What the same request would be told again is an error at once."""
    bolt = make(ObjectPath("s3://bucket/refused"))
    bolt.process(tup(("t", "", 0, 0, ""), "a"))
    store.fault = lambda line: "403 AccessDenied"
    with pytest.raises(SinkError, match="refuses to"):
        bolt.drain()
    assert not bolt.is_waiting()


def test_a_store_that_is_silent_is_named_while_the_request_waits(
    store: FaultProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop stands in a request without an answer; another thread says for what, within five seconds by default."""
    assert outages.SOON_S + outages.LOOK_S < 5
    monkeypatch.setattr("downspout.sink.row_sink.SOON_S", 0.05)
    monkeypatch.setattr(outages, "SOON_S", 0.05)
    monkeypatch.setattr(outages, "LOOK_S", 0.01)
    bolt = make(ObjectPath("s3://bucket/silent"))
    bolt.clock = outages.SYSTEM_CLOCK
    bolt._patience = outages.Patience("files[task 3]", 0.0)
    bolt.process(tup(("t", "", 0, 0, ""), "a"))

    def silent(line: str) -> str:
        eventually(lambda: "s3://bucket/silent at" in caplog.text)
        return "drop"

    store.fault = silent
    bolt.drain()
    assert "has not answered since" in caplog.messages[0]
    assert caplog.messages[0].endswith("; files[task 3] waits for it and goes on when it answers")
    store.fault = lambda line: None
    eventually(lambda: bolt.drain() or bolt.acked)
    assert "answers again, after" in caplog.messages[-1]
