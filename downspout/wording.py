"""How numbers are written in what people read."""

from __future__ import annotations

__all__ = ["counted", "figure", "lasting", "size"]


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, in the singular where it is one.

    Args:
        count: how many.
        noun: of what, in the singular.
        plural: of the noun, where that is not an ``s`` more.

    >>> counted(1, "record"), counted(3000, "record"), counted(0, "reply", "replies")
    ('1 record', '3,000 records', '0 replies')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def figure(value: float) -> str:
    """Return a number, whole ones with all their digits.

    >>> figure(1_800_000.0), figure(10), figure(0.25)
    ('1,800,000', '10', '0.25')
    """
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def lasting(seconds: float) -> str:
    """Return how long something takes, as exactly as people want to know it.

    >>> lasting(0.4), lasting(119), lasting(600), lasting(9_000), lasting(400_000)
    ('0 s', '119 s', '10 min', '2.5 h', '4.6 days')
    """
    for unit, name in ((86_400, "days"), (3_600, "h")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def size(count: int) -> str:
    """Return a number of bytes, in units of 1,000 as disks have them.

    >>> size(999), size(1_500), size(128_000_000), size(2_340_000_000)
    ('999 B', '1.5 kB', '128 MB', '2.3 GB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if round(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "B" else f"{value:.0f} {unit}"
