"""``downspout lag``: show the lag of consumer groups, by partition, by topic and in total.

It reads only from Kafka, so it works for groups of any client, whether the topology is running or stopped. For groups
of Downspout's spouts it also shows what their commits record: offsets done beyond the commit, failed and blocking ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, batch_store, open_cluster, way_in
from downspout.cli.arguments import exit_codes, natural, seconds
from downspout.cli.terminal import printable
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
    text = "show how far consumer groups and batches are behind, by partition and topic"
    parser = commands.add_parser(
        "lag", help=text, description=f"{text[0].upper()}{text[1:]}.",
        epilog=exit_codes(4, _0="shown, or within --until", _1="shown, but something about a group or topic is unknown",
                          _15="still further behind than --until when --timeout expired"),
    )  # fmt: skip
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help="kafka.group of a spout, which is the topology's name unless set"
    )
    parser.add_argument(
        "--batches", action="append", default=[], metavar="ID",
        help="batch.id of a KafkaBatches, which is the topology's name unless set; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--store", metavar="URL",
        help="where batches are kept (default: batch.store of downspout.toml or the environment, or sqlite:///batches.db)",
    )  # fmt: skip
    parser.add_argument("--store-password", metavar="REF", help="its password, as env:NAME or file:PATH")
    parser.add_argument(
        "--topic", action="append", default=[], help="only this topic, even without a commit; may be repeated"
    )
    add_access(parser)
    parser.add_argument("--no-age", action="store_true", help="omit the age of the next record, and read no records")
    parser.add_argument(
        "--watch", action="store_true",
        help="keep running until Ctrl-C or --timeout: a table that refreshes itself; without a terminal, a new table "
        "per interval",
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

    if not arguments.groups and not arguments.batches:
        raise ConfigError("lag needs a group, or --batches", cure="downspout lag GROUP, or --batches ID")
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
    """Yield the function that shows a table; with ``--watch`` on a terminal, it replaces the previous one."""
    if not (arguments.watch and sys.stdout.isatty() and not arguments.json):
        yield lambda text: print(text, flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="visible") as live:
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def look(arguments: argparse.Namespace, cluster: Cluster, question: Question, show: Show, clock: Clock) -> int:
    """Show the lag once or repeatedly; return the exit code."""
    from downspout.offsets.lag import collect

    begun = clock.monotonic()
    once = not arguments.watch and arguments.until is None
    while True:
        asks = [partial(collect, cluster, group, question) for group in arguments.groups]
        asks += [partial(_batches, arguments, cluster, name, question) for name in arguments.batches]
        names = [*arguments.groups, *arguments.batches]
        found = [_ask(ask, name, patient=not once) for ask, name in zip(asks, names, strict=True)]
        behind = sum(row.unread for each in found for row in each.partitions)
        told = not any(each.total.problems for each in found)
        within = arguments.until is not None and told and behind <= arguments.until
        left = None if arguments.timeout is None else begun + arguments.timeout - clock.monotonic()
        over = left is not None and left <= 0
        if arguments.watch or once or within or over:
            show(_text(arguments, found, clock))
        if over and not within and arguments.until is not None:
            after = f"after {arguments.timeout:g} s"
            unknown = f"{after} the lag is still unknown: see the problems shown"
            what = f"{counted(behind, 'offset')} behind {after}, and not {arguments.until}" if told else unknown
            print(f"downspout: {what}", file=sys.stderr)
            return BEHIND
        if over or once or within:
            return int(not told)
        clock.sleep(arguments.every if left is None else min(arguments.every, left))


def _batches(arguments: argparse.Namespace, cluster: Cluster, name: str, question: Question) -> GroupLag:
    """Return the lag of the batches of one id."""
    from downspout.batches.stores import BatchStoreContext, committed_ranges, open_batch_store
    from downspout.kafka.port import OffsetAndMetadata
    from downspout.offsets.lag import collect_batches

    location, password = batch_store(arguments)
    with closing(open_batch_store(location, BatchStoreContext(name, password=password))) as store:
        current, ranges = committed_ranges(store)
    commits = {tp: OffsetAndMetadata(each.next, "", -1) for tp, each in ranges.items()}
    read_ids = {tp.topic: each.topic_id for tp, each in ranges.items()}
    return collect_batches(cluster, name, current, commits, read_ids, question)


def _ask(ask: Callable[[], GroupLag], group: str, *, patient: bool) -> GroupLag:
    """Return the lag of one group. Raises BrokerError: no broker answers; if ``patient``, returned as its problem."""
    from downspout.offsets.lag import GroupLag

    try:
        return ask()
    except BrokerError as error:
        if not patient:
            raise
        return GroupLag(group, problem=error.message)


def _text(arguments: argparse.Namespace, found: list[GroupLag], clock: Clock) -> str:
    """Return the lags in the requested format."""
    from downspout.offsets.lag import as_json, lines

    at = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds")
    indent = None if arguments.watch else 2
    if arguments.json:
        return json.dumps(as_json(found, at), indent=indent)
    # Members choose their names, and any client may write any metadata.
    text = "\n".join(printable(line) for each in found for line in lines(each))
    return f"{at}\n{text}" if arguments.watch else text
