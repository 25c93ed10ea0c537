"""What StateBolts keep, as tables: each engine's bolts keep it in a file of the comparison's."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from downspout.batches.backends.sql_state import read_state
from downspout.batches.core.metadata import committed, partition_id
from downspout.batches.stores import BatchStoreContext, open_batch_store
from downspout.kafka.port import TopicPartition
from downspout.settings.table import parse_scope


@dataclass(frozen=True)
class KeptState:
    """A StateBolt of a topology, and the table of its values by key."""

    name: str  # of the bolt
    state: str  # of the state

    schema: ClassVar[pa.Schema] = pa.schema({"key": pa.string(), "value": pa.string()})
    keys: ClassVar[tuple[str, ...]] = ("key",)
    float_sums: ClassVar[list[str]] = []

    @classmethod
    def of(cls, name: str, conf: Mapping[str, Any]) -> KeptState:
        """Return that of a bolt with these settings."""
        return cls(name, parse_scope(conf, "state")["name"] or name)

    def read(self, file: Path) -> pa.Table:
        """Return the values of all keys, as JSON.

        Raises:
            BatchStoreError: there is no such state, or it cannot be read.
        """
        found = read_state(url_of(file), self.state)
        texts = {
            json.dumps(key, ensure_ascii=False): json.dumps(value, ensure_ascii=False) for key, value in found.items()
        }
        columns: list[Any] = [pa.array(texts.keys(), pa.string()), pa.array(texts.values(), pa.string())]
        return pa.Table.from_arrays(columns, schema=self.schema)


def url_of(file: Path) -> str:
    """Return the URL of a file that holds the states and batches of an engine's run."""
    return f"sqlite:///{file}"


def committed_in(file: Path, batch_id: str, partitions: Collection[TopicPartition]) -> Mapping[tuple[str, int], int]:
    """Return by partition where the first batch begins that is not committed; none where there is none yet."""
    if not file.exists():
        return {}
    with closing(open_batch_store(url_of(file), BatchStoreContext(batch_id))) as store:
        state = store.load_coordinator()
        ranges = store.load_ranges([partition_id(*tp) for tp in partitions])
    return committed(state, ranges, partitions)
