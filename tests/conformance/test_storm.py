"""The promises on a real Storm: the same project, by stock `sparse submit`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from downspout.storm import nimbus, programs
from downspout.storm.node import StormNode
from tests.conformance.evidence import Evidence
from tests.conformance.promises import *  # noqa: F403
from tests.storm.support import SHORT_LIVED

pytestmark = [pytest.mark.storm, pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parent / "project"
STALLED_S_MAX = 150.0
LATER_S = 3.0
"""Ticks, and what should not come, get so long after everything else has."""
ACKS = {
    **dict.fromkeys(("paired", "loosened", "forgotten", "raised", "reliable", "ids", "chain", "batched"), 12),
    "ticklessly": 12,
    "rows": 60,
    "throttled": 60,
    "few": 24,
    "directed": 24,
    "values": 19,
    **dict.fromkeys(("pieces", "mixed", "divided", "spoilt", "heaped", "unhurried"), 6),
}
"""How many acks each spout waits for."""
TOPOLOGIES = ("direct", "conformance", "chunked")
"""They stay to the end; the switched one leaves its worker's slot to the last of them."""


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Submit the project, wait until every spout has heard of all its tuples, deactivate it, and read the notes."""
    place = tmp_path_factory.mktemp("conformance")
    project, seen = place / "project", place / "seen"
    shutil.copytree(PROJECT, project)
    seen.mkdir()
    with StormNode(place / "storm", project=project, settings=SHORT_LIVED) as node:
        environment = {**os.environ, **programs.environment(node), "CONFORMANCE_DIR": str(seen)}
        sparse = Path(sys.executable).with_name("sparse")
        for name in ("switched", *TOPOLOGIES):
            if name == TOPOLOGIES[-1]:
                switch_on_and_off(node, seen)
            command = [sparse, "submit", "-n", name]
            done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        wait_for(lambda: acks(seen) == ACKS, seen)
        time.sleep(LATER_S)
        with nimbus.connect(*node.address) as client:
            for name in TOPOLOGIES:
                client.deactivate(name=name)
        wait_for(lambda: all(kinds[-1] == "deactivate" for kinds in spouts(seen)), seen)
    return Evidence(seen)


def switch_on_and_off(node: StormNode, seen: Path) -> None:
    """Deactivate the endless spout, activate it, see that it goes on, deactivate it again and kill its topology."""

    def steady() -> list[str]:
        evidence = Evidence(seen)
        return [note["what"] for note in evidence.notes_of("steady")] if "steady" in evidence.components() else []

    wait_for(lambda: "emit" in steady(), seen)
    with nimbus.connect(*node.address) as client:
        client.deactivate(name="switched")
    wait_for(lambda: steady()[-1] == "deactivate", seen)
    with nimbus.connect(*node.address) as client:
        client.activate(name="switched")
    wait_for(lambda: steady()[-1] == "emit", seen)
    with nimbus.connect(*node.address) as client:
        client.deactivate(name="switched")
    wait_for(lambda: steady()[-1] == "deactivate", seen)
    nimbus.kill(*node.address, "switched", wait_s=0)


def acks(seen: Path) -> dict[str, int]:
    """Return how many acks each of the spouts has heard, those that are enough as exactly that."""
    evidence = Evidence(seen)
    known = evidence.components()
    heard = {name: len(evidence.notes(name, "ack")) if name in known else 0 for name in ACKS}
    return {name: min(count, ACKS[name]) for name, count in heard.items()}


def spouts(seen: Path) -> list[list[str]]:
    """Return what each task of a spout has noted, by kind."""
    kinds = [[note["what"] for note in notes] for _, _, notes in Evidence(seen).all_notes()]
    return [each for each in kinds if "activate" in each]


def wait_for(condition: Callable[[], bool], seen: Path) -> None:
    """Wait until a condition holds; fail if the spouts hear nothing more for minutes."""
    heard, moved_at = acks(seen), time.monotonic()
    while not condition():
        if (now := acks(seen)) != heard:
            heard, moved_at = now, time.monotonic()
        assert time.monotonic() - moved_at < STALLED_S_MAX, heard
        time.sleep(0.3)
