"""Flights in batches: counts and arrival delays by carrier, with a custom reducer.

    coordinator ─▶ flights ──▶ parse ──▶ carriers

``arrivals`` is a plain function: from a carrier's stored value and one flight, it returns the new value, which may be
any JSON value.
"""

from __future__ import annotations

from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches
from topologies.batch_bolts import ParseBolt, arrivals


class BatchFlights(Topology):
    """Kafka in, one row per carrier in a database."""

    coordinator, flights = KafkaBatches.spec(topics=["flights"], fields=["value"], value_format="json")
    parse = ParseBolt.spec(inputs=[flights])
    carriers = StateBolt.spec(
        coordinator=coordinator,
        inputs={parse: Grouping.fields("carrier")},
        store="sqlite:///carriers.db",
        key="carrier",
        update=arrivals,
    )
