"""The three engines of ``make batch-demo``: each runs a topology to the end, through kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demos.killed import KilledRun, kill_again_and_again
from demos.screen import Screen
from downspout.batches.sql_state import read_state
from downspout.batches.stores import BatchStoreError
from downspout.broker.embedded import EmbeddedKafka
from downspout.errors import StormError
from downspout.formatting import counted
from downspout.spark.checkpoint import batch_numbers
from downspout.storm import groups, program
from downspout.storm.node import StormNode
from downspout.storm.node_files import read_daemons

ROOT = Path(__file__).resolve().parents[1]
QUICK_S_MAX = 10.0  # Longest wait for a batch on a quick engine; after the last record none comes
BATCHES_PER_KILL = 6
STALLED_S_MAX = 180.0
LOOK_S = 0.2
TIMEOUT_S = 10
"""Timeout after which Storm repeats a batch whose process died."""


@dataclass(frozen=True)
class Job:
    """A topology and its expected result."""

    name: str
    module: str  # of ``topologies``
    topic: str
    state: str
    records: int
    wanted: Mapping[str, Any]  # expected result, from a plain count
    storm: str  # the bolts in the topology's file for Storm, with placeholders
    reads: str = ""  # settings of the emitters there

    @property
    def target(self) -> str:
        """The topology's file."""
        return f"topologies/{self.module}.py"

    def show(self, value: Any) -> str:
        """Format a value."""
        return " / ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Counted:
    """The result of a job with batches of one kind."""

    name: str  # of engine and kind
    kills: int
    wanted_kills: int
    hits: int  # kills while an attempt was active
    batches: int
    restarts: int  # of the broker
    seconds: float
    found: Mapping[str, Any]


class Engine(ABC):
    """Runs jobs.

    Args:
        kafka: the broker, which is restarted once, in the middle of the first job.
        folder: for stores and logs.
        screen: for progress.
        chance: decides when it kills.
    """

    name = ""
    does = ""
    is_quick = False  # whether it runs again a second after a kill
    active = 2  # batches at a time

    def __init__(self, kafka: EmbeddedKafka, folder: Path, screen: Screen, chance: random.Random) -> None:
        self.kafka, self.folder, self.screen, self.chance = kafka, folder, screen, chance
        self._restarts = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the services that the engine needs besides the broker."""
        yield

    def count(self, job: Job, kind: str, kills: int) -> Counted:
        """Run a job in batches of one kind with this many kills; return its result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = Path(self.folder / f"{job.name}-{kind}-{uuid.uuid4().hex[:8]}.db").absolute()
        restarts, began = self._restarts, time.monotonic()
        killed, hits, batches = self._run(job, kind, kills, path)
        found = _stored(path, job)
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        seconds = time.monotonic() - began
        return Counted(f"{self.name} {kind}", killed, kills, hits, batches, self._restarts - restarts, seconds, found)

    @abstractmethod
    def _run(self, job: Job, kind: str, kills: int, path: Path) -> tuple[int, int, int]:
        """Run it; return the numbers of kills, of kills in a batch, and of batches."""

    def _settings(self, job: Job, kind: str, path: Path, batch: int) -> list[str]:
        return [
            f"kafka.bootstrap={self.kafka.bootstrap}", f"kafka.topics={job.topic}", f"batch.kind={kind}",
            f"state.kind={kind}", f"batch.store=sqlite:///{path}", f"state.store=sqlite:///{path}",
            "batch.emit_interval_ms=0", f"batch.max_active={self.active}", f"batch.records_max={batch}",
        ]  # fmt: skip

    def restart_broker_once(self) -> None:
        """Restart the broker once while the topology runs."""
        if not self._restarts:
            self._restarts += 1
            self.kafka.stop()
            self.kafka.start(progress=lambda line: None)

    def _pause_s(self, kills: int, seen: list[int]) -> float:
        """Return the pause before the next kill; restart the broker before the middle one."""
        seen.append(0)
        if len(seen) == (kills + 1) // 2:
            self.restart_broker_once()
        return self.chance.uniform(0.0, 0.1)

    def _pause_in_a_batch(self, is_active: Callable[[], bool], pause_s: float) -> float:
        """Wait until a batch has run for the pause; return the remaining pause, 0.

        If the batch ends meanwhile, wait for the next one. On Spark a batch starts after a second, and without a broker
        none does.
        """
        until = time.monotonic() + (QUICK_S_MAX if self.is_quick else STALLED_S_MAX)
        while time.monotonic() < until:
            if is_active():
                time.sleep(pause_s)
                if is_active():
                    break
            time.sleep(0.01)
        return 0.0


def partition_lines(partitions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return a line per partition with a run's metrics.

    >>> figures = {"committed": 7, "end": 9, "lag": 2, "fetched": 7, "fetches": 1, "fetch_mean_s": 0.002}
    >>> partition_lines({"lines": {"lines[0]": figures}})
    ['lines[0]: committed 7 of 9, lag 2; 7 records in 1 fetch, 2.0 ms each']
    """
    return [
        f"{place}: committed {each['committed']:,} of {each['end']:,}, lag {each['lag']:,}; {each['fetched']:,} "
        f"records in {counted(each['fetches'], 'fetch', 'fetches')}, {each['fetch_mean_s'] * 1000:.1f} ms each"
        for places in partitions.values()
        for place, each in places.items()
        if each["committed"] is not None
    ]


class LocalEngine(Engine):
    """``downspout run``, killed as a whole."""

    name = "local"
    does = "downspout run, killed"
    is_quick = True
    active = 4  # batches are short here, and a kill between two tests nothing

    def _run(self, job: Job, kind: str, kills: int, path: Path) -> tuple[int, int, int]:
        batch = max(job.records // (BATCHES_PER_KILL * (kills + 2)), 2)
        log, summary = (self.folder / f"{job.name}-{kind}.{suffix}" for suffix in ("log", "json"))
        log.unlink(missing_ok=True)
        settings = self._settings(job, kind, path, batch)
        options = ("--json", str(summary))
        run = KilledRun(job.target, settings, log, lambda: committed(path), self.screen, options=options)
        hits: list[bool] = []
        seen: list[int] = []
        killed = kill_again_and_again(
            run, kills, lambda: self.chance.randint(1, BATCHES_PER_KILL - 1),
            lambda pid: hits.append(is_active(path)),
            lambda: self._pause_in_a_batch(lambda: is_active(path), self._pause_s(kills, seen)),
        )  # fmt: skip
        for line in partition_lines(json.loads(summary.read_text(encoding="utf-8"))["partitions"]):
            self.screen.say(line)
        return killed, sum(hits), committed(path)


class SparkEngine(Engine):
    """``downspout spark run``: a micro-batch is a batch; the driver is killed, and its JVM with it."""

    name = "Spark"
    does = "downspout spark run, its driver killed"

    def _run(self, job: Job, kind: str, kills: int, path: Path) -> tuple[int, int, int]:
        checkpoint = path.with_suffix(".checkpoint")
        log = self.folder / f"{job.name}-{kind}-spark.log"
        log.unlink(missing_ok=True)
        each = max(job.records // (3 * (kills + 1)), 2)
        options = ["--records-per-batch", str(each), "--checkpoint", str(checkpoint)]
        # Spark does not run KafkaBatches, so it needs no batch store.
        settings = self._settings(job, kind, path, each)
        done = lambda: len(batch_numbers(checkpoint / "commits"))  # noqa: E731
        run = KilledRun(job.target, settings, log, done, self.screen, how=("spark", "run"), options=options)
        hits: list[bool] = []
        seen: list[int] = []
        killed = kill_again_and_again(
            run, kills, lambda: self.chance.randint(1, 2), lambda pid: hits.append(_spark_is_active(checkpoint)),
            lambda: self._pause_in_a_batch(lambda: _spark_is_active(checkpoint), self._pause_s(kills, seen)),
        )  # fmt: skip
        batches = done()
        shutil.rmtree(checkpoint, ignore_errors=True)
        return killed, sum(hits), batches


def _spark_is_active(checkpoint: Path) -> bool:
    begun, done = (batch_numbers(checkpoint / name) for name in ("offsets", "commits"))
    return max(begun, default=-1) > max(done, default=-1)


class StormEngine(Engine):
    """``sparse submit`` on a real Storm: single components are killed, and Storm starts them again."""

    name = "Storm"
    does = "sparse submit, components killed"
    KILLED = ("spouts.batches.KafkaBatchBolt", "bolts.state.StateBolt", "spouts.batches.BatchCoordinator")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start a Storm, and make a project with the topologies to submit."""
        self.project = self.folder / "storm-project"
        shutil.rmtree(self.project, ignore_errors=True)
        (self.project / "topologies").mkdir(parents=True)
        for name in ("config.json", "project.clj", "src"):
            (self.project / name).symlink_to(ROOT / name)
        self.node = StormNode((self.folder / "storm").absolute(), project=self.project.absolute())
        with self.screen.busy("starting Storm"):
            self.node.start(progress=lambda line: None)
        try:
            yield
        finally:
            self.node.stop(wait_s=0)

    def _run(self, job: Job, kind: str, kills: int, path: Path) -> tuple[int, int, int]:
        name = f"{job.module}_{kind}"
        batch = max(job.records // (BATCHES_PER_KILL * (kills + 2)), 2)
        text = TOPOLOGY.format(
            module=job.module, topic=job.topic, bootstrap=self.kafka.bootstrap, batch=batch, timeout=TIMEOUT_S,
            store=f"sqlite:///{path}", kind=kind, reads=job.reads,
        ) + job.storm.format(store=f"sqlite:///{path}", kind=kind)  # fmt: skip
        (self.project / "topologies" / f"{name}.py").write_text(text, encoding="utf-8")
        self._sparse("submit", "-n", name)
        hits = killed = 0
        try:
            for number in range(kills):
                self._wait(lambda: False, committed(path) + self.chance.randint(1, BATCHES_PER_KILL - 1), path, job)
                if number == kills // 2:
                    self.restart_broker_once()
                time.sleep(self.chance.uniform(0.0, 0.1))
                if pids := self._pids(self.KILLED[number % len(self.KILLED)]):
                    hits += is_active(path)
                    os.kill(self.chance.choice(pids), signal.SIGKILL)
                    killed += 1
            self._wait(lambda: _stored(path, job) == job.wanted, sys.maxsize, path, job)
        finally:
            self._sparse("kill", "-n", name, "--wait", "0")
        return killed, hits, committed(path)

    def _wait(self, over: Callable[[], bool], transactions: int, path: Path, job: Job) -> None:
        """Wait until this many transactions are committed, or all is done; stop if there is no progress."""
        seen, moved_at = -1, time.monotonic()
        with self.screen.busy(f"{job.name} on Storm"):
            while (now := committed(path)) < transactions and not over():
                if now > seen:
                    seen, moved_at = now, time.monotonic()
                if time.monotonic() - moved_at > STALLED_S_MAX:
                    return  # the comparison of the result will fail
                time.sleep(LOOK_S)

    def _sparse(self, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        environment |= program.environment(self.node, environment)
        command = [str(Path(sys.executable).with_name("sparse")), *words]
        done = subprocess.run(command, cwd=self.project, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StormError(f"sparse {words[0]} failed:\n{done.stdout}{done.stderr}", cure="`downspout storm logs`")

    def _pids(self, program: str) -> list[int]:
        """Return the processes of a component of this Storm."""
        daemons = read_daemons(self.node.directory)
        if daemons is None:
            return []
        found = []
        for member in groups.members(daemons.processes["supervisor"].pid):
            with suppress(OSError):
                if program in Path(f"/proc/{member.pid}/cmdline").read_text(encoding="utf-8", errors="replace"):
                    found.append(member.pid)
        return found


ENGINES: dict[str, type[Engine]] = {"local": LocalEngine, "storm": StormEngine, "spark": SparkEngine}
TOPOLOGY = """\
from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches
from topologies import {module}


class Counted(Topology):
    config = {{"topology.message.timeout.secs": {timeout}, "kafka.bootstrap": "{bootstrap}"}}
    coordinator, records = KafkaBatches.spec(
        topics=["{topic}"], fields=["value"], par=2, records_max={batch}, emit_interval_ms=50, max_active=2,
        store="{store}", kind="{kind}", {reads}
    )
"""
"""The topologies of ``topologies/`` with other topics and stores: on Storm, a submission cannot override the
configuration of a component."""


def committed(path: Path) -> int:
    """Return the number of committed transactions."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=60)) as connection:
        for (current,) in connection.execute("SELECT current_txid FROM downspout_batches"):
            return int(current or 1) - 1
    return 0


def is_active(path: Path) -> bool:
    """Return whether an attempt has begun and is not committed."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        found = connection.execute("SELECT attempts FROM downspout_batches").fetchall()
    return any(json.loads(attempts) for (attempts,) in found)


def _stored(path: Path, job: Job) -> Mapping[str, Any]:
    """Return the state's values, empty before the first commit."""
    with suppress(BatchStoreError):
        return {key[0]: value for key, value in read_state(f"sqlite:///{path}", job.state).items()}
    return {}
