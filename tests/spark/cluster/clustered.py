"""A project with components in all packed places: the topology's folder, src/ and this checkout."""

from __future__ import annotations

from pathlib import Path

from tests.spark.standalone import ROOT

SHOUT = """\
import os
import time

import downspout
from downspout.component import Bolt
from downspout.ledger.origin import Origin


class ShoutBolt(Bolt):
    outputs = ["origin", "word", "library"]

    def process(self, tup):
        origin = Origin.of(tup.values[0])
        for index, word in enumerate(tup.values[1].split()):
            while word.startswith("/") and not os.path.exists(word):
                time.sleep(0.05)
            self.emit([origin.child(self.component_name, index), word.upper(), downspout.__file__])
"""
COUNT = """\
from downspout.component import Bolt


class CountBolt(Bolt):
    outputs = ["origin", "word", "seen"]

    def initialize(self, conf, ctx):
        self.seen = {}

    def process(self, tup):
        origin, word, _ = tup.values
        self.seen[word] = self.seen.get(word, 0) + 1
        self.emit([origin, word, self.seen[word]])
"""
TOPOLOGY = """\
from streamparse import Grouping, Topology

from bolts.parquet import ParquetBolt
from counting import CountBolt
from shouting import ShoutBolt
from spouts.kafka import KafkaSpout


class Clustered(Topology):
    lines = KafkaSpout.spec(topics=["set"], fields=["origin", "value"])
    shout = ShoutBolt.spec(inputs=[lines])
    count = CountBolt.spec(inputs={shout: Grouping.fields("word")}, par=3)
    words = ParquetBolt.spec(
        inputs=[shout], directory="output/words", schema={"word": "string!", "library": "string!"}
    )
    counts = ParquetBolt.spec(inputs=[count], directory="output/counts", schema={"word": "string!", "seen": "int64!"})
"""
"""A word that is a path waits until that file is there."""


def make_project(project: Path) -> None:
    """Write the project: components of this checkout, a bolt in src/, one beside the topology."""
    files = {"topologies/clustered.py": TOPOLOGY, "src/shouting.py": SHOUT, "topologies/counting.py": COUNT}
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    for name in ("spouts", "bolts"):
        (project / name).symlink_to(ROOT / name)
