"""``downspout settings``: the table of settings."""

from __future__ import annotations

import argparse
from typing import Any

from downspout.config import SETTINGS, Setting
from downspout.wording import figure


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("settings", help="list all settings with their defaults")
    parser.add_argument("scope", nargs="?", help="only those of one scope: kafka, parquet, run, …")
    parser.add_argument("--markdown", action="store_true", help="as the table in docs/reference/settings.md")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the table."""
    chosen = [s for s in SETTINGS.values() if arguments.scope in (None, s.scope)]
    if arguments.markdown:
        print(markdown(chosen))
        return 0
    width = max((len(setting.key) for setting in chosen), default=0)
    for setting in chosen:
        print(f"{setting.key:<{width}}  {_default(setting):<24}  {setting.help}")
    return 0


def markdown(settings: list[Setting]) -> str:
    """Return the settings as a Markdown table.

    >>> print(markdown([SETTINGS["run.member"]]).splitlines()[2])
    | `run.member` | int | not set | ≥ 1 | Number of this process among those that run one topology. |
    """
    rows = ["| setting | type | default | allowed | what it does |", "| --- | --- | --- | --- | --- |"]
    for setting in settings:
        name = setting.kind.__name__
        rows.append(f"| `{setting.key}` | {name} | {_default(setting)} | {_allowed(setting)} | {setting.help} |")
    return "\n".join(rows)


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "required" if setting.required else "not set"
    if isinstance(setting.default, list):
        return ", ".join(setting.default) or "none"
    if isinstance(setting.default, bool):
        return "yes" if setting.default else "no"
    return f"{setting.default:,}" if isinstance(setting.default, int) else str(setting.default)


def _allowed(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(setting.choices)
    low = f"≥ {figure(setting.minimum)}" if setting.minimum is not None else ""
    high = f"≤ {figure(setting.maximum)}" if setting.maximum is not None else ""
    return ", ".join(part for part in (low, high) if part)
