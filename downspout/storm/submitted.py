"""The graph of a topology that runs on Storm, from nimbus: also of one whose classes are not on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pystorm.bolt
import pystorm.spout

from downspout.component import FLUSH
from downspout.engine.graph import Component, Graph, Input, Stream, input_of
from downspout.errors import TopologyError
from downspout.storm import nimbus


def collect(host: str, port: int, name: str) -> Graph:
    """Return the graph of a topology that runs. Raises StormError: there is none of that name."""
    with nimbus.connect(host, port) as client:
        found = nimbus.topology_named(client, name)
        return graph_of(name, client.getUserTopology(found.id), json.loads(client.getTopologyConf(found.id)))


def graph_of(name: str, topology: Any, conf: Mapping[str, Any]) -> Graph:
    """Return the graph of a Thrift topology: spouts first, each bolt behind what it reads."""
    made = [
        *(_component(each, spec.spout_object, spec.common, pystorm.spout.Spout)
          for each, spec in sorted(topology.spouts.items())),
        *(_component(each, spec.bolt_object, spec.common, pystorm.bolt.Bolt)
          for each, spec in sorted(topology.bolts.items())),
    ]  # fmt: skip
    graph = Graph(name, {each.name: each for each in made}, conf)
    return replace(graph, components={each.name: each for each in (*graph.spouts, *graph.bolts)})


def _component(name: str, found: Any, common: Any, base: type) -> Component:
    streams = {
        key: Stream(key, tuple(info.output_fields), bool(info.direct))
        for key, info in (common.streams or {}).items()
        if key != FLUSH
    }
    inputs = tuple(_input(name, *given) for given in (common.inputs or {}).items() if given[0].streamId != FLUSH)
    config = json.loads(common.json_conf or "{}")
    return Component(name, _class(found, base), common.parallelism_hint or 1, config, streams, inputs)


def _class(found: Any, base: type) -> type:
    """Return a class that has the name of a component's, and nothing else of it."""
    # `sparse submit` puts options before a class's name.
    given = found.shell.script if found.shell else getattr(found.java_object, "full_class_name", "java.lang.Object")
    module, _, name = str(given).rpartition(" ")[2].rpartition(".")
    return type(name, (base,), {"__module__": module})


def _input(name: str, source: Any, grouping: Any) -> Input:
    try:
        return input_of(name, source, grouping)
    except TopologyError:  # Java code decides
        return Input(source.componentId, source.streamId, "custom")
