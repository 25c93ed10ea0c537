from __future__ import annotations

import io
from typing import Any

import pytest

from bolts.aggregate import AggregateBolt
from bolts.dead_letter import DeadLetterBolt
from bolts.kafka import KafkaBolt
from bolts.lookup import LookupBolt
from bolts.parquet import ParquetBolt
from bolts.parse import CsvParseBolt, JsonParseBolt, RegistryParseBolt
from bolts.split import SplitBolt
from bolts.sql import SqlBolt
from bolts.state import StateBolt
from downspout.errors import ConfigError
from spouts.batches import BatchCoordinator, KafkaBatchBolt
from spouts.kafka import KafkaSpout

COMPONENTS = [
    AggregateBolt, BatchCoordinator, CsvParseBolt, DeadLetterBolt, JsonParseBolt, KafkaBatchBolt, KafkaBolt, KafkaSpout,
    LookupBolt, ParquetBolt, RegistryParseBolt, SplitBolt, SqlBolt, StateBolt,
]  # fmt: skip


@pytest.mark.parametrize("cls", COMPONENTS, ids=lambda cls: cls.__name__)
def test_a_component_that_never_began_ends_without_an_error(cls: Any) -> None:
    """An engine ends each component, those too whose ``initialize`` has raised: their own error is the one to see."""
    component = cls(input_stream=io.BytesIO(), output_stream=io.BytesIO())
    for end in ("before_exit", "close"):
        if (method := getattr(component, end, None)) is not None:
            method()


def test_a_kafka_bolt_whose_settings_are_refused_can_be_closed() -> None:
    """The error is that of ``initialize``, and nothing is left open."""
    bolt = KafkaBolt(input_stream=io.BytesIO(), output_stream=io.BytesIO())
    with pytest.raises(ConfigError, match="no topic to write to is set"):
        bolt.initialize({}, {})
    bolt.close()
