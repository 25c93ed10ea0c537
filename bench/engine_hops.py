"""CPU time of the local engine alone: spout → bolt → bolt with tuple trees, per tuple and per hop.

A hop is one delivery: emit, route, queue, process, ack. ``--profile`` says where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import time
from typing import ClassVar

from streamparse import Bolt, Grouping, Spout, Topology

from downspout.engine.garbage import GC_THRESHOLDS
from downspout.engine.graph import from_class
from downspout.engine.loop import Bounds, Engine


class NumberSpout(Spout):
    outputs: ClassVar = ["number", "word"]

    def initialize(self, conf, context):
        self.number = 0

    def next_tuple(self):
        for _ in range(200):
            self.number += 1
            self.emit([self.number, "dog"], tup_id=self.number)


class PassBolt(Bolt):
    outputs: ClassVar = ["number", "word"]

    def process(self, tup):
        self.emit([tup.values.number, tup.values.word])


class EndBolt(Bolt):
    def process(self, tup):
        pass


class Hops(Topology):
    spout = NumberSpout.spec()
    first = PassBolt.spec(inputs=[spout])
    last = EndBolt.spec(inputs={first: Grouping.SHUFFLE})


class FieldsHops(Topology):
    spout = NumberSpout.spec()
    first = PassBolt.spec(inputs=[spout], par=2)
    last = EndBolt.spec(inputs={first: Grouping.fields("word")}, par=4)


HOPS = 2


def measure(topology: type, records: int) -> float:
    """Return CPU seconds for that many trees."""
    graph = from_class(topology, topology.__name__)
    engine = Engine(
        graph, {name: {} for name in graph.components}, bounds=Bounds(records=records), rng=random.Random(1)
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    start = time.process_time()
    result = engine.run()
    seconds = time.process_time() - start
    assert result.completed >= records
    return seconds / result.completed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(measure, Hops, options.records)
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)
        return
    for topology in (Hops, FieldsHops):
        best = min(measure(topology, options.records) for _ in range(options.runs))
        tree_us = best * 1e6
        print(
            f"{topology.__name__}: {tree_us:.2f} µs CPU per tree, {tree_us / HOPS:.2f} µs per hop "
            f"(best of {options.runs})"
        )


if __name__ == "__main__":
    main()
