"""The configuration of each component of a run, with what only the engine knows."""

from __future__ import annotations

from typing import Any

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.graph import Graph
from downspout.engine.topology_ids import topology_id
from downspout.engine.values import Settings, reads
from downspout.kafka.clusters import Access, access_of
from downspout.settings.table import CLIENT_PREFIX, parse_scope
from downspout.spout.settings import dead_letter_topic


def dead_letter_topics(graph: Graph, settings: Settings) -> dict[str, str]:
    """Return the dead-letter topic of each Kafka spout, and of each bolt that writes dead letters, by its name."""
    found = {}
    for name, component in graph.components.items():
        if reads(component, "kafka"):
            values = parse_scope(settings.components[name].values, "kafka")
            found[name] = dead_letter_topic(values, values["group"] or graph.name)
    return found


def configurations(graph: Graph, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> dict[str, dict[str, Any]]:
    """Return each component's configuration with what only the engine knows: name, id, and where the broker is."""
    confs = settings.confs()
    storm_id = topology_id(graph.name, redeploy=bool(settings.run.values["run.redeploy"]), clock=clock)
    found: dict[str, Access] = {}
    for name, conf in confs.items():
        conf["topology.name"] = graph.name
        conf["storm.id"] = storm_id
        if reads(graph.components[name], "kafka"):
            given = conf["kafka.bootstrap"]
            if given not in found:  # a broker is asked once, however many components name it
                found[given] = access_of(given)
            conf["kafka.bootstrap"], own = found[given]
            for property_name, value in own.items():
                conf.setdefault(CLIENT_PREFIX + property_name, value)
    return confs
