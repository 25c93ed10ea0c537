"""The ``downspout`` program, also as ``python -m downspout``.

Nothing heavy is imported before Ctrl-C is taken care of: until a command has begun, it ends the process without a
traceback. Once a command runs, :mod:`downspout.cli` decides. Nor before ``os._exit`` is taken care of.
"""

import _signal as signal  # type: ignore[import-not-found]  # without enums: their making takes time
import gc
import os
import sys

_exit = os._exit


def _leave(number: int, frame: object) -> None:
    """Nothing has begun, or all is done."""
    os.write(2, b"downspout: interrupted\n")
    _exit(128 + number)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)


def program() -> int:
    """Run the command of this process; return its exit code."""
    from downspout.exit_guard import guard

    # Nearly all that imports make stays, and with Python's thresholds each dozen of them is looked through in vain.
    gc.set_threshold(200_000, 20, 50)
    guard()
    from downspout.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(program())
