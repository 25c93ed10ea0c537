"""Topologies on real Spark over a real broker: what nothing but the whole can show."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downspout.errors import BrokerError, ConfigError, DownspoutError
from downspout.kafka.client import KafkaCluster
from downspout.kafka.deadletter import read_dead_letters
from downspout.kafka.embedded import EmbeddedKafka
from downspout.kafka.port import TopicPartition
from downspout.local.load import load
from downspout.local.runner import run as run_locally
from downspout.parquet.audit import audit
from downspout.spark.topology import SparkRun, run
from tests.parquet.support import rows_of
from tests.spark.topology_bolts import GATE
from tests.spark.topology_support import rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]

CASE, PLAIN = "tests.spark.topology_case:Case", "tests.spark.topology_case:Plain"
ROOT = Path(__file__).parents[2]
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
        """Write lines, in turns to both partitions."""
        producer = self.cluster.producer()
        for value in values:
            producer.send(self.topic, key=None, value=value.encode(), partition=len(self.sent) % 2)
            self.sent.append(value)
        producer.flush()
        producer.close()

    def overrides(self, *more: str, group: str = "") -> list[str]:
        """Return what makes a topology read this topic."""
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

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start `downspout spark run` as a process."""
        command = [
            sys.executable,
            "-m",
            "downspout",
            "spark",
            "run",
            PLAIN,
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
        log, deadline = self.path / "checkpoint", time.monotonic() + PATIENCE_S
        while not (log / "commits" / str(count - 1)).exists() or _last(log / "offsets") == _last(log / "commits"):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def wait_for_rows(self, process: subprocess.Popen[str]) -> None:
        """Wait until the process has written the words of all lines that were sent."""
        words, deadline = sum(len(line.split()) for line in self.sent), time.monotonic() + PATIENCE_S
        while len(self.out("words", "word")) < words:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def out(self, sink: str, *columns: str, below: Path | None = None) -> list[Any]:
        """Return some columns of a sink's rows."""
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
        """Return the dead letters."""
        return list(read_dead_letters(self.cluster, f"{self.topic}.dead-letters"))


def _last(folder: Path) -> int:
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=-1)


@pytest.fixture
def scene(
    spark: SparkSession, kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    """A topic, and folders."""
    return Scene(spark, kafka_broker.bootstrap, topic_name, tmp_path, monkeypatch)


def lines_of(count: int, seed: int = 0) -> list[str]:
    """Return lines of words, long and short."""
    rng = random.Random(seed)
    words = [f"{letter}{'x' * (number % 7)}" for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_the_tables_are_those_of_the_local_engine(scene: Scene, emit: str) -> None:
    """With two inputs, a named stream, stateful, batching and ticking bolts, all sinks have the local engine's rows.

    So they have where the spout emits chunks on Spark; the local engine's are made by record.
    """
    how = f"kafka.emit={emit}"
    scene.send(*lines_of(120), "poison pill")
    first = scene.run(CASE, how, records_per_batch=50)
    scene.send(*lines_of(40, seed=1))
    scene.run(CASE, how)
    time.sleep(1.0)  # a tick's period; what it tells is looked at, not when
    scene.send("last")
    scene.run(CASE, how)
    assert first.batches >= 3
    scene.run_locally(CASE, into=scene.path / "local")
    for sink, columns in (("words", ("word",)), ("counts", ("word", "n")), ("batches", ("word",))):
        assert scene.out(sink, *columns) == scene.out(sink, *columns, below=scene.path / "local"), sink
    ticked: Counter[str] = Counter()
    for word, count in scene.out("ticks", "word", "n"):
        ticked[word] += count
    assert ticked == Counter(scene.out("counts", "word"))
    assert {letter.letter.value for letter in scene.letters()} == {b"poison pill"}
    committed = scene.cluster.group_offsets(f"{scene.topic}-spark")
    assert {tp.partition: at.offset for tp, at in committed.items()} == {0: 81, 1: 81}
    assert scene.cluster.group_offsets(scene.topic) == {}


@pytest.mark.parametrize(("emit", "again"), [("record", 2), ("chunk", 3)])
def test_a_record_that_fails_in_a_stateful_bolt(scene: Scene, emit: str, again: int) -> None:
    """It is given up after its tries: its letter is there, and neither state nor any sink knows of it.

    In a chunk it is not alone: once more the batch is computed, in which it is.
    """
    scene.send(*lines_of(20), "a bad apple", *lines_of(20, seed=1))
    first = scene.run(PLAIN, f"kafka.emit={emit}", records_per_batch=30)
    assert (first.computed_again, first.result.reports["spout"]["dead_lettered"]) == (again, 1)
    scene.send(*lines_of(10, seed=2))
    assert scene.run().computed_again == 0
    scene.check("a bad apple")
    (letter,) = scene.letters()
    assert (letter.letter.value, letter.attempts, letter.component) == (b"a bad apple", 2, "count")
    assert not list((scene.path / "out").rglob("_staging/**/*.parquet"))


@pytest.mark.slow
def test_kill_minus_nine_changes_no_row(scene: Scene) -> None:
    """Driver, JVM and workers killed in the middle of a batch: a restart ends in the rows of an undisturbed run."""
    scene.send(*lines_of(400), "gate")  # it cannot have done all before we look, however quick it is
    driver = scene.start("--records-per-batch", "20", "--quiet")
    try:
        scene.wait_for_batches(driver, 2)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert 0 < len(scene.out("words", "word")) < sum(len(line.split()) for line in scene.sent)
    scene.run()
    scene.check()


@pytest.mark.slow
def test_ctrl_c_finishes_the_batch(scene: Scene) -> None:
    """Ctrl-C lets the batch finish and exits with 130; the next run goes on behind it."""
    # At the gate it waits for our signal if it is quicker than we are; behind it are batches that must not be begun.
    scene.send(*lines_of(200), "gate", *lines_of(200, seed=1))
    driver = scene.start("--records-per-batch", "20")
    try:
        scene.wait_for_batches(driver, 1)
        os.kill(driver.pid, signal.SIGINT)
        scene.gate.touch()
        said = driver.communicate(timeout=PATIENCE_S)[1]
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()
    assert driver.returncode == 130, said
    assert "stopped by SIGINT after the batch that was under way" in said
    log = scene.path / "checkpoint"
    assert _last(log / "offsets") - _last(log / "commits") <= 1
    before = len(rows_of(scene.path / "out" / "words"))
    done = scene.run()
    assert 0 < before < len(rows_of(scene.path / "out" / "words"))
    assert done.result.completed < len(scene.sent)
    scene.check()


def test_a_checkpoint_of_something_else(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of another topology, or of other stateful bolts, is an error before anything runs."""
    scene.send("a")
    scene.run()
    with pytest.raises(ConfigError, match="is the checkpoint of topology topology_case-Plain, not topology_case-Case"):
        scene.run(CASE)
    graph = load(PLAIN)
    more = replace(graph.components["count"], par=3)
    changed = replace(graph, components={**graph.components, "count": more})
    with pytest.raises(ConfigError, match=r"keeps the state of count \(2\), and the topology now has count \(3\)"):
        scene.run(changed)
    scene.check()


def test_what_cannot_be_read(scene: Scene) -> None:
    """A topic that is missing, and a setting that nobody knows, are errors that name them."""
    with pytest.raises(BrokerError, match="nowhere"):
        scene.run(PLAIN, "kafka.topics=nowhere")
    with pytest.raises(ConfigError, match=r"kafka\.topic"):
        scene.run(PLAIN, "kafka.topic=x")


def test_records_that_are_gone(scene: Scene) -> None:
    """Records that retention took fail the run; with on_data_loss=earliest it goes on behind them."""
    scene.send("a", "b", "c", "d")
    scene.run()
    scene.send("e", "f", "g", "h")
    scene.cluster.delete_records(scene.topic, 0, 3)
    with pytest.raises(DownspoutError, match=r"\[0\].*offset.* 2"):
        scene.run()
    scene.run(PLAIN, "kafka.on_data_loss=earliest")
    scene.check("e")


def test_two_engines_on_one_directory(scene: Scene) -> None:
    """Rows that the local engine wrote first are not written again by Spark, nor the other way round; audits agree."""
    scene.send(*lines_of(60))
    scene.run_locally()
    scene.send(*lines_of(60, seed=1))
    scene.run(records_per_batch=50)
    scene.send(*lines_of(60, seed=2))
    scene.run_locally()
    scene.run_locally(group="another")
    words = [word for line in scene.sent for word in line.split()]
    assert scene.out("words", "word") == sorted(words)
    report = audit(scene.path / "out" / "words", cluster=scene.cluster, several=True)
    assert report.found.row_count == len(words)
    assert TopicPartition(scene.topic, 0).partition in {part.partition for part in report.partitions}


@pytest.mark.slow
def test_an_outage_of_kafka_is_waited_out(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has seen Kafka says that it is away, starts again until it is back, and goes on; no row is lost."""
    kafka = EmbeddedKafka(tmp_path / "kafka")
    kafka.start()
    try:
        scene = Scene(spark, kafka.bootstrap, "lines", tmp_path, monkeypatch)
        scene.send(*(f"before {number}" for number in range(50)))
        process = scene.start()
        try:
            first = _lines_until(process, "batch 0: 50 records")
            assert any("begins where kafka.start says" in line for line in first)
            kafka.stop()
            _lines_until(process, "the query starts again in 4 s")
            kafka.start()
            scene.send(*(f"after {number}" for number in range(50)))
            _lines_until(process, "batch 1: ")  # of how many records: it may have looked while we sent them
            scene.wait_for_rows(process)
            os.kill(process.pid, signal.SIGINT)
            os.kill(process.pid, signal.SIGINT)
            said = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert process.returncode == 130
        assert "Traceback" not in said
        scene.check()
    finally:
        kafka.stop()


SLOW_ONCE = """
import os, sys, time
if "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv:
    try:
        os.mkdir(__file__ + ".begun")
    except FileExistsError:
        pass
    else:
        time.sleep(15)
"""


@pytest.mark.slow
def test_a_python_worker_that_starts_late_is_started_again(scene: Scene) -> None:
    """A source's process that needs more than Spark's ten seconds costs a wait and a line, not the run."""
    scene.site.mkdir()
    (scene.site / "sitecustomize.py").write_text(SLOW_ONCE, encoding="utf-8")
    scene.send("a", "b")
    process = scene.start("--until", "end")
    try:
        said = process.communicate(timeout=PATIENCE_S)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, said
    assert (scene.site / "sitecustomize.py.begun").exists()
    assert "a Python worker of Spark's did not start within 10 s; the query starts again in 2 s" in said
    assert "Traceback" not in said
    scene.check()


def _lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Return what a process says up to a line with these words."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if wanted in line:
            return said
    raise AssertionError("".join(said))
