"""Which process runs which tests, in which order, and for how long each may run: used with ``--dist loadgroup``.

A file's tests stay together, since they share fixtures. Where several files share what is expensive, their tests are
one group: a machine has room for one Storm, and a standalone Spark, or a broker that speaks TLS, takes half a minute to
start.

A group with a Storm or a Spark is heavy: its JVMs alone keep two cores busy. Heavy groups run one after the other, all
on one process, which keeps its Spark session; the other processes run what is light meanwhile. Of each kind the groups
that take longest come first, so that all end at about the same time. How long a test took is in ``timings.json``, which
``make test-all`` writes anew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.sampling import sample

ROOT = Path(__file__).resolve().parents[1]
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
HEAVY_MARKS = ("storm", "spark")
HEAVY = "heavy "
"""What the name of a heavy group begins with."""
TIMINGS = Path(__file__).with_name("timings.json")
RECORDED_S_MIN = 2.0
"""What takes less is not recorded."""
UNRECORDED_S = 0.05
"""What a test takes that is not recorded: roughly the mean of those."""

CASES_MIN, LONG_S = 4, 4.0
"""Of a test with so many cases, that take so long together, `make test` takes a third."""
WHOLE_SUITE_MIN = 5_000
"""Tests that are selected at least where all are."""

PURE_S_MAX, REAL_S_MAX = 60, 300
"""A test that takes longer hangs: one in this process, and one that starts others or speaks to a server."""
REAL_MARKS = ("broker", "spark", "storm", "slow")
LONGER_S = {
    "tests/ledger/test_ledger_machine.py": 300,  # a state machine under Hypothesis
    "tests/ledger/test_range_machine.py": 300,  # likewise
    "tests/scaffold/test_readme.py": 900,  # makes environments, and runs all that the README says
    "tests/packaging/": 600,  # makes an environment
    "tests/sink/test_storage_contract.py": 300,  # starts S3 servers
    "tests/sink/test_object_store": 300,  # likewise
    "tests/storm/": 600,  # the first of them starts a Storm
    "tests/spark/cluster/": 600,  # the first of them starts a cluster
    "tests/spark/": 400,  # a query's start alone takes half a minute on a busy machine
    "tests/crash/test_matrix.py": 900,
    "tests/topology/test_simulation.py": 900,  # many worlds in one test
    "tests/topologies/test_demo": 900,  # whole demos
    "tests/chaos/test_chaos.py": 900,
    "tests/partitions/": 900,
}
"""The first that fits: a test, a file or a folder → seconds."""
WHOLE_FACTOR = 6
"""``make test-all`` takes sweeps whole: each may take so many times as long."""


def group_of(item: pytest.Item) -> str:
    """Return the group of a test: what it shares with other files, or else its file."""
    fixtures = getattr(item, "fixturenames", ())
    named = [group for name, group in SHARED_FIXTURES.items() if name in fixtures]
    named += [group for name, group in SHARED_MARKS.items() if item.get_closest_marker(name)]
    return named[0] if named else file_of(item.nodeid)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def is_heavy(item: pytest.Item) -> bool:
    """Return whether a test needs a machine's cores for its JVMs."""
    return any(item.get_closest_marker(mark) for mark in HEAVY_MARKS)


def limit_of(item: pytest.Item, *, whole: bool) -> int:
    limit = next((seconds for start, seconds in LONGER_S.items() if item.nodeid.startswith(start)), 0)
    limit = limit or (REAL_S_MAX if any(item.get_closest_marker(mark) for mark in REAL_MARKS) else PURE_S_MAX)
    return limit * WHOLE_FACTOR if whole else limit


def read_timings(file: Path = TIMINGS) -> dict[str, float]:
    """Return how long tests took, by id; empty where nothing was recorded."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write_timings(took_s: dict[str, float], file: Path = TIMINGS) -> None:
    """Record how long tests took, a line each; those that did not run keep what they have."""
    found = read_timings(file) | took_s
    kept = {test: round(seconds, 1) for test, seconds in sorted(found.items()) if seconds >= RECORDED_S_MIN}
    file.write_text(json.dumps(kept, indent=0) + "\n")


def left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that `make test` leaves to `make test-all`: of a test with many that takes long, two in three.

    Only selections of the whole suite are sampled: who names a test gets all of its cases.
    """
    if len(items) < WHOLE_SUITE_MIN:
        return []
    timings = read_timings()
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    found = []
    for name, some in cases.items():
        if len(some) >= CASES_MIN and sum(timings.get(item.nodeid, UNRECORDED_S) for item in some) >= LONG_S:
            kept = set(sample(some, 3, name))
            found += [item for item in some if item not in kept]
    return found


def _is_heavy(group: str) -> bool:
    return group.startswith(HEAVY)


def into_groups(items: list[pytest.Item]) -> None:
    """Mark the tests of a group that is not a file, and order groups: heavy ones first, then by how long they take.

    In place, like all that pytest hands to be changed; tests of a group keep their order.
    """
    timings = read_timings()
    groups, heavy, seconds = {}, set(), defaultdict(float)
    for item in items:
        groups[item] = group = group_of(item)
        seconds[group] += timings.get(item.nodeid, UNRECORDED_S)
        if is_heavy(item):
            heavy.add(group)
    for item, group in groups.items():
        if group in heavy or group != file_of(item.nodeid):
            # The name tells the scheduler, which sees ids alone, that a group is heavy.
            item.add_marker(pytest.mark.xdist_group(f"{HEAVY}{group}" if group in heavy else group))
    items.sort(key=lambda item: (groups[item] not in heavy, -seconds[groups[item]], groups[item]))


class OneHeavyAtOnce(LoadGroupScheduling):
    """Gives the next group to the process that has almost nothing left to do, in the order of :func:`into_groups`.

    A heavy group waits while another process has one, as long as there are others.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would go by how many tests there are

    def _split_scope(self, nodeid: str) -> str:
        """Return the group: what xdist has appended for a mark, or else the file."""
        group: str = super()._split_scope(nodeid)
        return file_of(nodeid) if group == nodeid else group

    def _assign_work_unit(self, node: Any) -> None:
        """Bring the group that this process is to have to the front of the queue, and assign it."""
        if any(_is_heavy(group) for other in self.nodes if other is not node for group in self._at_work(other)):
            light = next((group for group in self.workqueue if not _is_heavy(group)), None)
            if light is not None:
                self.workqueue.move_to_end(light, last=False)
        super()._assign_work_unit(node)

    def _at_work(self, node: Any) -> list[str]:
        return [group for group, tests in self.assigned_work[node].items() if not all(tests.values())]

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a group that is done: xdist counts through all that a process was ever given, after each test."""
        super().mark_test_complete(node, item_index, duration)
        for group in [group for group, tests in self.assigned_work[node].items() if all(tests.values())]:
            del self.assigned_work[node][group]

    def mark_test_pending(self, item: str) -> None:
        """Nothing is left to do: what a process that died had been given, this test too, is in the queue again."""
