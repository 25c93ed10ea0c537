"""A topic on a real broker, and runs of a topology over it: on Spark, here or as a process, and on the local engine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downspout.dead_letters import read_dead_letters
from downspout.kafka import KafkaCluster
from downspout.run.runner import run as run_locally
from downspout.spark import run
from downspout.spark.topology.query import SparkRun
from tests.spark.topology_bolts import GATE
from tests.spark.topology_support import rows_in
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASE, PLAIN = "tests.spark.topology_case:Case", "tests.spark.topology_case:Plain"
PUBLISHED = "tests.spark.topology_case:Published"
ROOT = Path(__file__).parents[3]
PATIENCE_S = 300.0
"""How long a process may take for its first batches, on a machine that does much else."""


class Scene:
    """A topic of its own, and runs over it that write below one folder."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, path: Path, monkey: pytest.MonkeyPatch) -> None:
        self.spark, self.cluster, self.topic, self.path, self._monkey = (
            spark,
            KafkaCluster(bootstrap),
            topic,
            path,
            monkey,
        )
        self.cluster.ensure_topic(topic, 2, {})
        self.sent: list[str] = []
        self.gate = path / "gate"
        """Where it is not, a process that was started gets no further than to the word "gate"."""
        self.site = path / "site"
        """Modules for the processes that are started, and for theirs."""

    def send(self, *values: str) -> None:
        producer = self.cluster.producer()
        for value in values:
            producer.send(self.topic, key=None, value=value.encode(), partition=len(self.sent) % 2)
            self.sent.append(value)
        producer.flush()
        producer.close()

    def overrides(self, *more: str, group: str = "") -> list[str]:
        own = [f"kafka.topics={self.topic}", f"kafka.group={group or self.topic}"]
        return [*own, f"kafka.bootstrap={self.cluster.bootstrap}", *more]

    def run(self, target: Any = PLAIN, *more: str, checkpoint: str = "checkpoint", **options: Any) -> SparkRun:
        """Run on Spark to the end of what is there."""
        self._monkey.setenv("DOWNSPOUT_PROJECT", str(self.path))
        given = {"run.until": "end"}
        return run(
            target, spark=self.spark, overrides=self.overrides(*more), options=given,
            checkpoint=self.path / checkpoint, **options,
        )  # fmt: skip

    def run_locally(self, target: str = PLAIN, *more: str, into: Path | None = None, group: str = "local") -> None:
        """Run on the local engine to the end of what is there."""
        self._monkey.setenv("DOWNSPOUT_PROJECT", str(into or self.path))
        overrides = self.overrides(*more, group=f"{self.topic}-{group}")
        run_locally(target, overrides=overrides, options={"run.until": "end"})

    def start(self, *more: str, target: str = PLAIN) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "downspout",
            "spark",
            "run",
            target,
            "--checkpoint",
            str(self.path / "checkpoint"),
        ]
        for given in self.overrides():
            command += ["--set", given]
        modules = os.pathsep.join([str(self.site), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": modules, "DOWNSPOUT_PROJECT": str(self.path), GATE: str(self.gate)}
        return subprocess.Popen(
            [*command, *more], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=environment, cwd=self.path,
        )  # fmt: skip

    def wait_for_batches(self, process: subprocess.Popen[str], count: int) -> None:
        """Wait until the process has so many batches done, and is in another one."""
        log = self.path / "checkpoint"

        def in_another() -> bool:
            done = (log / "commits" / str(count - 1)).exists()
            return done and last_batch(log / "offsets") != last_batch(log / "commits")

        self._wait(process, in_another, every_s=0.005)

    def wait_at_the_gate(self, process: subprocess.Popen[str]) -> None:
        """Wait until the process has come to the gate, in the midst of a batch."""
        self._wait(process, self.gate.with_name(f"{self.gate.name}.waits").exists)

    def wait_for_rows(self, process: subprocess.Popen[str]) -> None:
        """Wait until the process has written the words of all lines that were sent."""
        words = sum(len(line.split()) for line in self.sent)
        self._wait(process, lambda: len(self.out("words", "word")) >= words, every_s=0.1)

    def _wait(self, process: subprocess.Popen[str], holds: Callable[[], bool], every_s: float = 0.05) -> None:
        eventually(
            holds, PATIENCE_S, every_s=every_s, alive=process,
            otherwise=lambda: process.communicate()[1] if process.poll() is not None else "it still runs",
        )  # fmt: skip

    def out(self, sink: str, *columns: str, below: Path | None = None) -> list[Any]:
        return rows_in((below or self.path) / "out" / sink, *columns)

    def check(self, *left_out: str) -> None:
        """Check that words and counts are those of all lines that were sent, but for some."""
        words = [word for line in self.sent if line not in left_out for word in line.split()]
        assert self.out("words", "word") == sorted(words)
        words += [word.upper() for word in words if len(word) > 4]
        assert self.out("counts", "word", "n") == sorted(
            (word, n + 1) for word, count in Counter(words).items() for n in range(count)
        )

    def letters(self) -> list[Any]:
        return list(read_dead_letters(self.cluster, f"{self.topic}.dead-letters"))


def last_batch(folder: Path) -> int:
    """Return the number of the last batch in a folder of a checkpoint; -1: there is none."""
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=-1)


def lines_of(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    words = [f"{letter}{'x' * (number % 7)}" for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Return what a process says up to a line with these words."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if wanted in line:
            return said
    raise AssertionError("".join(said))
