"""A spout that emits while it is active: the test deactivates and activates it."""

import os

import stations as s
from streamparse import Topology


class Switched(Topology):
    config = {"conformance.dir": os.environ["CONFORMANCE_DIR"]}  # noqa: RUF012   (streamparse wants a plain dict)

    steady = s.Steady.spec()
    heard = s.Keep.spec(inputs=[steady])
