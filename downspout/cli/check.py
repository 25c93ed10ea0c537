"""``downspout check``: find mistakes in a topology without running it."""

from __future__ import annotations

import argparse
from typing import Any

from downspout.cli.arguments import add_settings, add_topology, exit_codes, sentence
from downspout.formatting import counted


def add_parser(commands: Any) -> None:
    """Add the command."""
    text = "find mistakes in a topology without running it"
    parser = commands.add_parser(
        "check",
        help=text,
        description=sentence(text),
        epilog=exit_codes(8, _0="no errors, at most warnings", _2="there are errors, or an option is wrong"),
    )
    add_topology(parser)
    add_settings(parser)
    parser.add_argument("--all", action="store_true", help="show defaults too")
    parser.add_argument("--given", action="store_true", help=argparse.SUPPRESS)  # now the default
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print settings and findings; return 2 if any finding is an error."""
    from downspout.engine.load import load
    from downspout.run import topology_check as check

    graph = load(arguments.target, arguments.topology)
    settings = check.resolve(graph, arguments.overrides)
    print(check.values_table(graph, settings, everything=arguments.all))
    findings = check.findings(graph, settings)
    for finding in findings:
        print(finding)
    errors = sum(finding.is_error for finding in findings)
    print(f"{graph.name}: {counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    return 2 if errors else 0
