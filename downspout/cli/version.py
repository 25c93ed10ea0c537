"""``downspout version``: the versions to state in an issue."""

from __future__ import annotations

import argparse
import json
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from downspout.cli.arguments import exit_codes


def add_parser(commands: Any) -> None:
    """Add the command."""
    text = "show the versions of Downspout and its dependencies"
    parser = commands.add_parser(
        "version", help=text,
        description=f"{text[0].upper()}{text[1:]}: Python, the platform, Java and the installed libraries. An issue "
        "should contain the output of `downspout version --json`.",
        epilog=exit_codes(_0="shown"),
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the versions."""
    found = versions()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    libraries = found.pop("libraries")
    for name, value in {**found, **libraries}.items():
        print(f"{name:<28}  {value or 'none'}")
    return 0


def versions() -> dict[str, Any]:
    """Return the versions by name; those of installed requirements are under ``libraries``.

    >>> sorted(versions())
    ['downspout', 'java', 'libraries', 'platform', 'python', 'storm']
    """
    from downspout.errors import DownspoutError
    from downspout.system import java as runtime
    from downspout.system.jars import STORM_VERSION

    try:
        java = runtime.release_of(runtime.java()).get("JAVA_VERSION")
    except DownspoutError:
        java = None
    return {
        "downspout": _installed("downspout"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "java": java,
        "storm": STORM_VERSION,
        "libraries": {name: found for name in _required() if (found := _installed(name))},
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _required() -> list[str]:
    """Return the distributions that Downspout requires, with all extras."""
    try:
        named = requires("downspout") or []
    except PackageNotFoundError:  # a checkout that was never installed
        return []
    found = {match[0] for each in named if (match := re.match(r"[\w.-]+", each))}
    return sorted(found - {"downspout"})
