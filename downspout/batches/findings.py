"""Findings about topologies with batches, without access to broker or stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from downspout.batches.setup import check, check_ackers, message_timeout_s
from downspout.batches.stores import check_batch_store, check_state_store
from downspout.batches.updates import StateInput, check_pair, faults, update_of
from downspout.engine.graph import Component, Graph
from downspout.engine.settings import Settings, reads
from downspout.errors import ConfigError
from downspout.findings import Finding
from downspout.settings.table import parse_scope

RECORDS_PER_S = 5_000
"""Throughput of a simple topology on Storm, on a busy machine."""


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find problems that keep batches from starting, from being committed, or from being exactly once."""
    confs = {name: resolved.values for name, resolved in settings.components.items()}
    coordinators = [spout for spout in graph.spouts if reads(spout, "batch")]
    for spout in coordinators:
        yield from _coordinator(spout, confs[spout.name])
    yield from _ids(graph, coordinators, confs)
    for bolt in graph.bolts:
        if reads(bolt, "state"):
            yield from _state(bolt, _with_batches(graph, bolt, confs))
            yield from _inputs(graph, bolt, confs[bolt.name])
            yield from _behind_a_state(graph, bolt)


def _coordinator(spout: Component, conf: Mapping[str, Any]) -> Iterator[Finding]:
    name = spout.name
    try:
        check_ackers(conf, name)
        check(parse_scope(conf, "kafka"))
        check_batch_store(str(conf["batch.store"]))
    except ConfigError as error:
        yield Finding(True, name, error.message, error.cure or "`downspout settings batch`")
    if spout.par > 1:
        yield Finding(True, name, f"{spout.par} tasks, but only one coordinates", "par=1")
    yield from _on_one_machine(name, "batch.store", conf)
    needed = float(conf["batch.records_max"] or 0) * float(conf["batch.max_active"] or 1) / RECORDS_PER_S
    if needed > (timeout := message_timeout_s(conf)):
        yield Finding(
            False,
            name,
            f"batches of {conf['batch.records_max']} records may take longer than the message timeout, {timeout:g} s: "
            "they would fail and be retried for ever",
            "a smaller batch.records_max, or a longer topology.message.timeout.secs",
        )


def _state(bolt: Component, conf: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        check_pair(conf)
        check_state_store(str(conf.get("state.store")))
    except ConfigError as error:
        yield Finding(True, bolt.name, error.message, error.cure or "`downspout settings state`")
    yield from _on_one_machine(bolt.name, "state.store", conf)


def _behind_a_state(graph: Graph, bolt: Component) -> Iterator[Finding]:
    """Find states that get tuples from another state, after their batch is committed."""
    seen, left = {bolt.name}, [given.source for given in bolt.inputs]
    while left:
        source = graph.components.get(left.pop())
        if source is None or source.name in seen:
            continue
        seen.add(source.name)
        if reads(source, "state"):
            what = f"its tuples come from {source.name}, which emits when it commits: they would belong to no batch"
            yield Finding(True, bolt.name, what, f"the inputs of {source.name}, or another topology for it")
        else:
            left += [given.source for given in source.inputs]


def _inputs(graph: Graph, bolt: Component, conf: Mapping[str, Any]) -> Iterator[Finding]:
    """Find streams and fields that a state's inputs lack, and keys that would be split over several tasks."""
    try:
        update = update_of(str(conf["state.update"]))
    except ConfigError as error:
        yield Finding(True, bolt.name, error.message, error.cure or "`downspout settings state`")
        return
    inputs = []
    for given in bolt.inputs:
        source = graph.components.get(given.source)
        if source is not None and (stream := source.streams.get(given.stream)) is not None:
            by = given.fields if given.grouping == "fields" else ()
            inputs.append(StateInput(given.source, given.stream, stream.fields, given.grouping, by))
    for what, cure in faults(inputs, conf["state.key"], update, bolt.par):
        yield Finding(True, bolt.name, what, cure)


def _on_one_machine(name: str, key: str, conf: Mapping[str, Any]) -> Iterator[Finding]:
    workers = int(conf.get("topology.workers") or 1)
    if workers > 1 and str(conf.get(key) or "").startswith("sqlite:"):
        yield Finding(
            True,
            name,
            f"{key} is a file on one machine, but topology.workers = {workers} may run on several",
            "a store on PostgreSQL, or topology.workers=1",
        )


def _ids(graph: Graph, coordinators: list[Component], confs: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    known: dict[tuple[Any, Any], str] = {}
    for spout in coordinators:
        conf = confs[spout.name]
        key = conf["batch.store"], conf["batch.id"] or graph.name
        if (other := known.setdefault(key, spout.name)) != spout.name:
            yield Finding(
                True,
                spout.name,
                f"batch.id = {key[1]} is also that of {other}, in the same store",
                "a batch.id for each",
            )


def _with_batches(graph: Graph, bolt: Component, confs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a state's settings, with the kind of its coordinator's batches."""
    for given in bolt.inputs:
        source = graph.components.get(given.source)
        if source is not None and source.is_spout and reads(source, "batch"):
            return {**confs[bolt.name], "batch.kind": confs[source.name]["batch.kind"]}
    return confs[bolt.name]
