"""``downspout completion``: print the script for a shell's completion, by argcomplete.

At each TAB the shell runs ``downspout`` with ``_ARGCOMPLETE`` set, which prints completions instead of running.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from downspout.cli.arguments import exit_codes, place, sink_place
from downspout.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")
HOW = {
    "bash": 'add `eval "$(downspout completion bash)"` to ~/.bashrc',
    "zsh": 'add `eval "$(downspout completion zsh)"` to ~/.zshrc, below compinit',
    "fish": "`downspout completion fish > ~/.config/fish/completions/downspout.fish`",
}


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        help="print the script that completes commands at TAB",
        description="Print the shell script that completes commands, options, topologies and settings at TAB. "
        + "; ".join(f"{shell}: {how}" for shell, how in HOW.items())
        + ".",
        epilog=exit_codes(),
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        MissingExtraError: argcomplete is not installed.
    """
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError:
        raise MissingExtraError(
            "completion needs argcomplete, which is not installed", cure="pip install 'downspout[completion]'"
        ) from None
    print(shellcode(["downspout"], use_defaults=False, shell=arguments.shell))
    return 0


def answer(parser: argparse.ArgumentParser) -> None:
    """Print completions and exit, if a shell requested them."""
    try:
        import argcomplete
        from argcomplete.completers import ChoicesCompleter
    except ImportError:
        sys.exit(1)  # completes nothing; continuing would run an unfinished command
    _add_completers(parser)
    # For other arguments, such as topics and groups, offer nothing; argcomplete would offer files.
    argcomplete.autocomplete(
        parser, always_complete_options="long", exit_method=sys.exit, default_completer=ChoicesCompleter({})
    )


def _add_completers(parser: argparse.ArgumentParser) -> None:
    """Set the completer of each argument, chosen by its name."""
    completers: dict[str, Callable[..., Sequence[str]]] = {
        "target": topology_files, "topology": topology_files, "overrides": settings, "scope": scopes,
    }  # fmt: skip
    for action in actions_of(parser):
        takes_name = action.dest == "topology" and action.metavar in (None, "NAME")
        completer = None if takes_name else completers.get(action.dest, paths if _takes_path(action) else None)
        if completer is not None:
            action.completer = completer  # type: ignore[attr-defined]   # for argcomplete


def _takes_path(action: argparse.Action) -> bool:
    if action.type in (place, sink_place) or action.metavar in ("FILE", "DIR", "PATH"):
        return True
    return action.dest == "file" or action.nargs == argparse.REMAINDER


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a command and its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in set(action.choices.values()):
                yield from actions_of(each)


def paths(prefix: str, **_: Any) -> list[str]:
    """Return the files and folders with this prefix."""
    start = os.path.expanduser(prefix)
    found = [f"{path}/" if os.path.isdir(path) else path for path in glob.glob(f"{glob.escape(start)}*")]
    return sorted(prefix + path.removeprefix(start) for path in found)


def topology_files(prefix: str, **_: Any) -> list[str]:
    """Return the Python files and folders with this prefix; without one, the topologies of the project."""
    found = paths(prefix) if prefix else sorted(glob.glob("topologies/*.py"))
    return [
        path for path in found
        if path.endswith((".py", "/")) and not os.path.basename(path.rstrip("/")).startswith("_")
    ]  # fmt: skip


def settings(prefix: str, **_: Any) -> list[str]:
    """Return the settings with this prefix; after ``=``, their possible values.

    >>> settings("kafka.emit=")
    ['kafka.emit=auto', 'kafka.emit=record', 'kafka.emit=chunk']
    >>> settings("rows:parquet.compr")
    ['rows:parquet.compression=']
    """
    from downspout.settings.table import SETTINGS

    name, equals, _value = prefix.partition("=")
    component, colon, key = name.rpartition(":")
    head = f"{component}{colon}"
    if not equals:
        return [f"{head}{each}=" for each in SETTINGS if each.startswith(key)]
    setting = SETTINGS.get(key)
    choices = () if setting is None else setting.choices or (("yes", "no") if setting.kind is bool else ())
    return [f"{head}{key}={choice}" for choice in choices]


def scopes(prefix: str, **_: Any) -> list[str]:
    """Return the scopes with this prefix, or within a scope its settings.

    >>> scopes("ru"), scopes("run.se")
    (['run'], ['run.seed'])
    """
    from downspout.settings.table import SCOPES, SETTINGS

    return sorted(name for name in (SETTINGS if "." in prefix else SCOPES) if name.startswith(prefix))
