"""Where the value of a field stands in a JSON object: ``user.id``, ``items[0].sku``, ``"a.b"``.

A path is the key of the object; behind it, keys of objects inside of it after a dot each, and places in lists in
brackets, from 0 on or from -1 backwards. A key that holds a dot, a bracket or a quote stands in double quotes, as in
JSON. What is not there, or null on the way, is null. An error is a value of another kind on the way, and an object in
which a path leads nowhere while its whole text is a key: a field that is always null would hide a mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from downspout.errors import ConfigError

Path = tuple[str | int, ...]
_STEP = re.compile(
    r"""(?P<dot>\.?)(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^.\[\]"]+))|\[(?P<place>-?[0-9]{1,9})\]""", re.VERBOSE
)
JSON_NAMES: dict[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def parse_path(text: str) -> Path:
    """Return the keys and places that a path names.

    >>> parse_path("user.id"), parse_path("items[-1].sku"), parse_path('"a.b"')
    (('user', 'id'), ('items', -1, 'sku'), ('a.b',))
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None or (step["place"] is None and bool(step["dot"]) != bool(steps)) or (step["place"] and not at):
            break
        if step["place"] is not None:
            steps.append(int(step["place"]))
        else:
            steps.append(json.loads(step["quoted"], strict=False) if step["quoted"] is not None else step["bare"])
        at = step.end()
    if at < len(text) or not steps:
        raise ConfigError(
            f"parse.fields: {text!r} does not say where the value stands",
            cure='name=key, name=user.id, name=items[0].sku, or name="a.b" for a key with a dot',
        )
    return tuple(steps)


class Paths:
    """Where the values of several fields stand.

    >>> Paths(["user.id", "items[0]"]).of({"user": {"id": 7}, "items": []})
    [7, None]
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.paths = [parse_path(text) for text in texts]
        roots = tuple(str(path[0]) for path in self.paths)
        # the plain keys of the object, one for each field; None where one is deeper
        self.keys = roots if all(len(path) == 1 for path in self.paths) else None
        # the values of several plain keys, fast; it raises a KeyError where the object lacks one
        self.of_many = itemgetter(*roots) if self.keys is not None and len(roots) > 1 else None

    def of(self, document: dict[str, Any]) -> list[Any]:
        """Return the value of each field.

        Raises:
            ValueError: something on the way is not an object, or not a list; or the path as a whole is a key.
        """
        if self.keys is not None:
            return list(map(document.get, self.keys))
        return [_value(document, path, text) for path, text in zip(self.paths, self.texts, strict=True)]


def _value(document: dict[str, Any], path: Path, text: str) -> Any:
    if path[0] not in document and text in document:
        quoted = json.dumps(text, ensure_ascii=False)
        raise ValueError(f"{text} is a key of the object, and no path into it: parse.fields needs {quoted}, in quotes")
    value: Any = document
    for depth, step in enumerate(path):
        if isinstance(step, str):
            if type(value) is not dict:
                raise _wrong(value, dict, path[:depth])
            value = value.get(step)
        else:
            if type(value) is not list:
                raise _wrong(value, list, path[:depth])
            value = value[step] if -len(value) <= step < len(value) else None
        if value is None:
            return None
    return value


def _wrong(value: Any, wanted: type, way: Path) -> ValueError:
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way).removeprefix(".")
    return ValueError(f"{where} is {JSON_NAMES[type(value)]}, {JSON_NAMES[wanted]} is needed")
