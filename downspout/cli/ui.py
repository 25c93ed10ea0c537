"""``downspout ui``: the web page of a topology that runs elsewhere; and how any command shows a page."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from downspout.cli.arguments import add_actions, exit_codes, place, port_or_any
from downspout.errors import MissingExtraError
from downspout.system.signals import handled_by

if TYPE_CHECKING:
    from downspout.storm.stats import TopologyStats
    from downspout.web.server import Page

PageType = TypeVar("PageType", bound="Page")


@contextmanager
def shown(
    serve: Callable[[], AbstractContextManager[PageType]], what: str, asked_by: str = "--ui"
) -> Iterator[PageType]:
    """Serve a page while the context lasts, and say where it is.

    Args:
        serve: imports what the page needs, and returns the context in which it is served.
        what: what the page shows.
        asked_by: what asks for the page.

    Raises:
        MissingExtraError: a package is not installed.
    """
    try:
        served = serve()
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{asked_by} needs the package {error.name}", cure="pip install 'downspout[ui]'"
        ) from None
    with served as page:
        print(f"downspout: {what} is shown at {page.url}", file=sys.stderr, flush=True)
        yield page


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

    def serve() -> AbstractContextManager[Page]:
        from downspout.web.server import serving
        from downspout.web.storm import StormPage

        node = StormNode(arguments.dir or default_directory())
        address = node.address
        counters = stats.Counters(node.directory / "counters.json")

        def collect(with_lag: bool) -> TopologyStats:
            return counters.whole([stats.collect(*address, arguments.topology, with_lag=with_lag)])[0]

        graph = submitted.collect(*address, arguments.topology)
        return serving(StormPage(graph, collect, "" if arguments.port is None else str(arguments.port)))

    ended = threading.Event()
    with shown(serve, arguments.topology, "the page"), handled_by(lambda *_: ended.set()):
        ended.wait()
    return 0
