"""The engine's calls to a spout from its start to its end; logs and metrics."""

import logging
from typing import ClassVar

import pytest
from streamparse import Bolt, Spout, Topology

from downspout.engine import Bounds, Engine, from_class
from downspout.errors import ComponentError
from downspout.testing import VirtualClock, run_bolt, run_topology


class Reader(Bolt):
    def process(self, tup):
        pass


class Stubborn(Spout):
    outputs = ("n",)

    def next_tuple(self):
        pass

    def deactivate(self):
        raise RuntimeError("will not rest")


class Orderly(Spout):
    outputs = ("n",)
    said: ClassVar[list[str]] = []

    def next_tuple(self):
        pass

    def deactivate(self):
        self.said.append("deactivated")

    def close(self):
        self.said.append("closed")


def test_a_spout_that_cannot_rest_does_not_keep_the_others_from_it():
    """At the end each spout is deactivated and closed, whatever another one raises, and the error is not lost."""

    class Two(Topology):
        first = Stubborn.spec()
        second = Orderly.spec()

    Orderly.said.clear()
    with pytest.raises(ComponentError, match="will not rest"):
        run_topology(Two, for_s=0.1)
    assert Orderly.said == ["deactivated", "closed"]


def test_logs_and_metrics_of_components_arrive(caplog):
    """self.logger, self.log and report_metric reach the engine; pystorm's handler on the root logger does not stay."""

    class Chatty(Bolt):
        def process(self, tup):
            self.logger.warning("by logger")
            self.log("by log", "warn")
            self.report_metric("size", 3)

    handlers = list(logging.getLogger().handlers)
    with caplog.at_level(logging.INFO):
        result = run_bolt(Chatty, [["a"]])
    assert "by logger" in caplog.text
    assert "bolt[task 2]: by log" in caplog.text
    assert result.run.metrics == {"bolt[task 2]": {"size": 3}}
    assert logging.getLogger().handlers == handlers


def test_a_components_log_file_is_its_own(tmp_path):
    """pystorm.log.path gives each component a file, which is closed at the end."""

    class Chatty(Bolt):
        def process(self, tup):
            self.logger.warning("written down")

    config = {"pystorm.log.path": str(tmp_path), "pystorm.log.file": "{component_name}.log"}
    result = run_bolt(Chatty, [["a"]], config=config)
    assert "written down" in (tmp_path / "bolt.log").read_text()
    assert result.components["bolt"][0].logger.handlers == []


class Steps(Spout):
    outputs = ("word",)

    def initialize(self, conf, context):
        self.calls = ["initialize"]

    def next_tuple(self):
        self.calls.append("next")

    def activate(self):
        self.calls.append("activate")

    def deactivate(self):
        self.calls.append("deactivate")

    def close(self):
        self.calls.append("close")


class OwnLoop(Steps):
    """Overrides how commands are read, so it gets Storm's messages."""

    def read_command(self):
        return super().read_command()


class Attending(Steps):
    def run_timers(self):
        self.calls.append("run_timers")


def test_a_spout_that_rests_is_attended_to():
    """While a run is inactive nobody calls next_tuple, and the spout can still look after what it owes to others."""

    class Made(Topology):
        words = Attending.spec()
        reader = Reader.spec(inputs=[words])

    graph = from_class(Made, "Made")
    engine = Engine(graph, {name: {} for name in graph.components}, bounds=Bounds(), clock=VirtualClock())
    with engine.open():
        engine.deactivate()
        engine.round()
    assert engine.spouts[0].instance.calls[-3:] == ["deactivate", "run_timers", "close"]


@pytest.mark.parametrize("spout", [Steps, OwnLoop])
def test_the_life_of_a_spout(spout):
    """initialize, activate, next…, deactivate, activate again, deactivate, close; no next while inactive."""

    class Made(Topology):
        words = spout.spec()
        reader = Reader.spec(inputs=[words])

    graph = from_class(Made, "Made")
    engine = Engine(graph, {name: {} for name in graph.components}, bounds=Bounds(), clock=VirtualClock())
    for task in engine.tasks:
        task.build()
    engine.activate()
    engine.round()
    engine.deactivate()
    engine.round()
    engine.activate()
    engine.round()
    engine.stop()
    engine.wind_up(quietly=False)
    (task,) = engine.spouts
    assert task.instance.calls == [
        "initialize", "activate", "next", "deactivate", "activate", "next", "deactivate", "close",
    ]  # fmt: skip
