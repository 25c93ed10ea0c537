"""Specs that see their whole topology: they determine the streams that carry chunks and add the streams between spouts
and sinks (:mod:`downspout.wire.side_streams`).

streamparse creates a topology's specs one by one, and Storm tells a component its readers' names but not their kinds.
Python calls ``__set_name__`` of each attribute when a class is created; by then the topology is complete. So this works
with stock streamparse, on the submitting machine, if a topology contains at least one of our specs.

``kafka.emit=auto`` is also resolved here (decision 0008). Chunks are faster, and equivalent for the user if every
downstream component takes chunks. A bolt that needs records would get them from a chunk that is acked as a whole: a
slow bolt would have a single message timeout for thousands of records. In that case the spout emits records.
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
from downspout.wire.multilang_component import MultilangComponent
from downspout.wire.side_streams import CHUNKS, FLUSH, TRANSACTIONS, config_of, connect, connect_transactions, readable


@dataclass(frozen=True)
class Part:
    """The properties of a component that decide between records and chunks."""

    name: str
    cls: type
    conf: Mapping[str, Any]
    sources: Collection[str]  # the components that it reads


def records_by_readers(parts: Mapping[str, Part], spout: str) -> str:
    """Return why a spout must emit records: the downstream component that needs them; empty if none does."""
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
    """Return False for a parser without types: it declares no columns and takes records."""
    columns_of = getattr(cls, "columns_of", None)
    try:
        return columns_of is None or columns_of(conf) is not None
    except DownspoutError:
        return False  # `check` says so elsewhere


# Configuration keys
RUN = "sink.run"  # of a sink: a description of its run
SINKS = "spout.sinks"  # of a spout: the directories that its topology's sinks write
WHY_RECORDS = "spout.emit"  # of a spout: why it must emit records, by spout; empty if it need not
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
    """Add the internal streams, and write the settings derived from the topology into each component's
    configuration."""
    specs = [spec for spec in getattr(topology, "specs", ()) if _is_on_wire(spec)]
    connect(specs)
    connect_transactions(getattr(topology, "specs", ()))
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
    """Return the components of a topology, to resolve ``kafka.emit=auto``."""
    return {
        spec.name: Part(
            spec.name,
            cls if isinstance(cls := spec.component_cls, type) else type(None),  # Java, or a shell program
            {**(getattr(topology, "config", None) or {}), **config_of(spec)},
            {source.componentId for source in spec.inputs or {} if source.streamId not in (FLUSH, TRANSACTIONS)},
        )
        for spec in getattr(topology, "specs", ())
    }


def run_of(topology: Any) -> dict[str, Any]:
    """Describe the run from the topology's class, for the notes of the sinks (``downspout/sink/notes.py``)."""
    file = getattr(sys.modules.get(topology.__module__), "__file__", None)
    # The name is given later. Only settings of a spout that cannot contain secrets are copied.
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
