"""What goes from worker to worker: direct emits, by a component on Downspout's wire, and values of all kinds.

The other topologies have one worker: with several, Storm's shuffle prefers tasks that are near.
"""

import os

import routers
import stations as s
from streamparse import Grouping, Topology

from downspout.wire import KRYO


class Direct(Topology):
    config = {  # noqa: RUF012   (streamparse wants a plain dict)
        "conformance.dir": os.environ["CONFORMANCE_DIR"],
        "topology.message.timeout.secs": 60,  # nothing is to time out here
        "topology.spout.wait.progressive.level3.sleep.millis": 50,  # not 1: most of these spouts have nothing to say
        "topology.workers": 2,
        **KRYO,  # the Storm of the tests registers no classes
    }

    directed = s.Few.spec(par=2)
    router = routers.Router.spec(inputs=[directed])
    addressed = s.Keep.spec(inputs={router["named"]: Grouping.DIRECT}, par=2)
    unaddressed = s.Keep.spec(inputs=[router])

    values = s.Values.spec()
    values_kept = s.Keep.spec(inputs={values: Grouping.ALL}, par=2)  # Storm puts them into different workers
