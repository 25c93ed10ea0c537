"""The promises on the local engine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conformance.evidence import ACKS, LATER_S, Evidence, acks, has_ticked
from tests.conformance.project.src import stations
from tests.conformance.promises import *  # noqa: F403
from tests.waiting import eventually

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parent / "project"
DOWNSPOUT = [sys.executable, "-m", "downspout", "run"]
STALLED_S_MAX = 300.0
SWITCHED = """
from downspout.run.runner import run

class Switch:
    rested = 0

    def update(self, engine):
        self.rested += not engine.active
        if self.rested == 5:
            engine.activate()
        elif not self.rested and engine.spouts[0].emitted > 10:
            engine.deactivate()

run("topologies/switched.py", options={"run.records": 150}, view=Switch())
"""
"""`downspout run` deactivates at the end only; the engine itself can do it at any time, and activate again."""


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Run the project as a user would, and read what its components wrote down."""
    place = tmp_path_factory.mktemp("conformance")
    project, seen = place / "project", place / "seen"
    shutil.copytree(PROJECT, project)
    seen.mkdir()
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"CONFORMANCE_DIR": str(seen), "DOWNSPOUT_HOME": str(place / "home"), "PYTHONPATH": root}
    for name in ("conformance", "chunked"):
        run_until_all_is_heard(name, project, seen, environment)
    for command in (
        [*DOWNSPOUT, "topologies/direct.py", "--records", str(24 + len(stations.VALUES))],
        [sys.executable, "-c", SWITCHED],
    ):
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    return Evidence(seen)


def run_until_all_is_heard(name: str, project: Path, seen: Path, environment: dict[str, str]) -> None:
    """Run a topology until its spouts have heard of all their tuples, however long that takes, and end it by Ctrl-C."""
    log = project.parent / f"{name}.log"
    with log.open("wb") as said:
        command = [*DOWNSPOUT, f"topologies/{name}.py"]
        process = subprocess.Popen(command, cwd=project, env=environment, stdout=said, stderr=said)
    try:
        heard, moved_at = acks(seen, ACKS[name]), time.monotonic()
        while heard != ACKS[name]:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() - moved_at < STALLED_S_MAX, f"{heard}\n{log.read_text(encoding='utf-8')}"
            time.sleep(0.2)
            if (now := acks(seen, ACKS[name])) != heard:
                heard, moved_at = now, time.monotonic()
        if name == "conformance":
            eventually(lambda: has_ticked(seen), alive=process)
        time.sleep(LATER_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 128 + signal.SIGINT, log.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.wait()
