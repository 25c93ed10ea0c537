"""Windows in two worker processes, on a real broker: workers are killed while others look at what is final."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import cluster_for
from tests.broker.test_workers import ROOT, WAIT_S
from tests.sink.hours import Hours
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.sweep]
EACH = 200


def test_final_windows_stay_as_they_are_when_workers_are_killed(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Each of two workers is killed once; what was final never changes, and each event is in its windows once."""
    hours = Hours(cluster_for(kafka_broker.bootstrap), topic_name, tmp_path / "hours")
    topology, said = tmp_path / "hours_topology.py", tmp_path / "log"
    topology.write_text(hours.source)
    settings = {"kafka.bootstrap": kafka_broker.bootstrap, "kafka.group": topic_name}
    command = [sys.executable, "-m", "downspout", "run", str(topology), "--workers", "2"]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}

    def start(*options: str) -> subprocess.Popen[bytes]:
        with said.open("ab") as log:
            run = subprocess.Popen(
                [*command, *options], cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        processes.append(run)
        return run

    def more_are_final(than: int) -> bool:
        hours.send(EACH)
        return hours.check_final() > than

    run = start()
    for worker in (1, 2):
        final = hours.check_final()
        eventually(
            lambda before=final: more_are_final(before), WAIT_S, every_s=0.5, otherwise=said.read_text, alive=run
        )
        pids = dict(re.findall(r"worker (\d+) runs as process (\d+)", said.read_text()))
        os.kill(int(pids[str(worker)]), signal.SIGKILL)
    final = hours.check_final()
    eventually(lambda: more_are_final(final), WAIT_S, every_s=0.5, otherwise=said.read_text, alive=run)
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGINT)
    assert run.wait(WAIT_S) == 130, said.read_text()
    assert start("--until", "end").wait(WAIT_S) == 0, said.read_text()
    hours.check_all()
