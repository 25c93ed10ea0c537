"""Tools for tests of topologies and bolts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from downspout.exports import offered

if TYPE_CHECKING:
    from downspout.testing.clock import VirtualClock as VirtualClock
    from downspout.testing.fake_kafka import FakeKafka as FakeKafka
    from downspout.testing.harness import Crash as Crash
    from downspout.testing.harness import Fail as Fail
    from downspout.testing.harness import Lose as Lose
    from downspout.testing.harness import On as On
    from downspout.testing.harness import run_bolt as run_bolt
    from downspout.testing.harness import run_topology as run_topology
    from downspout.testing.simulation import Message as Message
    from downspout.testing.simulation import Scenario as Scenario
    from downspout.testing.simulation import simulate as simulate

_HOMES = {
    "Crash": "downspout.testing.harness",
    "Fail": "downspout.testing.harness",
    "FakeKafka": "downspout.testing.fake_kafka",
    "Lose": "downspout.testing.harness",
    "Message": "downspout.testing.simulation",
    "On": "downspout.testing.harness",
    "Scenario": "downspout.testing.simulation",
    "VirtualClock": "downspout.testing.clock",
    "run_bolt": "downspout.testing.harness",
    "run_topology": "downspout.testing.harness",
    "simulate": "downspout.testing.simulation",
}
"""Public name → module. Imported on first use, so that pytest, which loads our plugin everywhere, stays fast."""

__all__ = list(_HOMES)

_find, _ = offered(
    __name__,
    {
        "fake_consumer": "FakeConsumer",
        "fake_faults": "Faults",
        "given_records": "run_on_records",
        "harness": "ROUND_S TopologyResult",
        "memory_batches": "MemoryBatches",
        "plugin": "UNHURRIED",
        "schema_registry": "SchemaRegistry",
        "simulated_disk": "Crashed LOSSES Loss Process SimulatedDisk Step Volume",
        "simulation": "Sent",
    },
)
"""For Downspout's own tests."""


def __getattr__(name: str) -> Any:
    return getattr(import_module(_HOMES[name]), name) if name in _HOMES else _find(name)
