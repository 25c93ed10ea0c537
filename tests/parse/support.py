"""Chunks without a Kafka: a spout that emits them and splits failed ones, and the output of a bolt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import streamparse

from downspout.engine import Component, Graph, Input, OutputStream, component_of
from downspout.origins import each, origins
from downspout.testing import TopologyResult, run_topology

FIELDS = ("origin", "key", "value")
TOPIC = "orders"


def chunk(values: Sequence[bytes | str | None], first: int = 0, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return the chunk of records with these values, at consecutive offsets of one partition."""
    keys = [f"k{number}" for number in range(len(values))]
    places = origins(TOPIC, "id", 2, range(first, first + len(values)))
    return pa.RecordBatch.from_arrays(
        [places, pa.array(keys, pa.string()), pa.array(values, kind or pa.binary())], names=list(FIELDS)
    )


class Chunks(streamparse.Spout):
    """Emits chunks; one that fails comes again in two halves, and a single record not at all."""

    outputs: ClassVar[list[str]] = list(FIELDS)
    given: ClassVar[list[pa.RecordBatch]] = []

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        self._waiting = list(enumerate(self.given))
        self._out: dict[str, pa.RecordBatch] = {}
        self._number = len(self.given)
        self.given_up: list[int] = []
        self.acked: list[int] = []

    def next_tuple(self) -> None:
        if self._waiting:
            number, batch = self._waiting.pop(0)
            self._out[str(number)] = batch
            self.emit(batch, tup_id=str(number))

    def ack(self, tup_id: str) -> None:
        self.acked += [origin.offset for origin in each(self._out.pop(tup_id).column("origin"))]

    def fail(self, tup_id: str) -> None:
        batch = self._out.pop(tup_id)
        if batch.num_rows == 1:
            self.given_up += [origin.offset for origin in each(batch.column("origin"))]
            return
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            self._number += 1
            self._waiting.append((self._number, part))

    def exhausted(self) -> bool:
        return not self._waiting

    def end_reached(self) -> bool:
        return not self._waiting and not self._out


class Reader(streamparse.Bolt):
    def process(self, tup: Any) -> None:
        raise AssertionError("a chunk is meant to stay whole")

    def process_chunk(self, tup: Any) -> None:
        pass


def run_chunks(
    bolt: Any,
    chunks: Sequence[pa.RecordBatch],
    *,
    readers: Sequence[Any] = (),
    config: Mapping[str, Any] | None = None,
    rejects: bool = False,
) -> TopologyResult:
    """Run chunks through a bolt's spec.

    Args:
        bolt: it is called ``bolt``.
        chunks: what it is given.
        readers: specs of other bolts that read its rejects; they are called ``reader0`` …
        config: settings.
        rejects: whether a bolt that does nothing reads its rejects.
    """
    source = type("Source", (Chunks,), {"given": list(chunks)})
    components = {
        "source": Component("source", source, streams={"default": OutputStream("default", FIELDS)}),
        "bolt": _as(bolt, "bolt", Input("source", "default")),
    }
    for number, reader in enumerate([*readers, *([Reader.spec()] if rejects else [])]):
        components[f"reader{number}"] = _as(reader, f"reader{number}", Input("bolt", "rejects"))
    return run_topology(Graph("chunks", components), config=config)


def _as(spec: Any, name: str, given: Input) -> Component:
    made = component_of(spec)
    return Component(name, made.cls, 1, made.config, made.streams, (given,))


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        places = [origin.offset for origin in each(batch.column("origin"))]
        rest = batch.drop_columns(["origin"]).to_pylist()
        rows += [{"offset": place, **row} for place, row in zip(places, rest, strict=True)]
    return rows
