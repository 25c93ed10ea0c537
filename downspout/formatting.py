"""Formatting of numbers, names and tables for messages."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, in the singular for 1.

    Args:
        plural: of the noun, if it does not just add an ``s``.

    >>> counted(1, "record"), counted(3000, "record"), counted(0, "reply", "replies")
    ('1 record', '3,000 records', '0 replies')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def safe_repr(value: Any) -> str:
    """Return the ``repr`` of a value, even if its ``__repr__`` raises.

    >>> safe_repr(["a", 1])
    "['a', 1]"
    """
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose __repr__ raised {type(error).__name__}>"


def short_repr(value: Any) -> str:
    """Return the beginning of a value as Python shows it, whatever its ``__repr__`` does.

    >>> short_repr(list(range(9))), short_repr(10**5_000)
    ('[0, 1, 2, 3, 4, 5, ...]', '<int whose __repr__ raised ValueError>')
    """
    try:
        return reprlib.repr(value)
    except Exception:  # a whole number of more than 4,300 digits
        return safe_repr(value)


def figure(value: float) -> str:
    """Format a number, whole ones with all digits.

    >>> figure(1_800_000.0), figure(10), figure(0.25)
    ('1,800,000', '10', '0.25')
    """
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def lasting(seconds: float) -> str:
    """Format a duration with a suitable unit.

    >>> lasting(0.4), lasting(119), lasting(600), lasting(9_000), lasting(400_000)
    ('0 s', '119 s', '10 min', '2.5 h', '4.6 days')
    """
    for unit, name in ((86_400, "days"), (3_600, "h")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def seconds_of(text: str, bare: str = "") -> float | None:
    """Parse a duration; ``bare`` is the unit of a number without one; None: malformed.

    >>> seconds_of("30s"), seconds_of("1.5 m"), seconds_of("7d"), seconds_of("5", "ms"), seconds_of("5")
    (30.0, 90.0, 604800.0, 0.005, None)
    """
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([a-z]*)\s*", text.lower())
    unit = UNITS_S.get(found[2] or bare) if found else None
    return None if found is None or unit is None else float(found[1]) * unit


_VARYING = re.compile(r"""(?<!\w)b?(?:'[^']*(?:'|$)|"[^"]*(?:"|$))|\b\d\w*(?:[.,]\d+)*""")
FORMS_MAX = 20
"""Forms of messages that are told apart; further ones count as one form."""
_FORM_CHARS_MAX = 300


def form_of(message: str) -> str:
    """Return a message with … in place of numbers and quoted values: two errors of one form differ only in these.

    >>> form_of("orders[0]@918: delay = 'late' does not fit int16")
    'orders[…]@…: delay = … does not fit int16'
    """
    return _VARYING.sub("…", message[:_FORM_CHARS_MAX])


class MessageForms:
    """The forms of messages, at most FORMS_MAX for each group."""

    def __init__(self) -> None:
        self._known: dict[Hashable, set[str]] = {}

    def of(self, group: Hashable, message: str) -> str:
        """Return the form of a message; empty if its group has too many forms."""
        known, form = self._known.setdefault(group, set()), form_of(message)
        if len(known) < FORMS_MAX:
            known.add(form)
        return form if form in known else ""


LAST_CUTOFF = 0.65


def nearest(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """Return the known name most similar to a wrong one, or ``otherwise``.

    A common scope alone does not make two keys similar: the rest must match, too.

    >>> [nearest(name, ["kafka.group", "kafka.topics"], "look it up") for name in ("kafak.group", "kafka.stop", "x")]
    ['kafka.group', 'look it up', 'look it up']
    """
    for found in difflib.get_close_matches(name, known, 1, cutoff):
        own, last = found.rpartition(".")[2], name.rpartition(".")[2]
        if "." not in found or difflib.get_close_matches(last, [own], 1, LAST_CUTOFF):
            return found
    return otherwise


SLASHES = {"parquet": "///", "sqlite": "///"}  # in URLs of local files


def nearest_url(scheme: str, schemes: Iterable[str], *others: str) -> str:
    """Return the URL form of the scheme most similar to a wrong one, or all valid forms, including ``others``.

    >>> nearest_url("postgre", ["sqlite", "postgresql"]), nearest_url("mysql", ["sqlite", "postgresql"], "kafka")
    ('postgresql://…', 'one of kafka, postgresql://…, sqlite:///…')
    """
    shown = {each: each for each in others} | {each: f"{each}:{SLASHES.get(each, '//')}…" for each in sorted(schemes)}
    return shown.get(nearest(scheme, shown, ""), f"one of {', '.join(shown.values())}")


def size(count: int) -> str:
    """Format a number of bytes, in decimal units.

    >>> size(999), size(1_500), size(128_000_000), size(2_340_000_000)
    ('999 B', '1.5 kB', '128 MB', '2.3 GB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if round(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "B" else f"{value:.0f} {unit}"


def columns(rows: Sequence[Sequence[str]], numbers: Collection[int]) -> list[str]:
    """Align rows of cells; the columns in ``numbers`` are right-aligned.

    >>> columns([["a", "12"], ["bb", "3"]], {1})
    ['a   12', 'bb   3']
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
