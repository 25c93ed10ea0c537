"""The metadata of batches in a real ZooKeeper: the one that a Storm node brings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from downspout.offsets import Location, open_nodes
from downspout.storm import HOST
from tests.batches.zookeeper_metadata import OpenNodes, ZooKeeperMetadataContract
from tests.storm.support import Place

pytestmark = pytest.mark.storm


class TestReal(ZooKeeperMetadataContract):
    """All that holds of the tree in memory holds here."""

    @pytest.fixture
    def root(self) -> str:
        return f"/downspout-tests/{uuid.uuid4().hex}"

    @pytest.fixture
    def open_nodes(self, storm: Place, root: str) -> Iterator[OpenNodes]:
        hosts = f"{HOST}:{storm.node.ports().zookeeper}"
        with ExitStack() as stack:
            stack.enter_context(closing(open_nodes(Location(hosts, "")))).ensure(root)
            yield lambda: stack.enter_context(closing(open_nodes(Location(hosts, ""))))
