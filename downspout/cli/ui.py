"""``downspout ui``: the web page of a topology that runs elsewhere."""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import add_actions, exit_codes, place, port_or_any
from downspout.errors import MissingExtraError
from downspout.system.signals import handled_by

if TYPE_CHECKING:
    from downspout.storm.stats import TopologyStats


def add_parser(commands: Any) -> None:
    """Add the command with what it can show."""
    parser = commands.add_parser("ui", help="show a topology that runs on Storm on a web page")
    storm = add_actions(parser).add_parser(
        "storm",
        help="show a topology of Storm's: nimbus's counts, and the lag from Kafka",
        description="Show a topology that runs on Storm on a web page, on this machine alone: the figures of "
        "`downspout storm stats`, until Ctrl-C.",
        epilog=exit_codes(4, 9),
    )
    storm.add_argument("topology", help="name of the topology")
    storm.add_argument("--dir", type=place, help="directory of the node (default: .downspout/storm)")
    storm.add_argument("--port", type=port_or_any, metavar="PORT", help="of the page (default: 8650; 0: a free one)")
    storm.set_defaults(handler=_storm)


def _storm(arguments: argparse.Namespace) -> int:
    from downspout.storm import stats, submitted
    from downspout.storm.node import StormNode, default_directory

    try:
        from downspout.web.server import serving
        from downspout.web.storm import StormPage
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the page needs the package {error.name}", cure="pip install 'downspout[ui]'"
        ) from None
    node = StormNode(arguments.dir or default_directory())
    address = node.address
    counters = stats.Counters(node.directory / "counters.json")

    def collect(with_lag: bool) -> TopologyStats:
        return counters.whole([stats.collect(*address, arguments.topology, with_lag=with_lag)])[0]

    graph = submitted.collect(*address, arguments.topology)
    port = "" if arguments.port is None else str(arguments.port)
    ended = threading.Event()
    with serving(StormPage(graph, collect, port)) as page, handled_by(lambda *_: ended.set()):
        print(f"downspout: {arguments.topology} is shown at {page.url}", file=sys.stderr, flush=True)
        ended.wait()
    return 0
