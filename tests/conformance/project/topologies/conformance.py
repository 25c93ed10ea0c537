"""All stations as one topology: one submit tries all of them."""

import os

import stations as s
from streamparse import Grouping, Topology


class Conformance(Topology):
    config = {  # noqa: RUF012   (streamparse wants a plain dict)
        "conformance.dir": os.environ["CONFORMANCE_DIR"],
        "topology.message.timeout.secs": 20,  # a machine that is busy elsewhere for a while is no timeout
        "topology.spout.wait.progressive.level3.sleep.millis": 50,  # not 1: most of these spouts have nothing to say
        "topology.max.spout.pending": 200,
        "topology.acker.executors": 1,
        "topology.workers": 1,
    }

    # who gets a tuple
    rows = s.Rows.spec()
    shuffled = s.Keep.spec(inputs={rows: Grouping.SHUFFLE}, par=2)
    keyed = s.Keep.spec(inputs={rows: Grouping.fields("key")}, par=2)
    everywhere = s.Keep.spec(inputs={rows: Grouping.ALL}, par=2)
    lowest = s.Keep.spec(inputs={rows: Grouping.GLOBAL}, par=2)
    whoever = s.Keep.spec(inputs={rows: Grouping.NONE})
    nearby = s.Keep.spec(inputs={rows: Grouping.LOCAL_OR_SHUFFLE})

    # streams
    few = s.Few.spec(par=2)
    sorter = s.Sorter.spec(inputs=[few])
    plain = s.Keep.spec(inputs=[sorter])
    even = s.Keep.spec(inputs=[sorter["even"]])
    both = s.Keep.spec(inputs={sorter: Grouping.SHUFFLE, sorter["even"]: Grouping.SHUFFLE})

    # trees
    paired = s.Few.spec()
    pair = s.Pair.spec(inputs={paired: Grouping.GLOBAL})
    judge = s.FailOnce.spec(inputs={pair: Grouping.GLOBAL})
    loosened = s.Few.spec()
    loose = s.Loose.spec(inputs=[loosened])
    refuse = s.Refuse.spec(inputs=[loose])
    unanchored = s.Unreliable.spec()
    unheard = s.Refuse.spec(inputs=[unanchored])
    forgotten = s.Few.spec()
    forget = s.ForgetOnce.spec(inputs={forgotten: Grouping.GLOBAL})
    raised = s.Few.spec()
    raising = s.RaiseOnce.spec(inputs={raised: Grouping.GLOBAL})
    refused = s.Failing.spec()
    refusing = s.Refuse.spec(inputs=[refused])
    reliable = s.Reliable.spec()
    reliably = s.FailOnce.spec(inputs={reliable: Grouping.GLOBAL})

    # ids, flow
    ids = s.Ids.spec()
    ids_kept = s.Keep.spec(inputs=[ids])
    throttled = s.Throttled.spec(config={"topology.max.spout.pending": 5})
    patient = s.Patient.spec(inputs=[throttled])
    chain = s.Chain.spec()
    chained = s.Keep.spec(inputs=[chain], config={"topology.tick.tuple.freq.secs": 1})

    # batches
    batched = s.Few.spec()
    batch = s.Batch.spec(inputs={batched: Grouping.fields("key")}, config={"topology.tick.tuple.freq.secs": 1})
    batches = s.Keep.spec(inputs=[batch])
    ticklessly = s.Few.spec()
    tickless = s.Tickless.spec(inputs=[ticklessly])
