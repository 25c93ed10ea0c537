"""A bolt of stock streamparse for `make storm-chaos`: it knows nothing about Downspout."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

from streamparse import Bolt


class Number(Bolt):
    """Passes numbers on; dies, like a crash of native code, on certain values."""

    outputs: ClassVar = ["origin", "number"]

    def process(self, tup):
        """Read the number."""
        if tup.values.value.startswith("kill "):
            os.kill(os.getpid(), signal.SIGKILL)
        self.emit([tup.values.origin, int(tup.values.value)])
