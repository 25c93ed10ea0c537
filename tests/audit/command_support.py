"""Shared code for tests of the audit's command: a project with the output of a topology."""

from __future__ import annotations

import argparse

from downspout.cli import audit as command
from downspout.testing import FakeKafka

TOPOLOGY = """
from streamparse import Topology
from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from bolts.split import SplitBolt
from spouts.kafka import KafkaSpout

class Words(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    split = SplitBolt.spec(inputs=[spout])
    words = ParquetBolt.spec(inputs=[split], directory="words", schema=["word:string"])
    counts = AggregateBolt.spec(
        inputs=[split], directory="counts", schema=["word:string"], keys=["word"], aggregates=["count"]
    )
"""
LINES = [b"to be", b"", b"or not", None, b"to be", b"\xff\xfe not utf-8"]


def run(kafka: FakeKafka, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["audit", *arguments, "--bootstrap", kafka.bootstrap])
    return int(parsed.handler(parsed))


WITH_TOPOLOGY = ("--topology", "words_topology.py")
LETTERS = ("--dead-letters", "g.dead-letters")
