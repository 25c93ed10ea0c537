"""What several commands take: which topology, until when, and with which settings."""

from __future__ import annotations

import argparse

__all__ = ["add_bounds", "add_settings", "add_summary", "add_topology"]


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Add the topology: ``FILE`` and ``--topology``."""
    parser.add_argument("target", metavar="FILE", help="topologies/x.py, or module:Class")
    parser.add_argument("--topology", metavar="NAME", help="which class, where the file holds several")


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add when a run stops by itself: ``--until`` and ``--for``."""
    parser.add_argument("--until", choices=["end"], help="stop once the log as of the start is processed")
    parser.add_argument("--for", dest="for_s", metavar="TIME", help="stop after this long: 30s, 5m, 1h")


def add_settings(parser: argparse.ArgumentParser, about: str = "a setting; see `downspout settings`") -> None:
    """Add ``--set``."""
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="[COMPONENT:]KEY=VALUE", help=about
    )


def add_summary(parser: argparse.ArgumentParser, quiet: str) -> None:
    """Add ``--quiet`` and ``--json``.

    Args:
        parser: of the command.
        quiet: what is left out.
    """
    parser.add_argument("--quiet", action="store_true", help=f"{quiet}; warnings and errors only")
    parser.add_argument(
        "--json",
        dest="json_path",
        metavar="PATH",
        help="write the summary of a run that ended in order as JSON; - is stdout, and all else goes to stderr",
    )
