"""Whole topologies in a simulated world: Kafka, disk, time and faults, all from one seed.

    scenario = Scenario(Orders, records=make_order, rows=rows_of)

    def test_orders_are_written_once():
        simulate(scenario, seeds=range(50))

See docs/how-to/test-a-topology.md.
"""

from __future__ import annotations

from downspout.testing.simulation.faults import KINDS
from downspout.testing.simulation.run import Outcome, Scenario, SimulationError, simulate
from downspout.testing.simulation.sources import Message, ProducedRecord

__all__ = ["KINDS", "Message", "Outcome", "ProducedRecord", "Scenario", "SimulationError", "simulate"]
