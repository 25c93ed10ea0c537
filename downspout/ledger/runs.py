"""Many small ranges in few characters: their lengths as numbers of as many bits as they need.

From an offset on, holes and what is done take turns. Each length is written as an exponential Golomb code: a number
``n`` of order ``k`` is ``n - 1 + 2**k`` in binary, with a zero before it for each digit beyond ``k + 1``. A run of 1
takes one bit at order 0, so every second offset done takes two bits for each hole. Holes and ranges have an order each,
the one that takes the fewest bits. Six bits make a character.

No number says how much memory is needed: a text of ``c`` characters holds at most ``3 * c`` ranges.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

ORDERS = range(32)
ZEROS_MAX = 63  # No length has more bits
_DIGITS = "0123456789abcdefghijklmnopqrstuv"

Range = tuple[int, int]


def pack(base: int, ranges: Sequence[Range], room: int) -> tuple[str, int]:
    """Return a text of at most ``room`` characters, and how many of the ranges, lowest first, it holds.

    Args:
        base: below the first range.
        ranges: half-open, sorted; none touches another, or ``base``.
        room: in characters.

    >>> pack(100, [(101, 102), (103, 104), (105, 110)], room=100)
    ('00-U', 3)
    >>> pack(100, [(101, 102), (103, 104), (105, 110)], room=3)
    ('008', 2)
    """
    lengths = list(_lengths(base, ranges))
    orders = _orders(lengths)
    count = _fitting(lengths, orders, 6 * (room - 2))
    if not count:
        return "", 0
    # For what fits other orders may be better. They make the text no longer.
    lengths = lengths[: 2 * count]
    orders = _orders(lengths)
    bits = "".join(_code(length, orders[place & 1]) for place, length in enumerate(lengths))
    return _DIGITS[orders[0]] + _DIGITS[orders[1]] + _characters(bits), count


def unpack(base: int, text: str) -> list[Range]:
    """Return the ranges that a text holds; see :func:`pack`.

    >>> unpack(100, "00-U")
    [(101, 102), (103, 104), (105, 110)]
    """
    orders = [_DIGITS.index(digit) for digit in text[:2]]
    ranges = []
    numbers = _numbers(_bits(text[2:]), orders)
    end = base
    for hole in numbers:
        start = end + hole
        end = start + next(numbers, 0)
        ranges.append((start, end))
    if not ranges or pack(base, ranges, len(text)) != (text, len(ranges)):
        raise ValueError(text[:80])
    return ranges


def _lengths(base: int, ranges: Iterable[Range]) -> Iterator[int]:
    before = base
    for start, end in ranges:
        yield start - before
        yield end - start
        before = end


def _orders(lengths: Sequence[int]) -> tuple[int, int]:
    """Return the orders that take the fewest bits, for holes and for ranges; of two the lower one."""
    return _order(lengths[::2]), _order(lengths[1::2])


def _order(lengths: Sequence[int]) -> int:
    counts = Counter(lengths).items()
    return min(ORDERS, key=lambda order: sum(count * _size(length, order) for length, count in counts))


def _size(length: int, order: int) -> int:
    """Return how many bits a length takes."""
    return 2 * (length - 1 + (1 << order)).bit_length() - 1 - order


def _fitting(lengths: Sequence[int], orders: tuple[int, int], bits_max: int) -> int:
    """Return how many ranges fit into so many bits."""
    used = 0
    for place in range(0, len(lengths), 2):
        used += _size(lengths[place], orders[0]) + _size(lengths[place + 1], orders[1])
        if used > bits_max:
            return place // 2
    return len(lengths) // 2


def _code(length: int, order: int) -> str:
    digits = f"{length - 1 + (1 << order):b}"
    return "0" * (len(digits) - 1 - order) + digits


def _numbers(bits: str, orders: Sequence[int]) -> Iterator[int]:
    """Yield the numbers in some bits, in turns of both orders; zeros at the end are none."""
    at = turn = 0
    while (one := bits.find("1", at)) >= 0:
        order = orders[turn]
        behind = one + one - at + 1 + order
        if one - at > ZEROS_MAX or behind > len(bits):
            raise ValueError("a number that cannot be")
        yield int(bits[one:behind], 2) + 1 - (1 << order)
        at, turn = behind, 1 - turn


def _characters(bits: str) -> str:
    size = -(-len(bits) // 6)
    padded = bits.ljust(-(-len(bits) // 24) * 24, "0")
    return base64.urlsafe_b64encode(int(padded, 2).to_bytes(len(padded) // 8, "big")).decode()[:size]


def _bits(text: str) -> str:
    if not text:
        return ""
    data = base64.b64decode(text + "".join(repeat("A", -len(text) % 4)), altchars=b"-_", validate=True)
    return f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"[: 6 * len(text)]
