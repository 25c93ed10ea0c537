"""Direct emits, by a component that is on Downspout's wire; the rest is stock streamparse."""

import os

import routers
import stations as s
from streamparse import Grouping, Topology


class Direct(Topology):
    config = {  # noqa: RUF012   (streamparse wants a plain dict)
        "conformance.dir": os.environ["CONFORMANCE_DIR"],
        "topology.message.timeout.secs": 10,
    }

    directed = s.Few.spec(par=2)
    router = routers.Router.spec(inputs=[directed])
    addressed = s.Keep.spec(inputs={router["named"]: Grouping.DIRECT}, par=2)
    unaddressed = s.Keep.spec(inputs=[router])
