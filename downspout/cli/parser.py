"""The parser of our commands: what is misspelt is answered by the usage of the command it was meant for, and a cure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """As Python's; the parsers of its commands are of this class, too."""

    # Python's own parser hands what a command does not know up to the program's, which then prints its own usage.
    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; an error where anything is left."""
        words = list(sys.argv[1:] if args is None else args)
        if unknown := self._unknown(words):  # said before that an argument is missing
            self._refuse([unknown])
        found, rest = super().parse_known_args(words, namespace)
        if rest:
            self._refuse(rest)
        return found, rest

    def _unknown(self, words: Sequence[str]) -> str:
        """Return the first word that looks like an option and is none, or the beginning of one."""
        if any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions):
            return ""  # some of the words are another parser's
        for word in words:
            if word == "--":
                break
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and not any(each.startswith(name) for each in self._options()):
                return word
        return ""

    def _options(self) -> list[str]:
        return [each for each in self._option_string_actions if each.startswith("--")]

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        from downspout.formatting import nearest

        shown = [name for name in self._options() if self._option_string_actions[name].help != argparse.SUPPRESS]
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
        what = f"unknown option {option}" if option else f"unrecognized arguments: {' '.join(words)}"
        self.error(f"{what}. Try: {nearest(option, shown, f'{self.prog} --help')}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from downspout.formatting import nearest

            near = nearest(str(value), action.choices, "")
            meant = action.choices[near] if near else self
            meant.print_usage(sys.stderr)
            cure = meant.prog if near else f"one of {', '.join(action.choices)}"
            self.exit(2, f"{self.prog}: error: unknown command {value}. Try: {cure}\n")
        super()._check_value(action, value)
