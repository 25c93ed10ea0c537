"""Storm's serialisation settings for tuples between workers."""

from __future__ import annotations

import json

from downspout.wire import KRYO, KRYO_CLASSES
from spouts.kafka import KafkaSpout


def test_a_topology_with_our_spout_registers_the_classes_of_the_pipe() -> None:
    """The list is in the spout's own configuration, which nimbus adds to that of the topology."""
    assert KRYO["topology.kryo.register"] == list(KRYO_CLASSES)
    assert json.loads(KafkaSpout.spec(topics=["a"]).config).items() >= KRYO.items()


def test_whoever_sets_the_list_has_the_last_word() -> None:
    """A list in ``config`` takes the place of ours."""
    own = {"topology.kryo.register": ["com.example.Other"]}
    assert json.loads(KafkaSpout.spec(topics=["a"], config=own).config).items() >= own.items()
