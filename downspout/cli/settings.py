"""``downspout settings``: the table of settings."""

from __future__ import annotations

import argparse
from typing import Any

from downspout.cli.arguments import exit_codes
from downspout.errors import ConfigError
from downspout.formatting import nearest
from downspout.settings.table import SETTINGS, Setting


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "settings",
        help="list all settings with their defaults",
        description="List all settings with their defaults.",
        epilog=exit_codes(),
    )
    parser.add_argument("scope", nargs="?", help="only one scope, or one setting: kafka, parquet.compression, …")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the table."""
    chosen = [s for s in SETTINGS.values() if arguments.scope in (None, s.scope, s.key)]
    if not chosen:
        known = [*dict.fromkeys(setting.scope for setting in SETTINGS.values()), *SETTINGS]
        raise ConfigError(
            f"{arguments.scope} is neither a setting nor a scope",
            cure=nearest(arguments.scope, known, "kafka"),
        )
    width = max((len(setting.key) for setting in chosen), default=0)
    for setting in chosen:
        print(f"{setting.key:<{width}}  {default_of(setting):<24}  {setting.help}")
    return 0


def default_of(setting: Setting) -> str:
    """Return a setting's default as shown in tables."""
    if setting.default is None:
        return "required" if setting.required else "not set"
    if isinstance(setting.default, list):
        return ", ".join(setting.default) or "none"
    if isinstance(setting.default, bool):
        return "yes" if setting.default else "no"
    return f"{setting.default:,}" if isinstance(setting.default, int) else str(setting.default)
