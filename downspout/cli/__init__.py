"""The command line: ``downspout COMMAND …``.

Each command is a module with ``add_parser(subparsers)``, which sets ``handler``, a function from the parsed arguments
to an exit code. A DownspoutError is printed without a traceback.

To change arguments that commands share: arguments.py
To change how errors are printed: terminal.py
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import json
import os
import sys
from collections.abc import Sequence

COMMANDS = (
    "new", "run", "check", "audit", "head", "windows", "compact", "export", "compare", "dlq", "kafka", "lag", "offsets",
    "storm", "spark", "settings", "simulate", "completion", "version",
)  # fmt: skip


CLOSED_PIPE = 141  # 128 + SIGPIPE, as in shells. Not 0: the rest of the result is unknown.


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser with all commands, or with one of them, which imports only its module."""
    from downspout.cli.arguments import EXIT_CODES, Parser, exit_codes

    parser = Parser(
        prog="downspout",
        description="Storm-style spouts and bolts in pure Python: Kafka in, exactly-once Parquet out.",
        epilog="Start with `downspout kafka start`, then `downspout run topologies/word_count.py --until end`. "
        + exit_codes(*EXIT_CODES)
        + " `downspout audit` has some more.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parser.set_defaults(handler=lambda _: parser.print_help())
    for name in [command] if command in COMMANDS else COMMANDS:
        importlib.import_module(f"downspout.cli.{name}").add_parser(commands)
    return parser


class _Version(argparse.Action):
    """Looks up the version only on request, because that is slower than all the rest of `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"downspout {_version()}")
        parser.exit()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("downspout")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0 (not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 130 after Ctrl-C and 141 after a closed pipe, as shells do."""
    from downspout.cli.interrupts import after_imports

    try:
        with after_imports():
            return _main(argv)
    except KeyboardInterrupt:
        print("downspout: interrupted", file=sys.stderr)
        return 130


def _main(argv: Sequence[str] | None) -> int:
    from downspout.cli.terminal import complain, fill_gaps, finish, printable, take_any_text
    from downspout.errors import DownspoutError

    # Saves a twentieth of a second per command: Python's last garbage collection would scan all imported modules.
    atexit.register(gc.freeze)
    fill_gaps()
    take_any_text()
    # Topologies import `spouts.x` and `bolts.y` relative to the project root, or to src/ in it, as under `sparse run`.
    for place in (os.path.join(os.getcwd(), "src"), os.getcwd()):
        if place not in sys.path:
            sys.path.insert(0, place)
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words[0] if words else None)
    if "_ARGCOMPLETE" in os.environ:
        from downspout.cli.completion import answer

        answer(parser)
    arguments = parser.parse_args(argv)
    try:
        code = int(arguments.handler(arguments) or 0)
        finish(sys.stdout)
        return code
    except DownspoutError as error:
        if getattr(arguments, "json", None) is True:  # a run writes its own, because it may have replaced stdout
            print(json.dumps(error.as_dict(), indent=2))
        complain(printable(str(error), keep="\n\t"))  # it may contain names that others wrote to Kafka
        return error.exit_code
    except BrokenPipeError:  # `downspout … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
