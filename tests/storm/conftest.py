"""A real Storm and a real Kafka for the session, and a streamparse project in which stock ``sparse`` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.storm import StormNode, node_files
from downspout.testing import UNHURRIED
from tests.storm.support import ROOT, SHORT_LIVED, Place


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A project like this repository's, with a Kafka of its own; Storm is not started."""
    home, project = tmp_path_factory.mktemp("storm-home"), tmp_path_factory.mktemp("storm-project")
    for name in ("config.json", "project.clj", "src"):
        (project / name).symlink_to(ROOT / name)
    (project / "topologies").mkdir()
    for path in (ROOT / "topologies").glob("*.py"):
        (project / "topologies" / path.name).symlink_to(path)
    with EmbeddedKafka(home / "kafka", properties=UNHURRIED) as kafka:
        yield Place(home, project, kafka)


@pytest.fixture(scope="session")
def node(place: Place) -> Iterator[StormNode]:
    settings = SHORT_LIVED | {"topology.kryo.register": []}  # like a Storm that somebody else has set up
    with place.inside():
        made = StormNode(place.node.directory, project=place.project, settings=settings).start()
    try:
        yield made
    finally:
        made.stop(wait_s=0)


@pytest.fixture
def storm(place: Place, node: StormNode) -> Place:
    """The same with a Storm that runs: one of which a daemon has ended between two tests is replaced."""
    daemons = node_files.read_daemons(node.directory)
    if daemons is None or len(daemons.alive) < 3:
        node.start()
    return place


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    """A project as stock ``sparse quickstart`` makes it, outside of this repository."""
    sparse = Path(sys.executable).with_name("sparse")
    command = [str(sparse), "quickstart", "quick"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "LEIN_ROOT": "1"}, check=True, capture_output=True)
    return tmp_path / "quick"
