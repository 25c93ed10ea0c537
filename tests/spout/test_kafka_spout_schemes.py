"""The schemes of the spout for Kafka 0.8, by name."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.errors import ConfigError
from downspout.spout import SCHEMES
from spouts.kafka import KafkaSpout
from tests.spout.spout_driver import TOPIC, Driver, Kafka


@pytest.mark.parametrize(
    ("scheme", "with_key", "without_key"),
    [
        ("raw", [b"v"], [b"w"]),
        ("string", ["v"], ["w"]),
        ("string_with_topic", ["v", "schemed"], ["w", "schemed"]),
        ("string_key_value", [{"k": "v"}], ["w"]),
        ("string_with_metadata", ["v", 0, 0], ["w", 0, 1]),
    ],
)
def test_each_scheme(bare_kafka: Kafka, scheme: str, with_key: list[Any], without_key: list[Any]) -> None:
    """A scheme makes the tuples of its Java counterpart, of records with a key and without."""
    bare_kafka.create_topic("schemed", 1)
    bare_kafka.produce("schemed", b"v", key=b"k")
    bare_kafka.produce("schemed", b"w")
    driver = Driver(bare_kafka, topics=["schemed"], fields=None, translator=[scheme])
    driver.run()
    assert [values for _, values in driver.emitted] == [with_key, without_key]


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_a_scheme_declares_the_fields_of_its_java_counterpart(scheme: str) -> None:
    """They are the spout's output fields, unless others are named."""
    own = KafkaSpout.spec(topics=["t"], translator=[scheme])
    assert tuple(own.outputs["default"].output_fields) == SCHEMES[scheme]
    names = [f"f{number}" for number in range(len(SCHEMES[scheme]))]
    named = KafkaSpout.spec(topics=["t"], translator=[f"t={scheme}({' '.join(names)})@s"])
    assert list(named.outputs["s"].output_fields) == names


def test_an_unknown_scheme_is_an_error_that_names_it(kafka: Kafka) -> None:
    """A word that is no scheme is taken for a path, and cannot be imported."""
    with pytest.raises(ConfigError, match="strnig"):
        Driver(kafka, topics=[TOPIC], translator=["strnig"])
