"""The promises of ``tests/conformance`` on a real Storm: the same project, by stock `sparse submit`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from streamparse import thrift

from downspout.storm import StormNode, nimbus
from tests.conformance.evidence import ACKS, LATER_S, Evidence, acks, has_ticked
from tests.conformance.promises import *  # noqa: F403
from tests.storm.support import STALLED_S_MAX, Place, asked
from tests.waiting import eventually

pytestmark = [pytest.mark.storm, pytest.mark.slow]

PROJECT = Path(__file__).parents[1] / "conformance" / "project"
ALL = {name: count for each in ACKS.values() for name, count in each.items()}
TOPOLOGIES = ("direct", "conformance", "chunked")
"""They stay to the end; the switched one leaves its worker's slot to the last of them."""


@pytest.fixture(scope="module")
def evidence(place: Place, node: StormNode, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Submit the project, wait until every spout has heard of all its tuples, deactivate it, and read the notes."""
    folder = tmp_path_factory.mktemp("conformance")
    project, seen = folder / "project", folder / "seen"
    shutil.copytree(PROJECT, project)
    seen.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONFORMANCE_DIR", str(seen))
        for name in ("switched", *TOPOLOGIES):
            if name == TOPOLOGIES[-1]:
                switch_on_and_off(node, seen)
            code, output = place.sparse("submit", "-n", name, folder=project)
            assert code == 0, output
    wait_for(lambda: acks(seen, ALL) == ALL, seen)
    eventually(lambda: has_ticked(seen))
    time.sleep(LATER_S)
    for name in TOPOLOGIES:
        tell(node, "deactivate", name)
    wait_for(lambda: all(kinds[-1] == "deactivate" for kinds in spouts(seen)), seen)
    for name in TOPOLOGIES:
        kill(node, name)
    return Evidence(seen)


def switch_on_and_off(node: StormNode, seen: Path) -> None:
    """Deactivate the endless spout, activate it, see that it goes on, deactivate it again and kill its topology."""

    def steady() -> list[str]:
        evidence = Evidence(seen)
        return [note["what"] for note in evidence.notes_of("steady")] if "steady" in evidence.components() else []

    wait_for(lambda: "emit" in steady(), seen)
    tell(node, "deactivate", "switched")
    wait_for(lambda: steady()[-1] == "deactivate", seen)
    tell(node, "activate", "switched")
    wait_for(lambda: steady()[-1] == "emit", seen)
    tell(node, "deactivate", "switched")
    wait_for(lambda: steady()[-1] == "deactivate", seen)
    kill(node, "switched")


def tell(node: StormNode, what: str, name: str, **more: object) -> None:
    with nimbus.connect(*asked(lambda: node.address), timeout_s=60.0) as client:
        getattr(client, what)(name=name, **more)


def kill(node: StormNode, name: str) -> None:
    """Kill a topology, whose workers' slots the next ones need."""
    tell(node, "killTopologyWithOpts", name, options=thrift.KillOptions(wait_secs=0))


def spouts(seen: Path) -> list[list[str]]:
    """Return what each task of a spout has noted, by kind."""
    kinds = [[note["what"] for note in notes] for _, _, notes in Evidence(seen).all_notes()]
    return [each for each in kinds if "activate" in each]


def wait_for(condition: Callable[[], bool], seen: Path) -> None:
    """Wait until a condition holds; fail if the spouts hear nothing more for minutes."""
    heard, moved_at = acks(seen, ALL), time.monotonic()
    while not condition():
        if (now := acks(seen, ALL)) != heard:
            heard, moved_at = now, time.monotonic()
        assert time.monotonic() - moved_at < STALLED_S_MAX, heard
        time.sleep(0.3)
