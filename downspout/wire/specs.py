"""Specs that see their whole topology: they name the streams that carry chunks, and connect spouts with the sinks that
they speak to (:mod:`downspout.wire.side_streams`).

streamparse makes a topology's specs one by one, and Storm gives a component the names of its readers, but not their
kinds. Python calls ``__set_name__`` of each attribute when a class is made, and by then the whole topology is there. So
this works with stock streamparse, on the machine that submits. One spec of ours in a topology is enough.

``kafka.emit=auto`` is resolved here, too (decision 0008). Chunks are faster, and mean the same to the user if
everything that their records reach takes chunks. One bolt that needs records would get them from a chunk that is acked
as a whole: a slow one would have one message timeout for thousands of records. Then the spout emits records.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from streamparse.dsl.bolt import ShellBoltSpec
from streamparse.dsl.spout import ShellSpoutSpec

from downspout.errors import DownspoutError
from downspout.protocols import emits_chunks, scopes_of, takes_chunks
from downspout.wire.multilang import MultilangComponent
from downspout.wire.side_streams import CHUNKS, FLUSH, TRANSACTIONS, config_of, connect, connect_transactions, readable


@dataclass(frozen=True)
class Part:
    """A component of a topology, as far as the choice depends on it."""

    name: str
    cls: type
    conf: Mapping[str, Any]
    sources: Collection[str]  # the components that it reads


def records_by_readers(parts: Mapping[str, Part], spout: str) -> str:
    """Return which component needs records of what a spout emits, at whatever distance; empty: none does."""
    seen, rest = {spout}, [spout]
    while rest:
        name = rest.pop()
        for reader in parts.values():
            if reader.name not in seen and name in reader.sources:
                if why := _why_records(reader):
                    return why
                seen.add(reader.name)
                rest.append(reader.name)
    return ""


def _why_records(reader: Part) -> str:
    """Return why one bolt needs records."""
    if not takes_chunks(reader.cls):
        return f"{reader.name} ({reader.cls.__name__}) takes records"
    if not has_types(reader.cls, reader.conf):
        return f"{reader.name} has no types, so it takes records"
    return ""


def has_types(cls: Any, conf: Mapping[str, Any]) -> bool:
    """Return whether a bolt that declares columns has some: a parser without types takes records."""
    columns_of = getattr(cls, "columns_of", None)
    try:
        return columns_of is None or columns_of(conf) is not None
    except DownspoutError:
        return False  # `check` says so elsewhere


RUN = "sink.run"  # The key of a sink's configuration that says what its run is
SINKS = "spout.sinks"  # The key of a spout's configuration that says where the sinks of its topology write
WHY_RECORDS = (
    "spout.emit"  # The key of a spout's configuration that says, by spout, why it is to emit records; empty: nothing is
)
OF_SPOUT = ("kafka.bootstrap", "kafka.topics", "kafka.pattern", "kafka.group", "kafka.dead_letter_topic")
"""The settings of a Kafka spout that a reader of its topology's output needs."""


class SpoutSpec(ShellSpoutSpec):
    """A spout in a topology."""

    def __set_name__(self, owner: Any, name: str) -> None:
        annotate(owner)


class BoltSpec(ShellBoltSpec):
    """A bolt in a topology."""

    def __set_name__(self, owner: Any, name: str) -> None:
        annotate(owner)


def annotate(topology: Any) -> None:
    """Write into the configuration of each component on our wire, as Storm gets it, which streams carry chunks."""
    specs = [spec for spec in getattr(topology, "specs", ()) if _is_on_wire(spec)]
    # Where bolts hold tuples back, connect the spouts with them.
    connect(specs)
    connect_transactions(getattr(topology, "specs", ()))  # transactional sinks, likewise
    found = readable(getattr(topology, "specs", ()), (spec.name for spec in specs))
    run, parts = run_of(topology), _parts(topology)
    writing = [spec for spec in specs if "parquet" in scopes_of(spec.component_cls)]
    sinks = [config_of(spec).get("parquet.directory") for spec in writing]
    for spec in specs:
        added: dict[str, Any] = {CHUNKS: found, **({RUN: run} if spec in writing else {})}
        if "kafka" in scopes_of(spec.component_cls):
            added[WHY_RECORDS] = (
                {spec.name: records_by_readers(parts, spec.name)} if emits_chunks(spec.component_cls) else {}
            )
            added |= {SINKS: sinks} if sinks else {}
        spec.common.json_conf = json.dumps({**json.loads(spec.common.json_conf or "{}"), **added})


def _parts(topology: Any) -> dict[str, Part]:
    """Return the components of a topology for the choice of what spouts emit (``kafka.emit=auto``)."""
    return {
        spec.name: Part(
            spec.name,
            cls if isinstance(cls := spec.component_cls, type) else type(None),  # Java, or a shell's program
            {**(getattr(topology, "config", None) or {}), **config_of(spec)},
            {source.componentId for source in spec.inputs or {} if source.streamId not in (FLUSH, TRANSACTIONS)},
        )
        for spec in getattr(topology, "specs", ())
    }


def run_of(topology: Any) -> dict[str, Any]:
    """Return what a topology's file says of its run, for the sinks to note (``downspout/sink/notes.py``)."""
    file = getattr(sys.modules.get(topology.__module__), "__file__", None)
    # The name is given later. Secrets stay where they are: of a spout's settings only those that no secret can be in.
    spouts = {
        spec.name: {key: value for key, value in config_of(spec).items() if key in OF_SPOUT}
        for spec in getattr(topology, "specs", ())
        if isinstance(spec, SpoutSpec) and "kafka" in scopes_of(spec.component_cls)
    }
    return {
        "topology": "", "file": os.path.relpath(file) if file else "", "class": topology.__name__,
        "spouts": spouts, "settings": {},
    }  # fmt: skip


def _is_on_wire(spec: Any) -> bool:
    return isinstance(spec.component_cls, type) and issubclass(spec.component_cls, MultilangComponent)
