"""Writes ``downspout/settings/options.py``: the settings of each scope as a TypedDict (``make docs``)."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path, PurePath

from downspout.settings.table import TABLE, Setting

FILE = Path(__file__).resolve().parents[1] / "downspout" / "settings" / "options.py"
NAMES = {
    "kafka": "KafkaOptions", "parse": "ParseOptions", "lookup": "LookupOptions", "produce": "ProduceOptions",
    "parquet": "ParquetOptions", "sql": "SqlOptions",
}  # fmt: skip
"""Scopes whose settings a component's ``spec`` takes, and the names of their types."""
MAPPINGS = {
    "parse.types",
    "lookup.types",
    "parquet.schema",
    "parquet.input_names",
    "sql.schema",
    "sql.input_names",
    "produce.fields",
}
"""Lists of pairs that a ``spec`` takes as a dict too."""
PLAIN = {
    str: "str", int: "int", float: "float", bool: "bool", list: "str | Sequence[str]", Path: "str | PathLike[str]",
    PurePath: "str | PathLike[str]",
}  # fmt: skip
HEAD = '''"""What each component's ``spec`` takes, for type checkers and editors (PEP 692).

Made by ``make docs`` from the table of settings, which decides at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

# fmt: off
'''


def module() -> str:
    """Return the text of the module."""
    return "\n\n".join([HEAD.rstrip(), *(_class(scope, name) for scope, name in NAMES.items())]) + "\n"


def _class(scope: str, name: str) -> str:
    lines = [f"class {name}(TypedDict, total=False):", f'    """Settings ``{scope}.…``."""', ""]
    for setting in TABLE:
        if setting.scope == scope:
            key = setting.key.partition(".")[2]
            lines += [f"    {key}: {_type(setting)}", *_docstring(setting.help)]
    if scope == "kafka":
        lines += ["    client: Mapping[str, Any]", *_docstring("Properties of kafka-python's client.")]
    return "\n" + "\n".join(lines)


def _type(setting: Setting) -> str:
    kind = PLAIN[setting.kind]
    if setting.choices and setting.kind is str:
        kind = f"Literal[{', '.join(f'{choice!r}' for choice in setting.choices)}]".replace("'", '"')
    if setting.key in MAPPINGS:
        kind += " | Mapping[str, str]"
    return kind if setting.default is not None or setting.required else f"{kind} | None"


def _docstring(text: str) -> list[str]:
    text = re.sub(r"`([^`]*)`", r"``\1``", text)
    return textwrap.wrap(f'"""{text}"""', 120, initial_indent="    ", subsequent_indent="    ")
