"""A run's report on its tasks, and the names of tuples in it."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
from streamparse import Bolt, Grouping, Spout, Stream, Topology

from downspout.engine.result import reports_of
from downspout.engine.task import about
from downspout.testing import run_topology


def task(name: str, **report: float) -> Any:
    return SimpleNamespace(name=name, report=lambda: report)


def test_counters_of_tasks_are_added_and_ages_are_those_of_the_oldest() -> None:
    tasks = [task("a", acked=2, oldest_pending_s=7), task("a", acked=3, oldest_pending_s=5), task("b", acked=1)]
    found = reports_of([(each.name, each.report()) for each in tasks])
    assert found == {"a": {"acked": 5, "oldest_pending_s": 7}, "b": {"acked": 1}}


@pytest.mark.parametrize(
    ("fields", "name"),
    [("topic partition offset", "orders[3]@918"), ("topic part offset", "tuple ('orders', 3, 918)")],
)
def test_a_tuple_with_a_place_in_kafka_is_called_by_it(fields: str, name: str) -> None:
    """Topic, partition and offset are a place; anything less is shown as it is."""
    assert about(SimpleNamespace(values=namedtuple("T", fields)("orders", 3, 918))) == name  # type: ignore[call-arg]


class Words(Spout):
    outputs = ("word",)

    def next_tuple(self):
        pass


class Sender(Bolt):
    outputs = (Stream(["word"], direct=True),)

    def process(self, tup):
        own = next(task for task, name in self.context["task->component"].items() if name == "sender")
        self.emit([tup.values.word], direct_task=int(own))


class Keep(Bolt):
    def process(self, tup):
        raise AssertionError("nothing is sent to it")


class Lost(Topology):
    words = Words.spec()
    sender = Sender.spec(inputs=[words])
    keep = Keep.spec(inputs={sender: Grouping.DIRECT})


def test_a_direct_emit_to_a_task_that_does_not_read_goes_nowhere() -> None:
    """As on Storm, a tuple for a task that has not subscribed to the stream is dropped, and its tree completes."""
    assert run_topology(Lost, spouts={"words": [["a"]]}).run.completed == 1


class Takes(Bolt):
    def process(self, tup):
        pass


def test_what_each_task_did_is_told_apart() -> None:
    """Tasks of one component have their own numbers, those that it reports and those that the engine counts."""

    class Pair(Topology):
        words = Words.spec()
        takes = Takes.spec(inputs={words: Grouping.fields("word")}, par=2)

    result = run_topology(Pair, spouts={"words": [["a"], ["b"], ["c"], ["d"]]}).run
    tasks = [task for task in result.tasks if task.component == "takes"]
    assert len({task.task for task in tasks}) == 2
    assert sum(task.values["executed"] for task in tasks) == result.components["takes"].executed == 4
    assert [task.values["queued"] for task in tasks] == [0, 0]
