"""Tools for tests of topologies and bolts.

To change how bolts and topologies run in tests: harness.py
To change what FakeKafka does: fake_kafka.py
To change what a simulated world does: simulation/world.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downspout.exports import offered

if TYPE_CHECKING:
    from downspout.testing.fake_kafka import FakeKafka
    from downspout.testing.harness import Crash, Fail, Lose, On, run_bolt, run_topology
    from downspout.testing.simulation import Message, Scenario, simulate
    from downspout.testing.virtual_clock import VirtualClock

__getattr__, _ = offered(
    __name__,
    {
        "virtual_clock": "VirtualClock",
        "fake_broker": "FakeFaults OPERATIONS",
        "fake_kafka": "FakeConsumer FakeKafka",
        "harness": "Crash Fail Lose On ROUND_S TopologyResult run_bolt run_on_records run_topology",
        "memory_batches": "MemoryBatches",
        "plugin": "UNHURRIED",
        "schema_registry": "SchemaRegistry",
        "simulation.fault_proxy": "Killed WatchedDisk",
        "simulation": "Message Scenario ProducedRecord simulate",
    },
)
"""Imported on first use: pytest loads our plugin in every run, which must stay fast."""
__all__ = [
    "Crash",
    "Fail",
    "FakeKafka",
    "Lose",
    "Message",
    "On",
    "Scenario",
    "VirtualClock",
    "run_bolt",
    "run_topology",
    "simulate",
]
"""The public names; the others are for Downspout's own tests."""
