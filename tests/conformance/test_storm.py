"""The promises on a real Storm: the same project, by stock `sparse submit`, and again by `sparse run` for a part of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from downspout.storm import nimbus, programs
from downspout.storm.node import StormNode
from tests.conformance.evidence import Evidence
from tests.conformance.promises import *  # noqa: F403

pytestmark = [pytest.mark.storm, pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parent / "project"
SETTLED_S_MAX = 240.0
LATER_S = 8.0
"""Ticks, and what should not come, get so long after everything else has."""


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Submit the project, wait until every spout has heard of all its tuples, deactivate it, and read the notes."""
    place = tmp_path_factory.mktemp("conformance")
    project, seen = place / "project", place / "seen"
    shutil.copytree(PROJECT, project)
    seen.mkdir()
    with StormNode(place / "storm", project=project) as node:
        environment = {**os.environ, **programs.environment(node), "CONFORMANCE_DIR": str(seen)}
        sparse = Path(sys.executable).with_name("sparse")
        done = subprocess.run(
            [sparse, "submit", "-n", "conformance"], cwd=project, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        wait_until_settled(seen)
        with nimbus.connect(*node.address) as client:
            client.deactivate(name="conformance")
        wait_for(lambda: all(kinds[-1] == "deactivate" for kinds in spouts(Evidence(seen))), seconds=60)
        time.sleep(2)
    return Evidence(seen)


def spouts(evidence: Evidence) -> list[list[str]]:
    """Return what each task of a spout has noted, by kind."""
    kinds = [[note["what"] for note in notes] for _, _, notes in evidence.all_notes()]
    return [each for each in kinds if "activate" in each]


def wait_until_settled(seen: Path) -> None:
    """Wait until as many acks have come as there are tuples that can be acked."""
    expected = {name: 12 for name in ("paired", "loosened", "forgotten", "raised", "reliable", "ids", "chain",
                                      "batched", "ticklessly")}  # fmt: skip
    expected |= {"rows": 60, "throttled": 60, "few": 24, "values": 18}

    def settled() -> bool:
        evidence = Evidence(seen)
        known = evidence.components()
        return all(name in known and len(evidence.ids(name, "ack")) >= min(count, 60 if name != "few" else 12)
                   for name, count in expected.items())  # fmt: skip

    wait_for(settled, SETTLED_S_MAX)
    time.sleep(LATER_S)


def wait_for(condition, seconds: float) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.5)
