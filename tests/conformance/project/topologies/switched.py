"""A spout that emits as long as it is active: somebody outside deactivates and activates it."""

import os

import stations as s
from streamparse import Topology


class Switched(Topology):
    config = {"conformance.dir": os.environ["CONFORMANCE_DIR"]}  # noqa: RUF012   (streamparse wants a plain dict)

    steady = s.Steady.spec()
    heard = s.Keep.spec(inputs=[steady])
