"""What Avro and Protobuf cost: CPU-seconds per million flights from bytes to typed columns, beside JSON and loops.

    python -m bench.formats [--records 200000] [--runs 5] [--chunk 4000] [--quick]

All ways see the same flights: 12 fields, some of them null. Our ways are what a
chunk gets in ``JsonParseBolt`` and ``RegistryParseBolt``: exact types, and what is odd rejected by itself. The loops
are what one writes without us: each value read by the library, and the dicts made a table by Arrow; ``no columns``
keeps nothing. The ways take turns; the median of the runs counts.
"""

from __future__ import annotations

import io
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from bench.flights import FIELDS, SCHEMA, flights
from bench.harness import BenchError, Options, begin, load, machine, save, say
from bench.peers.flights_parquet import schema
from downspout.parse.json import JsonParser
from downspout.parse.paths import Paths
from downspout.parse.protobuf import compiled
from downspout.parse.registry import Documents, Registry, RegistryParser
from downspout.parse.schemas import Schema
from downspout.sink.columns.schema import Columns
from downspout.testing.schema_registry import SchemaRegistry

COLUMNS = Columns.parse([f"{name}:{kind}" for name, kind in SCHEMA.items()])
KINDS = {"string": ("string", "string"), "int32": ("int", "int32")}
"""What a column's type is called in Avro and in Protobuf."""
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": ["null", KINDS[kind][0]]} for name, kind in SCHEMA.items()],
}
PROTOBUF = "\n".join([
    'syntax = "proto3";', "message Flight {",
    *(f"  optional {KINDS[kind][1]} {name} = {place};" for place, (name, kind) in enumerate(SCHEMA.items(), 1)), "}",
])  # fmt: skip

Chunks = list[list[bytes]]


class Inputs:
    """The same flights in each form, and what reads them."""

    def __init__(self, records: int, chunk: int, registry: SchemaRegistry) -> None:
        self._registry = Registry(registry.url, None)
        texts = [value for _, value in flights(records)]
        rows = [{name: row.get(name) for name in SCHEMA} for row in map(orjson.loads, texts)]
        avro, proto = registry.register("a", json.dumps(AVRO)), registry.register("p", PROTOBUF, "PROTOBUF")
        self.avro_schema = fastavro.parse_schema(AVRO)
        self.json = _cut(texts, chunk)
        self.avro = _cut([_framed(avro, self._avro(row)) for row in rows], chunk)
        self.message = _message_class()
        self.protobuf = _cut([_framed(proto, b"\0" + self._message(row)) for row in rows], chunk)
        self.arrow = schema(SCHEMA)

    def _avro(self, row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self.avro_schema, row)
        return out.getvalue()

    def _message(self, row: dict[str, Any]) -> bytes:
        return bytes(
            self.message(**{name: value for name, value in row.items() if value is not None}).SerializeToString()
        )

    def json_in_columns(self) -> int:
        parser = JsonParser(Paths(FIELDS), COLUMNS)
        return sum(len(parser.parse(pa.array(chunk, pa.binary())).rows) for chunk in self.json)

    def _in_columns(self, chunks: Chunks) -> int:
        parser = RegistryParser(Documents(self._registry), Paths(tuple(SCHEMA)), COLUMNS)
        return sum(len(parser.parse(pa.array(chunk, pa.binary())).rows) for chunk in chunks)

    def avro_in_columns(self) -> int:
        return self._in_columns(self.avro)

    def protobuf_in_columns(self) -> int:
        return self._in_columns(self.protobuf)

    def fastavro_to_arrow(self) -> int:
        rows = 0
        for chunk in self.avro:
            read = [fastavro.schemaless_reader(io.BytesIO(value[5:]), self.avro_schema, None) for value in chunk]
            rows += pa.Table.from_pylist(read, self.arrow).num_rows
        return rows

    def fastavro_alone(self) -> int:
        return sum(
            bool(fastavro.schemaless_reader(io.BytesIO(value[5:]), self.avro_schema, None))
            for chunk in self.avro
            for value in chunk
        )

    def protobuf_alone(self) -> int:
        return sum(self.message.FromString(value[6:]) is not None for chunk in self.protobuf for value in chunk)


def _message_class() -> Any:
    """Return the class that Google's library makes of the schema."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled(Schema("PROTOBUF", PROTOBUF))).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Flight"))


def _cut(values: list[bytes], size: int) -> Chunks:
    return [values[at : at + size] for at in range(0, len(values), size)]


def _framed(number: int, content: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + content


WAYS: dict[str, Callable[[Inputs], int]] = {
    "JSON, in columns": Inputs.json_in_columns,
    "Avro, in columns": Inputs.avro_in_columns,
    "Protobuf, in columns": Inputs.protobuf_in_columns,
    "fastavro's loop, then Arrow's from_pylist": Inputs.fastavro_to_arrow,
    "fastavro's loop alone, no columns": Inputs.fastavro_alone,
    "Protobuf's loop alone, no dicts": Inputs.protobuf_alone,
}


def main() -> None:
    options = Options(__doc__, runs=5)
    options.size("--records", 200_000, 10_000, type=int)
    options.add_argument("--chunk", type=int, default=4_000, help="records in a chunk")
    given = options.read()
    before = load()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with SchemaRegistry() as registry:
        inputs = Inputs(given.records, given.chunk, registry)
        for run in range(given.runs):
            for name, way in WAYS.items():
                began = time.process_time()
                rows = way(inputs)
                seconds[name].append((time.process_time() - began) / given.records * 1e6)
                if rows != given.records:
                    raise BenchError(f"{name}: {rows} rows instead of {given.records}")
            say(f"run {run + 1}")
        forms = {"JSON": inputs.json, "Avro": inputs.avro, "Protobuf": inputs.protobuf}
        sizes = {form: sum(len(value) for chunk in chunks for value in chunk) for form, chunks in forms.items()}
    loop = statistics.median(seconds["fastavro's loop, then Arrow's from_pylist"])
    about = ", ".join(f"{form} {size / given.records:.0f}" for form, size in sizes.items())
    lines = [
        f"{given.records:,} flights in chunks of {given.chunk:,}, bytes each: {about}; {given.runs} interleaved runs; "
        f"CPU-seconds per million, median (min – max); fastavro {fastavro.__version__}, pyarrow {pa.__version__}. "
        f"{machine(before)}",
        "",
        "| what | CPU-s per million | of fastavro's loop with Arrow |",
        "| --- | --- | --- |",
    ]
    for name, cell in seconds.items():
        middle = statistics.median(cell)
        lines.append(f"| {name} | {middle:.2f} ({min(cell):.2f} – {max(cell):.2f}) | {middle / loop:.2f}x |")
    save(given.results, "formats", "\n".join(lines), seconds)


if __name__ == "__main__":
    begin(main)
