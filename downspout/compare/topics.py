"""What a KafkaBolt wrote, as a table: each engine's bolt writes to a temporary topic."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from downspout.errors import ConfigError
from downspout.kafka.client import KafkaCluster, connection_properties
from downspout.kafka.port import TopicPartition
from downspout.kafka.scan import scan
from downspout.producing.mapper import fields_of
from downspout.settings.secrets import resolve_client
from downspout.settings.table import parse_scope


@dataclass(frozen=True)
class WrittenTopic:
    """A KafkaBolt of a topology, and the table of its records: how often each is there counts, where does not."""

    name: str  # of the bolt
    bootstrap: str
    client: Mapping[str, Any] = field(repr=False)  # secrets are references
    partitions: int  # of the topic that the user's settings name

    schema: ClassVar[pa.Schema] = pa.schema({"key": pa.string(), "message": pa.string(), "headers": pa.string()})
    keys: ClassVar[tuple[str, ...]] = ()
    float_sums: ClassVar[list[str]] = []

    @classmethod
    def of(cls, name: str, conf: Mapping[str, Any], bootstrap: str, client: Mapping[str, Any]) -> WrittenTopic:
        """Return that of a bolt with these settings, which connects as the first spout does."""
        settings = parse_scope(conf, "produce")
        if settings["mapper"] is not None or "topic" in fields_of(settings):
            way = "mapper" if settings["mapper"] is not None else "fields"
            raise ConfigError(
                f"{name}: produce.{way} may name any topic, and a comparison must not write to yours",
                cure="a bolt with produce.topic alone",
            )
        made = cls(name, settings["bootstrap"] or bootstrap, client, 1)
        return cls(name, made.bootstrap, client, made.cluster().topics().get(settings["topic"], 1))

    def cluster(self) -> KafkaCluster:
        """Return the cluster that the bolt writes to."""
        return KafkaCluster(self.bootstrap, connection_properties(resolve_client(self.client)))

    def read(self, topic: str) -> pa.Table:
        """Return the records of a topic."""
        rows = []
        with closing(self.cluster().consumer(group=None)) as consumer:
            places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for(topic))]
            ends = consumer.end_offsets(places)
            for tp, start in consumer.beginning_offsets(places).items():
                consumer.assign([tp])
                for records in scan(consumer, tp, start, ends[tp]):
                    rows += [(_text(r.key), _text(r.value), _headers(r.headers)) for r in records]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.Table.from_pydict(dict(zip(self.schema.names, map(list, columns), strict=True)), schema=self.schema)


def _text(data: bytes | None) -> str | None:
    r"""Return bytes as text that is the same only where they are.

    >>> _text(b"\xc3\xa4\xff \\xff")
    'ä\\xff \\\\xff'
    """
    return None if data is None else data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def _headers(pairs: Any) -> str | None:
    return "; ".join(f"{name}={_text(value)}" for name, value in pairs) if pairs else None
