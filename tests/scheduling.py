"""Which process runs which tests, and in which order: used with ``--dist loadgroup``.

A file's tests stay together, since they share fixtures. Where several files share what is expensive, their tests are
one group: a machine has room for one Storm, and a standalone Spark, or a broker that speaks TLS, takes half a minute to
start.

The groups that take longest come first. So the processes finish at about the same time: what is left at the end are
groups of a second.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

SHARED_FIXTURES = {
    "standalone": "spark-cluster",
    "any_kafka": "protected-brokers",
    "scram_kafka": "protected-brokers",
    "three_brokers": "three-brokers",
    "postgres": "postgres",
}
"""A fixture → the group of all tests that use it."""
SHARED_MARKS = {"storm": "storm"}
"""A mark → likewise."""
SECONDS: dict[str, float] = {
    "storm": 550,
    "spark-cluster": 200,
    "protected-brokers": 110,
    "three-brokers": 110,
    "postgres": 60,
    "tests/broker/test_contract_broker.py": 40,
    "tests/broker/test_embedded.py": 60,
    "tests/broker/test_embedded_cluster.py": 40,
    "tests/broker/test_spout_outage.py": 60,
    "tests/broker/test_sql_workers.py": 60,
    "tests/broker/test_word_count.py": 20,
    "tests/broker/test_workers.py": 40,
    "tests/compare/test_compare_command.py": 140,
    "tests/crash/test_matrix.py": 80,
    "tests/spark/test_pipelines_windows.py": 90,
    "tests/spark/topology/test_topology_processes.py": 250,
    "tests/spark/topology/test_topology_run.py": 200,
    "tests/spout/test_kafka_spout_rebalance.py": 70,
    "tests/spout/test_kafka_spout_unclean.py": 90,
    "tests/producing/test_kill_matrix.py": 60,
    "tests/topology/test_simulation.py": 100,
}
"""What a group takes, roughly, where it is far from what its folder's tests take."""
SECONDS_PER_TEST = {
    "tests/broker": 1.5,
    "tests/chaos": 2.0,
    "tests/compare": 3.0,
    "tests/conformance": 3.0,
    "tests/crash": 2.5,
    "tests/spark": 1.5,
    "tests/spout": 0.4,
    "tests/security": 0.8,
    "tests/topology": 1.5,
    "tests/run": 0.5,
    "tests/audit": 0.15,
    "tests/cli": 0.5,
    "tests/dead_letters": 0.3,
    "tests/sink": 0.2,
    "tests/wire": 0.5,
}
QUICK_S = 0.05
"""What a test takes in other folders."""


def shared_group(item: pytest.Item) -> str | None:
    """Return the group of a test that shares something with other files; None: its file is its group."""
    fixtures = getattr(item, "fixturenames", ())
    named = [group for name, group in SHARED_FIXTURES.items() if name in fixtures]
    named += [group for name, group in SHARED_MARKS.items() if item.get_closest_marker(name)]
    return named[0] if named else None


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def seconds_of(group: str, tests: int) -> float:
    """Return about how long a group takes.

    >>> seconds_of("storm", 50), seconds_of("tests/spout/test_x.py", 10), seconds_of("downspout/clock.py", 2)
    (550, 4.0, 0.1)
    """
    folder = "/".join(group.split("/")[:2])
    return SECONDS.get(group, tests * SECONDS_PER_TEST.get(folder, QUICK_S))


def into_groups(items: list[pytest.Item]) -> None:
    """Mark the tests of a group that is not a file, and bring the longest groups to the front.

    In place, like all that pytest hands to be changed; tests of a group keep their order.
    """
    groups = {}
    for item in items:
        if (shared := shared_group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(shared))
        groups[item] = shared or file_of(item.nodeid)
    counts = Counter(groups.values())
    items.sort(key=lambda item: (-seconds_of(groups[item], counts[groups[item]]), groups[item]))


class LongestFirst(LoadGroupScheduling):  # type: ignore[misc]
    """Gives the next group to the process that has almost nothing left to do, in the order of :func:`into_groups`."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would go by how many tests there are

    def _split_scope(self, nodeid: str) -> str:
        """Return the group: what xdist has appended for a mark, or else the file."""
        group: str = super()._split_scope(nodeid)
        return file_of(nodeid) if group == nodeid else group

    def mark_test_pending(self, item: str) -> None:
        """Nothing is left to do: what a process that died had been given, this test too, is in the queue again."""
