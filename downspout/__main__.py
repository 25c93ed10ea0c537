"""The ``downspout`` program, also as ``python -m downspout``.

The handlers for Ctrl-C and ``os._exit`` are installed before any heavy import. Until a command starts, Ctrl-C ends the
process without a traceback; afterwards, :mod:`downspout.cli` handles it.
"""

import _signal as signal  # type: ignore[import-not-found]  # without enums, which take time to create
import gc
import os
import sys

_exit = os._exit


def _leave(number: int, frame: object) -> None:
    """End the process before a command has started, or after it has ended."""
    os.write(2, b"downspout: interrupted\n")
    _exit(128 + number)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)


def program() -> int:
    """Run the command of this process; return its exit code."""
    from downspout.exit_guard import guard

    # Nearly all objects from imports stay, so collections with Python's default thresholds would find nothing.
    gc.set_threshold(200_000, 20, 50)
    guard()
    from downspout.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(program())
