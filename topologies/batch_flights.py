"""Flights in batches: for each carrier how many there were, and how late they arrived, with a reducer of one's own.

    coordinator ─▶ flights ──▶ parse ──▶ carriers

``arrivals`` is a plain function: it is given what is stored for a carrier, and one flight, and returns what is to be
stored. It may return anything that is JSON.
"""

from __future__ import annotations

from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches
from topologies.batch_bolts import ParseBolt, arrivals


class BatchFlights(Topology):
    """Kafka in, one row for each carrier in a database."""

    coordinator, flights = KafkaBatches.spec(topics=["flights"], fields=["value"], value_format="json")
    parse = ParseBolt.spec(inputs=[flights])
    carriers = StateBolt.spec(
        coordinator=coordinator,
        inputs={parse: Grouping.fields("carrier")},
        store="sqlite:///carriers.db",
        key="carrier",
        update=arrivals,
    )
