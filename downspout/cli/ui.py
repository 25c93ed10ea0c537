"""``downspout ui``: the web page of a topology that runs elsewhere; and how any command shows a page."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from downspout.cli.arguments import add_actions, add_nimbus, exit_codes, place, port_or_any
from downspout.errors import ConfigError, MissingExtraError
from downspout.formatting import counted
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
    parser = commands.add_parser("ui", help="show a topology that is running, here or on Storm, on a web page")
    actions = add_actions(parser)
    run = actions.add_parser(
        "run",
        help="show a run that is under way, also with workers or on Spark, and was started without --ui",
        description="Show a `downspout run` or `downspout spark run` of yours on this machine on a web page until "
        "Ctrl-C, or until it ends. The run serves the page itself, as with --ui, and only as long.",
        epilog=exit_codes(),
    )
    run.add_argument(
        "topology", nargs="?", help="name of the topology, or the run's process id (default: the only one)"
    )
    run.add_argument("--port", type=port_or_any, metavar="PORT", help="of the page (default: 8650; 0: a free one)")
    run.set_defaults(handler=_run)
    storm = actions.add_parser(
        "storm",
        help="show a topology of Storm's: nimbus's counts, and the lag from Kafka",
        description="Show a topology that runs on Storm on a web page, on this machine alone: the figures of "
        "`downspout storm stats`, until Ctrl-C.",
        epilog=exit_codes(4, 9),
    )
    storm.add_argument("topology", help="name of the topology")
    where = storm.add_mutually_exclusive_group()
    where.add_argument("--dir", type=place, help="directory of the node (default: .downspout/storm)")
    add_nimbus(where)
    storm.add_argument("--port", type=port_or_any, metavar="PORT", help="of the page (default: 8650; 0: a free one)")
    storm.set_defaults(handler=_storm)


def _run(arguments: argparse.Namespace) -> int:
    from downspout.web.addresses import HOST, PORT
    from downspout.web.on_request import runs_under_way

    with ExitStack() as opened:
        runs = [opened.enter_context(closing(run)) for run in runs_under_way()]
        wanted = arguments.topology
        found = [run for run in runs if wanted in (None, run.topology, str(run.pid))]
        if len(found) != 1:
            what = "no run" if not found else counted(len(found), "run")
            known = ", ".join(f"{run.topology} (process {run.pid})" for run in runs)
            are = "are" if len(found) > 1 else "is"
            raise ConfigError(
                f"{what} {f'of {wanted} ' if wanted else ''}{are} under way on this machine"
                + (f"; there are {known}" if runs else ""),
                cure=f"`downspout ui run {runs[0].pid}`" if runs else "`downspout run FILE --ui`",
            )
        (run,) = found
        url = run.open_page(f"{HOST}:{PORT if arguments.port is None else arguments.port}")
        print(f"downspout: {run.topology} is shown at {url}", file=sys.stderr, flush=True)
        with handled_by(lambda *_: run.leave()):
            run.wait()
    return 0


def _storm(arguments: argparse.Namespace) -> int:
    from downspout.cli.storm import nimbus_of
    from downspout.storm import stats, submitted

    def serve() -> AbstractContextManager[Page]:
        from downspout.web.server import serving
        from downspout.web.storm import StormPage

        address, counters = nimbus_of(arguments)

        def collect(with_lag: bool) -> TopologyStats:
            return counters.whole([stats.collect(*address, arguments.topology, with_lag=with_lag)])[0]

        graph = submitted.collect(*address, arguments.topology)
        return serving(StormPage(graph, collect, "" if arguments.port is None else str(arguments.port)))

    ended = threading.Event()
    with shown(serve, arguments.topology, "the page"), handled_by(lambda *_: ended.set()):
        ended.wait()
    return 0
