"""Arguments that commands share: topology, bounds, settings, and others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from downspout.errors import ConfigError
from downspout.formatting import seconds_of
from downspout.settings.folders import local_path
from downspout.settings.object_path import place as folder_or_object

# --- the parser ---


class Parser(argparse.ArgumentParser):
    """Python's parser with better errors, used for all commands."""

    # Python passes a command's unknown arguments to the program's parser, whose error would show the wrong usage.
    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; any unknown argument is an error."""
        words = list(sys.argv[1:] if args is None else args)
        if unknown := self._unknown(words):  # reported before missing arguments
            self._refuse([unknown])
        found, rest = super().parse_known_args(words, namespace)
        if rest:
            self._refuse(rest)
        return found, rest

    def _unknown(self, words: Sequence[str]) -> str:
        """Return the first word that looks like an option but is neither one nor a prefix of one."""
        if any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions):
            return ""  # some of the words are another parser's
        for word in words:
            if word == "--":
                break
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and not any(each.startswith(name) for each in self._options()):
                return word
        return ""

    def _options(self) -> list[str]:
        return [each for each in self._option_string_actions if each.startswith("--")]

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        from downspout.formatting import nearest

        shown = [name for name in self._options() if self._option_string_actions[name].help != argparse.SUPPRESS]
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
        what = f"unknown option {option}" if option else f"unrecognized arguments: {' '.join(words)}"
        self.error(f"{what}. Try: {nearest(option, shown, f'{self.prog} --help')}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from downspout.formatting import nearest

            near = nearest(str(value), action.choices, "")
            meant = action.choices[near] if near else self
            meant.print_usage(sys.stderr)
            cure = meant.prog if near else f"one of {', '.join(action.choices)}"
            self.exit(2, f"{self.prog}: error: unknown command {value}. Try: {cure}\n")
        super()._check_value(action, value)


# --- arguments ---

EXIT_CODES = {
    0: "done",
    1: "an error without a code below",
    2: "an option, a setting or the topology is wrong",
    3: "a package or program is not installed",
    4: "no broker, or the last commit failed",
    5: "a record could not be processed, and there is no dead-letter topic",
    6: "records were deleted from Kafka before they were processed",
    7: "a sink cannot write, or its directory is damaged",
    8: "a component failed and the run cannot go on",
    9: "Storm or Spark cannot be started, reached or used, or has ended",
    14: "another process has taken over",
    15: "a group is still too far behind",
    130: "stopped by Ctrl-C",
    141: "the reader of the output closed the pipe",
    143: "stopped by SIGTERM",
}
"""Short meanings of the exit codes; docs/reference/exit-codes.md explains them."""
METRICS_PORT = 9464  # As in OpenTelemetry's Prometheus exporters
NIMBUS_PORT = 6627  # Storm's default
RUN_CODES = (4, 5, 6, 7, 8, 14, 143)  # Of a run, besides those of every command


def exit_codes(*codes: int, **own: str) -> str:
    """Return the sentence on exit codes at the end of a command's help.

    Args:
        codes: the command's codes, besides those of every command.
        own: meanings specific to the command, such as ``_10="missing"``.

    >>> exit_codes(_0="exact", _10="missing")[:36]
    'Exit codes: 0 exact; 1 an error with'
    """
    meant = {int(name[1:]): text for name, text in own.items()}
    shown = sorted({0, 1, 2, 3, 130, 141, *codes, *meant})
    return f"Exit codes: {'; '.join(f'{code} {meant.get(code) or EXIT_CODES[code]}' for code in shown)}."


def sentence(text: str) -> str:
    """Return a command's description, made from its line in the list of commands.

    >>> sentence("list the topics of Kafka")
    'List the topics of Kafka.'
    """
    return f"{text[0].upper()}{text[1:]}."


def add_actions(parser: argparse.ArgumentParser) -> Any:
    """Add a command's actions; without one, the command prints its help."""
    parser.set_defaults(handler=lambda _: parser.print_help())
    parser.epilog = f"`{parser.prog} ACTION --help` lists the exit codes."
    return parser.add_subparsers(dest="action", metavar="ACTION")


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Add the topology: ``FILE`` and ``--topology``."""
    parser.add_argument("target", metavar="FILE", help="topologies/x.py, topologies/x.py:Class, or module:Class")
    parser.add_argument("--topology", metavar="NAME", help="name of the class, if the file holds several")


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add the bounds of a run: ``--until`` and ``--for``."""
    parser.add_argument("--until", choices=["end"], help="stop when everything in the topics at the start is processed")
    parser.add_argument("--for", dest="for_s", metavar="TIME", help="stop after this long: 30s, 5m, 1h")


def add_settings(
    parser: argparse.ArgumentParser, about: str = "set a setting (`downspout settings` lists them); may be repeated"
) -> None:
    """Add ``--set``."""
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="[COMPONENT:]KEY=VALUE", help=about
    )


def add_summary(parser: argparse.ArgumentParser, quiet: str) -> None:
    """Add ``--quiet`` and ``--json``."""
    parser.add_argument("--quiet", action="store_true", help=f"{quiet}; warnings and errors only")
    parser.add_argument(
        "--json",
        dest="json_path",
        metavar="PATH",
        help="write the summary, or the error that ended the run, as JSON; with -, to stdout, and everything else to "
        "stderr",
    )


def add_metrics_port(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--metrics-port`` and ``--metrics-host``.

    Args:
        parser: of the command.
        what: the content served, for the help.
    """
    parser.add_argument(
        "--metrics-port",
        type=port_or_any,
        nargs="?",
        const=METRICS_PORT,
        metavar="PORT",
        help=f"serve {what}; PORT is {METRICS_PORT} by default, 0 means any free port",
    )
    parser.add_argument(
        "--metrics-host", metavar="HOST", help="address to listen on (default: 127.0.0.1; 0.0.0.0: all)"
    )


def seconds(text: str) -> float:
    """Return an option's duration in seconds."""
    if (found := seconds_of(text, "s")) is None or found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30s, 5m or 1h")
    return found


def add_ui(parser: argparse.ArgumentParser) -> None:
    """Add ``--ui``: the page of a run."""
    parser.add_argument(
        "--ui",
        nargs="?",
        const="",
        metavar="[HOST:]PORT",
        help="show the run on a web page, reachable only from this machine (127.0.0.1:8650) unless HOST is given",
    )


def add_nimbus(parser: Any) -> None:
    """Add ``--nimbus``: a Storm other than the local node."""
    parser.add_argument(
        "--nimbus",
        type=_nimbus,
        metavar="HOST[:PORT]",
        help=f"nimbus of another Storm, instead of the local node's (PORT: {NIMBUS_PORT})",
    )


def _nimbus(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(NIMBUS_PORT)
    if not host.strip("[]"):
        raise argparse.ArgumentTypeError(f"{text!r} has no host")
    return host.strip("[]"), _number(port, 1, 65535)


def add_requirements(parser: argparse.ArgumentParser) -> None:
    """Add ``--with``: additional requirements of a bundle."""
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        metavar="REQUIREMENT",
        help="also pack this; may be repeated",
    )


def place(text: str) -> Path:
    """Return an option's path, which must be on this machine."""
    try:
        return Path(local_path(text, repr(text)))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sink_place(text: str) -> Path:
    """Return an option's sink directory, on this machine or an object store."""
    try:
        return folder_or_object(text, "DIR")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
    return int(text)


def port(text: str) -> int:
    """Return a port number."""
    return _number(text, 1, 65535)


def port_or_any(text: str) -> int:
    """Return a port number to listen on; 0 is any free one."""
    return _number(text, 0, 65535)


def positive(text: str) -> int:
    """Return a positive number."""
    return _number(text, 1, 2**31 - 1)


def natural(text: str) -> int:
    """Return an offset or partition number."""
    return _number(text, 0, 2**63 - 1)
