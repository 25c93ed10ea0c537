"""Chunks: to bolts that take them, to bolts for records, and to stock components that know nothing about them."""

import os

import chunks as c
import stations as s
from streamparse import Grouping, Topology


class Chunked(Topology):
    config = {  # noqa: RUF012   (streamparse wants a plain dict)
        "conformance.dir": os.environ["CONFORMANCE_DIR"],
        "topology.message.timeout.secs": 60,  # nothing is to time out here
        "topology.spout.wait.progressive.level3.sleep.millis": 50,  # not 1: most of these spouts have nothing to say
        "topology.workers": 1,
    }

    # to all who take them, and on
    pieces = c.Chunks.spec()
    relay = c.Relay.spec(inputs={pieces: Grouping.ALL}, par=2)
    taken = c.Relay.spec(inputs=[relay])
    apart = c.Keep.spec(inputs={relay: Grouping.GLOBAL})

    # where Storm must look into them, and where nobody knows of them
    mixed = c.Chunks.spec()
    by_key = c.Keep.spec(inputs={mixed: Grouping.fields("key")}, par=2)
    divided = c.Chunks.spec()
    divider = c.Relay.spec(inputs=[divided])
    unaware = s.Keep.spec(inputs=[divider])

    # what fails, and what is batched
    spoilt = c.Chunks.spec()
    spoil = c.FailOnce.spec(inputs={spoilt: Grouping.GLOBAL})
    heaped = c.Chunks.spec()
    heap = c.Batch.spec(inputs=[heaped], config={"topology.tick.tuple.freq.secs": 1})
    heaps = s.Keep.spec(inputs=[heap])
    unhurried = c.Chunks.spec()
    unhurriedly = c.Tickless.spec(inputs=[unhurried])
