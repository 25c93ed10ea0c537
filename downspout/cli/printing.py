"""Texts of strangers on a terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, keep: str = "") -> str:
    """Return a text of anybody's as a terminal may show it: what is no visible character is escaped.

    Records may hold what moves a cursor, hides a line or sends an answer to the terminal's input.

    Args:
        text: as it came.
        keep: characters that stay all the same, such as a line's end.

    >>> printable("ü\\n\\x1b[2J"), printable("a\\nb", keep="\\n")
    ('ü\\\\n\\\\x1b[2J', 'a\\nb')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)
