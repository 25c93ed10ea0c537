"""``downspout check``: what is wrong with a topology, without running it."""

from __future__ import annotations

import argparse
from typing import Any

from downspout.cli.arguments import add_settings, add_topology
from downspout.wording import counted


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("check", help="find a bad topology without running it; list the values that hold")
    add_topology(parser)
    add_settings(parser)
    parser.add_argument("--given", action="store_true", help="leave the defaults out")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the values and findings; exit with 2 if there is an error among them."""
    from downspout.cli.check_chunks import chunk_findings
    from downspout.local import check
    from downspout.local.load import load

    graph = load(arguments.target, arguments.topology)
    settings = check.resolve(graph, arguments.overrides)
    print(check.values_table(graph, settings, everything=not arguments.given))
    findings = [*check.findings(graph, settings), *chunk_findings(graph, settings)]
    for finding in findings:
        print(finding)
    errors = sum(finding.is_error for finding in findings)
    print(f"{graph.name}: {counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    return 2 if errors else 0
