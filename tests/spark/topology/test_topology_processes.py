"""Runs of `downspout spark run` as processes, over a real broker: killed, stopped by signals, and waiting."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, TopicPartition
from tests.kafka.broker_stage import read_whole
from tests.spark.topology.scene import PATIENCE_S, PUBLISHED, Scene, last_batch, lines_of, lines_until
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]


def test_kill_minus_nine_changes_no_row(scene: Scene) -> None:
    """Driver, JVM and workers killed in the middle of a batch: a restart ends in the rows of an undisturbed run.

    What a KafkaBolt writes beside the sinks is there too, each record at least once.
    """
    scene.send(*lines_of(400), "gate")  # it cannot have done all before we look, however quick it is
    published = f"{scene.topic}-out"
    scene.cluster.ensure_topic(published, 1, {})
    to_kafka = f"produce.topic={published}"
    driver = scene.start("--records-per-batch", "20", "--quiet", "--set", to_kafka, target=PUBLISHED)
    try:
        scene.wait_for_batches(driver, 2)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert 0 < len(scene.out("words", "word")) < sum(len(line.split()) for line in scene.sent)
    said: list[str] = []
    scene.run(PUBLISHED, to_kafka, report=said.append)
    scene.check()
    assert any(line.startswith("out writes at least once on Spark") for line in said)
    words = Counter(scene.out("words", "word") + [word for word, _ in scene.out("counts", "word", "n")])
    there = Counter(values_in(scene.cluster, published))
    assert there.keys() == words.keys()
    assert there >= words


def values_in(cluster: KafkaCluster, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_whole(cluster, [TopicPartition(topic, 0)])]


@pytest.mark.parametrize(
    ("number", "at"),
    [
        (signal.SIGTERM, "starting Spark"),
        pytest.param(signal.SIGTERM, "starts where", marks=pytest.mark.sweep),
        pytest.param(signal.SIGTERM, "batch 1:", marks=pytest.mark.sweep),
        pytest.param(signal.SIGINT, "batch 1:", marks=pytest.mark.sweep),
    ],
)
def test_a_signal_to_the_whole_group_ends_without_a_traceback(scene: Scene, number: int, at: str) -> None:
    """The JVM and the Python workers hear it too, before the query runs or in a batch: its exit code, and no row twice.

    The second signal, as of a user who does not want to wait, changes nothing of that.
    """
    scene.send(*lines_of(200), "gate", *lines_of(200, seed=1))
    driver = scene.start("--records-per-batch", "20")
    try:
        lines_until(driver, at)
        time.sleep(2)  # into the midst of it
        os.killpg(driver.pid, number)
        time.sleep(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, number)
        said = driver.communicate(timeout=PATIENCE_S)[1]
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()
    # The second one may come when the driver is just ending, and its handlers are gone; for a shell it is the same.
    assert driver.returncode in (128 + number, -number), said
    assert "Traceback" not in said
    name = signal.Signals(number).name
    # The second one, where nobody looks at signals any more, interrupts: there is no summary then.
    assert f"stopped by {name}" in said or f"{name}: stopping at once" in said
    if at == "starting Spark":
        assert not (scene.path / "out").exists()
        return
    scene.gate.touch()
    scene.run()
    scene.check()


def processes_of(driver: int) -> dict[str, list[int]]:
    """Return the processes that a driver has started: Spark's JVM, and Pythons by what they do for it.

    They are those of its session. A worker whose daemon was killed goes on, and Spark gives it tasks as before; but it
    is nobody's child then.
    """
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,sess=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    commands = {int(pid): command for pid, _, _, command in rows}
    found: dict[str, list[int]] = {}
    for pid, parent, session, command in rows:
        if int(session) != driver or int(pid) == driver:
            continue
        if "pyspark.daemon" in command:
            is_daemon = commands.get(int(parent), "").split(" ")[0].endswith("/java")
            found.setdefault("daemon" if is_daemon else "worker", []).append(int(pid))
        elif "python_streaming_source_runner" in command:
            found.setdefault("planner", []).append(int(pid))
        elif command.split()[0].endswith("/java"):
            found.setdefault("jvm", []).append(int(pid))
    return found


@pytest.mark.sweep
def test_dead_python_processes_do_not_end_a_run_and_a_dead_jvm_does_in_a_sentence(scene: Scene) -> None:
    """Ten random kills of workers, daemons and planners, in and between batches: no exit; then the JVM: code 9.

    The next run goes on, and all rows are there once.
    """
    rng = random.Random(38)
    driver = scene.start("--records-per-batch", "50")
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.extend(driver.stderr or ()))
    reader.start()
    try:
        for number, kind in enumerate(["", *rng.choices(["worker", "daemon", "planner"], k=10), "jvm"]):
            scene.send(*lines_of(20, seed=number))
            if not kind:
                scene.wait_for_rows(driver)
                continue
            time.sleep(rng.random())
            there = eventually(lambda: processes_of(driver.pid).get(kind), PATIENCE_S, alive=driver)  # noqa: B023
            with contextlib.suppress(ProcessLookupError):  # a worker that was idle may just have ended
                os.kill(rng.choice(there or []), signal.SIGKILL)
            if kind != "jvm":
                scene.wait_for_rows(driver)
        driver.wait(PATIENCE_S)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        reader.join()
    said = "".join(heard)
    assert driver.returncode == 9, said
    assert "Spark's JVM was ended by SIGKILL. Try: run it again: it goes on where it ended" in said
    assert "Traceback" not in said
    scene.run()
    scene.check()


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
"""A source's process that needs more than Spark's ten seconds, the first time."""


@pytest.mark.sweep
def test_what_passes_is_waited_out_and_ctrl_c_finishes_the_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late Python worker and an outage of Kafka cost a wait and a line each; Ctrl-C ends the run behind its batch.

    It exits with 130, and the next run goes on there; no row is lost, and none is there twice.
    """
    kafka = EmbeddedKafka(tmp_path / "kafka")
    kafka.start()
    try:
        scene = Scene(spark, kafka.bootstrap, "lines", tmp_path, monkeypatch)
        scene.site.mkdir()
        (scene.site / "sitecustomize.py").write_text(SLOW_ONCE, encoding="utf-8")
        scene.send(*(f"before {number}" for number in range(50)))
        process = scene.start("--records-per-batch", "50")
        try:
            first = "".join(lines_until(process, "batch 0: 50 records"))
            assert (scene.site / "sitecustomize.py.begun").exists()
            assert "a Python worker of Spark's did not start within 10 s; restarting the query in 2 s" in first
            assert "starts where kafka.start says" in first
            kafka.stop()
            lines_until(process, "restarting the query in 4 s")
            kafka.start()
            scene.send(*(f"after {number}" for number in range(50)))
            lines_until(process, "batch 1: ")  # of how many records: it may have looked while we sent them
            scene.wait_for_rows(process)
            scene.send("gate")  # this batch waits for us; behind it are batches that must not be begun
            scene.wait_at_the_gate(process)
            scene.send(*lines_of(200))
            os.kill(process.pid, signal.SIGINT)
            scene.gate.touch()
            said = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert process.returncode == 130, said
        assert re.search(r"SIGINT: waiting for batch \d+; Ctrl-C again stops at once\n", said)
        assert "stopped by SIGINT after the batch that was under way" in said
        assert "Traceback" not in first + said
        log = scene.path / "checkpoint"
        assert last_batch(log / "offsets") - last_batch(log / "commits") <= 1
        before = scene.out("words", "word")
        assert "gate" in before
        done = scene.run()
        assert len(before) < len(scene.out("words", "word"))
        assert done.result.completed < len(scene.sent)
        scene.check()
    finally:
        kafka.stop()
