"""``downspout lag``: how far consumer groups are behind, by partition, topic and in all.

It asks Kafka alone, so it works for groups of any client, and while a topology runs or is stopped. For groups of
Downspout's spouts it also shows what their commits say: what is done beyond the commit, what failed, what blocks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, open_cluster, way_in
from downspout.cli.arguments import exit_codes, natural, seconds
from downspout.cli.records import printable
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, ConfigError
from downspout.formatting import counted

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster
    from downspout.offsets.lag import GroupLag, Question

EVERY_S = 2.0
BEHIND = 15  # The exit code: after --timeout a group is further behind than --until
Show = Callable[[str], None]


def add_parser(commands: Any) -> None:
    """Add the command."""
    text = "show how far consumer groups are behind, by partition and topic"
    parser = commands.add_parser(
        "lag", help=text, description=f"{text[0].upper()}{text[1:]}.",
        epilog=exit_codes(4, _0="shown, or within --until", _1="shown, but something about a group or topic is unknown",
                          _15="still further behind than --until after --timeout"),
    )  # fmt: skip
    parser.add_argument(
        "groups", nargs="+", metavar="GROUP", help="kafka.group of a spout, which is the topology's name unless set"
    )
    parser.add_argument(
        "--topic", action="append", default=[], help="only this topic, also without a commit; may be repeated"
    )
    add_access(parser)
    parser.add_argument(
        "--no-age", action="store_true", help="leave out how old the next record is: no record is looked at"
    )
    parser.add_argument(
        "--watch", action="store_true",
        help="go on until Ctrl-C or --timeout: a table that renews itself; without a terminal, one per interval",
    )  # fmt: skip
    parser.add_argument("--every", type=seconds, default=EVERY_S, metavar="TIME", help="the interval (default: 2s)")
    parser.add_argument(
        "--until", type=natural, metavar="LAG",
        help="wait until the groups are at most this far behind, all together; a partition without a commit counts "
        "with everything in its log",
    )  # fmt: skip
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="give up after this long: 30s, 5m, 1h")
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch, a line of it per interval")
    parser.set_defaults(handler=_run)


def _run(arguments: argparse.Namespace) -> int:
    from downspout.offsets.lag import Question

    if arguments.timeout and not arguments.watch and arguments.until is None:
        raise ConfigError("--timeout goes with --until or --watch", cure="--until 0 --timeout 60s")
    client = way_in(arguments)[1]
    question = Question(
        arguments.topic,
        committed_only=client.get("isolation_level", "read_committed") == "read_committed",
        with_age=not arguments.no_age,
    )
    with _screen(arguments) as show:
        return look(arguments, open_cluster(arguments), question, show, SYSTEM_CLOCK)


@contextmanager
def _screen(arguments: argparse.Namespace) -> Iterator[Show]:
    """Give what shows one look: on a terminal that is watched it takes the place of the one before."""
    if not (arguments.watch and sys.stdout.isatty() and not arguments.json):
        yield lambda text: print(text, flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="visible") as live:
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def look(arguments: argparse.Namespace, cluster: Cluster, question: Question, show: Show, clock: Clock) -> int:
    """Look once, or again and again; return the exit code."""
    begun = clock.monotonic()
    once = not arguments.watch and arguments.until is None
    while True:
        found = [_ask(cluster, group, question, patient=not once) for group in arguments.groups]
        behind = sum(row.unread for each in found for row in each.partitions)
        told = not any(each.total.problems for each in found)
        within = arguments.until is not None and told and behind <= arguments.until
        left = None if arguments.timeout is None else begun + arguments.timeout - clock.monotonic()
        over = left is not None and left <= 0
        if arguments.watch or once or within or over:
            show(_text(arguments, found, clock))
        if over and not within and arguments.until is not None:
            after = f"after {arguments.timeout:g} s"
            unknown = f"{after} it is still unknown how far behind: see the problems shown"
            what = f"{counted(behind, 'offset')} behind {after}, and not {arguments.until}" if told else unknown
            print(f"downspout: {what}", file=sys.stderr)
            return BEHIND
        if over or once or within:
            return int(not told)
        clock.sleep(arguments.every if left is None else min(arguments.every, left))


def _ask(cluster: Cluster, group: str, question: Question, *, patient: bool) -> GroupLag:
    """Look at one group. Raises BrokerError: no broker answers; who is ``patient`` sees that, and looks again."""
    from downspout.offsets.lag import GroupLag, collect

    try:
        return collect(cluster, group, question)
    except BrokerError as error:
        if not patient:
            raise
        return GroupLag(group, problem=error.message)


def _text(arguments: argparse.Namespace, found: list[GroupLag], clock: Clock) -> str:
    """Return one look in the form that is asked for."""
    from downspout.offsets.lag_report import as_json, lines

    at = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds")
    indent = None if arguments.watch else 2
    if arguments.json:
        return json.dumps(as_json(found, at), indent=indent)
    # Members name themselves, and any client may write any metadata.
    text = "\n".join(printable(line) for each in found for line in lines(each))
    return f"{at}\n{text}" if arguments.watch else text
