"""`parquet.compact_every_s`: compaction while a sink writes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pystorm.component import Tuple

from bolts.parquet import ParquetBolt
from demos.s3 import KEYS
from downspout.audit.audit import audit
from downspout.settings import ObjectPath
from downspout.sink import CommitLog, read_table
from tests.sink.cloud_support import server_of
from tests.sink.support import sink, tup
from tests.waiting import eventually

PATIENCE_S = 60.0
TICK = Tuple("tick", "__system", "__tick", -1, (1,))


def writing(directory: Path, **conf: object) -> Callable[[int], None]:
    """Return a function that flushes a row of a sink that compacts all the time."""
    conf = {"parquet.schema": ["n:int64"], "parquet.compact_every_s": 0.001, **conf}
    bolt = sink(ParquetBolt, directory, fields=["origin", "n"], **conf)

    def flush(n: int) -> None:
        bolt.clock.advance(1)
        bolt.process(tup(("t", "id", 0, n, ""), n))
        bolt.drain()
        bolt.process_tick(TICK)

    return flush


def until_it_is_compacted(directory: Path, flush: Callable[[int], None]) -> int:
    """Flush until some of the files are replaced by one; return how many rows there are."""
    log, numbers = CommitLog(directory), itertools.count()

    def compacted() -> int:
        flush(n := next(numbers))
        log.refresh()
        return n + 1 if len(log.files) < n else 0

    return eventually(compacted)


def test_a_sink_compacts_as_it_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files are fewer than flushes, each row is there once, and the log of the run says what was done."""
    caplog.set_level(logging.INFO, "downspout.sink")
    flush = writing(tmp_path / "out")
    numbers = itertools.count(until_it_is_compacted(tmp_path / "out", flush))

    def told() -> bool:
        flush(next(numbers))
        return " files (" in caplog.text  # it is told at a later flush

    eventually(told)
    count = next(numbers)
    assert sorted(read_table(tmp_path / "out").column("n").to_pylist()) == list(range(count))
    assert audit(tmp_path / "out", deep=True).exit_code == 0


@pytest.mark.sweep
def test_so_it_does_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that compacts reaches the store as the sink does."""
    with server_of("s3proxy") as url:
        monkeypatch.setenv("THE_KEY", KEYS["AWS_SECRET_ACCESS_KEY"])
        options = [f"endpoint={url}", "region=us-east-1", "access_key_id=env:THE_KEY", "secret_access_key=env:THE_KEY"]
        directory = ObjectPath("s3://bucket/out")
        flush = writing(directory, **{"parquet.storage_options": options})
        monkeypatch.setenv("DOWNSPOUT_PARQUET_STORAGE_OPTIONS", ",".join(options))
        count = until_it_is_compacted(directory, flush)
        assert sorted(read_table(directory).column("n").to_pylist()) == list(range(count))


def test_what_goes_wrong_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that fails is a warning with its words; the sink writes on."""
    monkeypatch.chdir(tmp_path)  # where Python looks for it first
    (tmp_path / "downspout").mkdir()
    (tmp_path / "downspout" / "__init__.py").touch()
    (tmp_path / "downspout" / "__main__.py").write_text("raise SystemExit('no room for it')")
    flush = writing(tmp_path / "out")
    deadline = time.monotonic() + PATIENCE_S
    for n in range(100_000):
        flush(n)
        if "compaction ended with 1: no room for it" in caplog.text:
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Started:
    """A compaction that ends as the test says."""

    def __init__(self, *_: object, **__: object) -> None:
        self.returncode: int | None = None
        STARTED.append(self)

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.returncode = -15

    def wait(self, _: float | None = None) -> None:
        pass


STARTED: list[Started] = []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """Return the compactions that were started; none of them does anything."""
    monkeypatch.setattr("downspout.sink.sink_bolt.subprocess.Popen", Started)
    STARTED.clear()
    return STARTED


def lives(bolt: Any, seconds: int) -> list[float]:
    """Let a sink tick each second, without a record; return when it started compactions."""
    began = []
    for _ in range(seconds):
        bolt.clock.advance(1)
        before = len(STARTED)
        bolt.process_tick(TICK)
        began += [bolt.clock.monotonic()] * (len(STARTED) - before)
    return began


def idle(directory: Path) -> Any:
    return sink(
        ParquetBolt, directory, fields=["origin", "n"],
        **{"parquet.schema": ["n:int64"], "parquet.compact_every_s": 600.0},
    )  # fmt: skip


def test_a_sink_that_is_restarted_again_and_again_compacts_all_the_same(tmp_path: Path, started: list[Started]) -> None:
    """Its lives are shorter than the time from one compaction to the next; each begins one soon."""
    for life in range(1, 4):
        bolt = idle(tmp_path)
        assert lives(bolt, 30) == [5.0]
        assert len(started) == life
        bolt._alongside.stop()


def test_a_compaction_that_was_stopped_is_taken_up_soon(
    tmp_path: Path, started: list[Started], caplog: pytest.LogCaptureFixture
) -> None:
    """Without any record, after pauses that grow; one that was through is followed by the next in its time."""
    bolt = idle(tmp_path)
    assert lives(bolt, 10) == [5.0]
    for pause in (5, 10, 20):
        started[-1].returncode = -9
        (again,) = lives(bolt, pause + 1)
        assert f"compaction ended with -9: it said nothing. It restarts in {pause} s" in caplog.messages[-1]
    started[-1].returncode = 0
    (after,) = lives(bolt, 601)
    assert 590 <= after - again <= 601
    bolt._alongside.stop()
