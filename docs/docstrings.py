"""Docstrings as Markdown: doctests and tables become blocks of code, and Sphinx's roles code (see mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*(?:\n\n\1>>> .*(?:\n\1\S.*)*)*", re.MULTILINE)
TABLE = re.compile(r"^( *)=+  [= ]+\n(?:.*\n)+?\1=+  [= ]+\n(?:.*\n)+?\1=+  [= ]+$", re.MULTILINE)
ROLE = re.compile(r":\w+:`~?([^`]+)`")


def as_markdown(text: str) -> str:
    """Return a docstring for Markdown."""
    text = re.sub(r"^( *)::$|(?<=\w)::$", lambda match: "" if match[1] is not None else ":", text, flags=re.MULTILINE)
    text = TABLE.sub(lambda match: f"{match[1]}```text\n{match[0]}\n{match[1]}```", ROLE.sub(r"`\1`", text))
    return DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


class Docstrings(Extension):
    """Griffe calls it for each object that it has read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
