"""`downspout run --workers 2` on a real broker: to the end, killed, stopped, left alone, set up wrongly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from downspout.broker import EmbeddedKafka
from downspout.kafka import cluster_for
from downspout.system import birth
from tests.broker.gate_topology import GATE

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS, EACH = 4, 1_000
WAIT_S = 240.0

pytestmark = pytest.mark.broker


class Scene:
    """A topic, a gate, an output directory, and runs over them."""

    def __init__(
        self, broker: EmbeddedKafka, topic: str, folder: Path, processes: list[subprocess.Popen[bytes]]
    ) -> None:
        self.broker, self.topic, self.folder, self.processes = broker, topic, folder, processes
        self.output, self.gate, self.log = folder / "out", folder / "gate", folder / "log"
        self.environment = os.environ | {
            "DOWNSPOUT_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT), GATE: str(self.gate),
        }  # fmt: skip
        self.gate.mkdir()
        self.after(10**9)
        cluster_for(broker.bootstrap).ensure_topic(topic, PARTITIONS)
        self.produce()

    def produce(self) -> None:
        topic = self.topic
        producer = cluster_for(self.broker.bootstrap).producer()
        for number in range(PARTITIONS * EACH):
            producer.send(topic, key=None, value=str(number).encode(), partition=number % PARTITIONS)
        producer.flush(60)
        producer.close()

    def after(self, records: int) -> None:
        """Say how many records a process handles before it comes to the gate."""
        (self.gate / "after").write_text(str(records))

    def command(self, *options: str) -> list[str]:
        settings = {"kafka.bootstrap": self.broker.bootstrap, "kafka.topics": self.topic, "kafka.group": self.topic}
        given = [f"--set={key}={value}" for key, value in (settings | {"parquet.directory": self.output}).items()]
        topology = "tests/broker/gate_topology.py"
        return [sys.executable, "-m", "downspout", "run", topology, "--workers", "2", *given, *options]

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a run in a process group of its own, as a shell does."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                self.command("--json", str(self.folder / "result.json"), *options),
                cwd=ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Wait for the end of a run; return its exit code and result."""
        code = process.wait(WAIT_S)
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result | {"exit_code": code}

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def workers(self) -> dict[int, int]:
        return {int(pid): int(number) for number, pid in re.findall(r"worker (\d+) runs as process (\d+)", self.said)}

    def wait(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def at_the_gate(self) -> set[int]:
        return {int(path.name.partition("-")[2]) for path in self.gate.glob("waits-*")}

    def audit(self) -> str:
        command = [sys.executable, "-m", "downspout", "audit", str(self.output), "--topic", self.topic]
        command += ["--bootstrap", self.broker.bootstrap]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture
def scene(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> Scene:
    """Give a topic of 4,000 records, and what runs over it."""
    return Scene(kafka_broker, topic_name, tmp_path, processes)


EXACT = f"exact: {PARTITIONS * EACH:,} offsets are in the files, each exactly once"


def test_killed_workers_are_started_again_and_each_row_is_there_once(scene: Scene) -> None:
    """Two workers are killed one after the other with records in flight; the run goes on to its end, and is exact."""
    scene.after(500)
    run = scene.start("--until", "end")
    killed: list[int] = []
    for _ in range(2):
        scene.wait(lambda: scene.at_the_gate() - set(killed))
        killed.append(min(scene.at_the_gate() - set(killed)))
        os.kill(killed[-1], signal.SIGKILL)
    (scene.gate / "open").touch()
    result = scene.finish(run)
    assert result["exit_code"] == 0, scene.said
    assert (result["reason"], result["drained"], [w["state"] for w in result["workers"]]) == ("end", True, ["end"] * 2)
    for pid in killed:
        number = scene.workers[pid]
        assert f"worker {number} (pid {pid}) was killed by signal 9 (SIGKILL); restarting in" in scene.said
    assert sum(worker["restarts"] for worker in result["workers"]) == 2
    assert scene.audit() == EXACT


def test_ctrl_c_drains_all_workers(scene: Scene) -> None:
    """Ctrl-C reaches the process group of the terminal; each worker drains, and what was read is committed."""
    scene.after(500)
    run = scene.start()
    scene.wait(scene.at_the_gate)
    os.killpg(run.pid, signal.SIGINT)
    (scene.gate / "open").touch()
    result = scene.finish(run)
    assert result["exit_code"] == 130, scene.said
    assert (result["reason"], result["drained"], result["uncommitted"]) == ("signal", True, {})
    assert "stopped by SIGINT after a clean drain" in scene.said
    assert {worker["restarts"] for worker in result["workers"]} == {0}
    assert [pid for pid in scene.workers if birth(pid)] == []
    again = scene.start("--until", "end")
    assert scene.finish(again)["completed"] == PARTITIONS * EACH - result["completed"]
    assert scene.audit() == EXACT


@pytest.mark.sweep
def test_workers_end_when_their_supervisor_is_killed(scene: Scene) -> None:
    """Nobody is there to stop them, so they drain and end by themselves; nothing of what they did is done again."""
    scene.after(500)
    run = scene.start()
    scene.wait(lambda: scene.at_the_gate() and len(scene.workers) == 2)  # of whom we do not know we cannot say it ended
    run.kill()
    run.wait()
    (scene.gate / "open").touch()
    scene.wait(lambda: not [pid for pid in scene.workers if birth(pid)])
    commits = cluster_for(scene.broker.bootstrap).group_offsets(scene.topic)
    done = sum(commit.offset for commit in commits.values())
    assert done >= 500, "what was in flight at the gate was drained and committed"
    assert scene.finish(scene.start("--until", "end"))["completed"] == PARTITIONS * EACH - done
    assert scene.audit() == EXACT


def test_a_wrong_setting_is_told_once(scene: Scene) -> None:
    """What each worker would refuse ends the run at once, with one message and the exit code of a wrong setting."""
    run = scene.start("--set", "parquet.schema=number:int63")
    assert run.wait(WAIT_S) == 2, scene.said
    assert scene.said.count("no type int63") == 1, scene.said
    assert "\ndownspout: parquet.schema: number:int63: no type int63. Try: " in scene.said
    assert "restarting in" not in scene.said
    assert [pid for pid in scene.workers if birth(pid)] == []


def scraped(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {family.samples[0].name: [(each.labels, each.value) for each in family.samples] for family in families}


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.sweep
def test_the_port_of_the_run_shows_all_workers(scene: Scene) -> None:
    """One port has the metrics of both workers, task by task, and the lag of all partitions; it is ready when both are.

    Their log is JSON, and each line has the number of its worker.
    """
    run = scene.start("--metrics-port", "0", "--log-format", "json")
    scene.wait(lambda: "metrics are at" in scene.said)
    url = re.findall(r"metrics are at (\S+)/metrics", scene.said)[0]
    everything = {str(number): 2.0 * EACH for number in range(PARTITIONS)}

    def all_done() -> bool:
        rows = scraped(url).get("downspout_partition_committed", [])
        return {labels["partition"]: value for labels, value in rows} == everything

    scene.wait(lambda: status(f"{url}/readyz") == 200)
    scene.produce()  # now that each worker has its partitions
    scene.wait(all_done)
    assert status(f"{url}/healthz") == 200
    found = scraped(url)
    rows = found["downspout_executed_total"]
    executed = {labels["worker"]: value for labels, value in rows if labels["component"] == "gate"}
    assert executed.keys() == {"1", "2"}
    assert all(executed.values()), "each has had its share"
    assert sum(executed.values()) >= 2 * PARTITIONS * EACH  # more, if some came again when the second worker joined
    assert [value for _, value in found["kafka_consumergroup_lag"]] == [0.0] * PARTITIONS
    assert found["downspout_run_workers"][0][1] == 2.0
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait(WAIT_S) == 143, scene.said
    lines = [json.loads(line) for line in scene.said.splitlines()]
    assert {line.get("worker") for line in lines} == {None, 1, 2}
