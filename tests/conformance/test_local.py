"""The promises on the local engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.evidence import Evidence
from tests.conformance.project.src import stations
from tests.conformance.promises import *  # noqa: F403

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parent / "project"
DOWNSPOUT = [sys.executable, "-m", "downspout", "run"]
SWITCHED = """
from downspout.local.runner import run

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
    """Run the project as a user would, for 50 s, and read what its components wrote down."""
    place = tmp_path_factory.mktemp("conformance")
    project, seen = place / "project", place / "seen"
    shutil.copytree(PROJECT, project)
    seen.mkdir()
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"CONFORMANCE_DIR": str(seen), "DOWNSPOUT_HOME": str(place / "home"), "PYTHONPATH": root}
    for command in (
        [*DOWNSPOUT, "topologies/conformance.py", "--for", "25s"],
        [*DOWNSPOUT, "topologies/chunked.py", "--for", "25s"],
        [*DOWNSPOUT, "topologies/direct.py", "--records", str(24 + len(stations.VALUES))],
        [sys.executable, "-c", SWITCHED],
    ):
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    return Evidence(seen)
