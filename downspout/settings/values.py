"""Values of settings: text from the environment or a command line as what a setting wants."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if (text := str(value).strip().lower()) not in known:
        raise ValueError(value)
    return known[text]


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(str(value).replace("_", "")) if isinstance(value, str) else int(value)


def _parse_float(value: Any) -> float:
    if isinstance(value, bool) or (number := float(value)) != number:
        raise ValueError(value)
    return number


def _parse_list(value: Any) -> list[str]:
    if isinstance(value, str):
        text = value.strip()
        value = json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",") if part.strip()]
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise TypeError(value)
    return [str(item) for item in value]


def _parse_str(value: Any) -> str:
    if not isinstance(value, str | int | float | os.PathLike) or isinstance(value, bool):
        raise TypeError(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


PARSERS = {
    str: _parse_str, Path: _parse_str, PurePath: _parse_str, int: _parse_int, float: _parse_float, bool: _parse_bool,
    list: _parse_list,
}  # fmt: skip


def parse_as(kind: type, value: Any) -> Any:
    """Return a value as the text, number, switch or list that a setting of this kind would be.

    Raises:
        TypeError, ValueError, OverflowError: it is none.

    >>> parse_as(int, "1_000"), parse_as(bool, "yes")
    (1000, True)
    """
    return PARSERS[kind](value)


KIND_NAMES = {
    str: "text", Path: "a path", PurePath: "a path or a URL", int: "a whole number", float: "a number",
    bool: "true or false", list: "a list of names",
}  # fmt: skip
