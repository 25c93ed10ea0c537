"""``downspout settings``: the table of settings."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import Any

from downspout.cli.arguments import exit_codes
from downspout.errors import ConfigError
from downspout.formatting import figure, nearest
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
    parser.add_argument(
        "--markdown", action="store_true", help="print the Markdown table of docs/reference/settings.md"
    )
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the table."""
    chosen = [s for s in SETTINGS.values() if arguments.scope in (None, s.scope, s.key)]
    if not chosen:
        known = [*dict.fromkeys(setting.scope for setting in SETTINGS.values()), *SETTINGS]
        raise ConfigError(
            f"there is no setting {arguments.scope}, and no scope of that name",
            cure=nearest(arguments.scope, known, "kafka"),
        )
    if arguments.markdown:
        print(markdown(chosen))
        return 0
    width = max((len(setting.key) for setting in chosen), default=0)
    for setting in chosen:
        print(f"{setting.key:<{width}}  {_default(setting):<24}  {setting.help}")
    return 0


def markdown(settings: list[Setting]) -> str:
    """Return the settings as a Markdown table, and below it what takes more than a sentence.

    >>> print(markdown([SETTINGS["run.member"]]).splitlines()[2])
    | `run.member` | integer ≥ 1 | not set | Number of this process among those that run one topology. |
    """
    lines = ["| setting | values | default | what it does |", "| --- | --- | --- | --- |"]
    lines += [f"| `{each.key}` | {_values(each)} | {_default(each)} | {each.help} |" for each in settings]
    return "\n".join(lines) + notes({each.key: _note(each) for each in settings})


def _note(setting: Setting) -> str:
    """Return what else there is to say of a setting, and the names that it had."""
    names = ", ".join(f"`{key}`" for key in setting.former)
    return f"{setting.note} Earlier versions called it {names}, which still works.".strip() if names else setting.note


def notes(by_name: Mapping[str, str]) -> str:
    """Return what stands below a table: a list of the notes that are not empty."""
    shown = [f"* `{name}`: {note}" for name, note in by_name.items() if note]
    wrap = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "".join(f"\n{'' if number else chr(10)}{wrap.fill(note)}" for number, note in enumerate(shown))


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "required" if setting.required else "not set"
    if isinstance(setting.default, list):
        return ", ".join(setting.default) or "none"
    if isinstance(setting.default, bool):
        return "yes" if setting.default else "no"
    return f"{setting.default:,}" if isinstance(setting.default, int) else str(setting.default)


def _values(setting: Setting) -> str:
    if setting.choices:
        return ("list of " if setting.kind is list else "") + ", ".join(f"`{choice}`" for choice in setting.choices)
    kind = {bool: "yes, no", int: "integer", float: "number", str: "text", list: "list"}.get(setting.kind, "path")
    low, high = setting.minimum, setting.maximum
    if low is None:
        return kind
    return f"{kind} ≥ {figure(low)}" if high is None else f"{kind}, {figure(low)} to {figure(high)}"
