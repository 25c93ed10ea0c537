"""What the values at one place of many JSON objects are, and the type of a column that takes them all.

A type is inferred only where all values that are not null agree. The rest is said, so that a person decides.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

WORDS = {
    "bool": "true or false", "int": "whole numbers", "float": "numbers", "text": "text", "object": "objects",
    "array": "arrays",
}  # fmt: skip
_KINDS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "text", dict: "object", list: "array"}
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
_DECIMAL = re.compile(r"-?(\d+)\.(\d+)")
_WHOLE = re.compile(r"-?\d+")
_NAME_OF_TIME = re.compile(r"(?i)(^|[^a-z]|_)(ts|time|timestamp|at|ms|epoch|date)$|[a-z](At|Time|Timestamp|Ms|Date)$")
_EPOCHS = (("timestamp_s", 1), ("timestamp_ms", 1_000), ("timestamp_us", 1_000_000))
_YEAR_2000_S, _YEAR_2100_S = 946_684_800, 4_102_444_800
DIGITS_MAX = 38
MAP_KEYS_MIN = 12
"""So many different keys, none in half of the objects, are data and no field names."""
_IN_STRUCT = re.compile(r"[^,:<>!?\s][^,:<>!?]*(?<!\s)")
"""Names that the text of a struct's type can hold."""


@dataclass(frozen=True)
class Verdict:
    """A column's type, and what there is to say of it."""

    type: str | None  # None: no type takes all values
    remark: str = ""
    is_open: bool = False  # whether a person should look at it


@dataclass
class Seen:
    """What values one place had.

    >>> seen = Seen()
    >>> for value in ("12.50", "3.999", None):
    ...     seen.add(value)
    >>> seen.verdict("price").type
    'decimal(18,3)'
    """

    nulls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    low: int = 0  # of the whole numbers
    high: int = 0
    texts: Counter[str] = field(default_factory=Counter)  # what the texts look like
    digits: list[int] = field(default_factory=lambda: [0, 0])  # most before and behind a decimal point
    fields: dict[str, Seen] = field(default_factory=dict)
    items: Seen | None = None

    @property
    def count(self) -> int:
        """Return how many values there were, nulls among them."""
        return self.nulls + self.kinds.total()

    def add(self, value: Any) -> None:
        """Take one value into account."""
        if value is None:
            self.nulls += 1
            return
        kind = _KINDS[type(value)]
        if kind == "int":
            first = not self.kinds["int"]
            self.low, self.high = (value, value) if first else (min(self.low, value), max(self.high, value))
        elif kind == "text":
            self._add_text(value)
        elif kind == "object":
            for name, inner in value.items():
                self.fields.setdefault(name, Seen()).add(inner)
        elif kind == "array":
            self.items = self.items or Seen()
            for inner in value:
                self.items.add(inner)
        self.kinds[kind] += 1

    def _add_text(self, text: str) -> None:
        if (match := _DECIMAL.fullmatch(text)) is not None:
            self.texts["decimal"] += 1
            self.digits = [max(most, len(part)) for most, part in zip(self.digits, match.groups(), strict=True)]
        elif _WHOLE.fullmatch(text):
            self.texts["whole"] += 1
        elif _is_time(text):
            is_date = _DATE.fullmatch(text) is not None
            has_zone = text.endswith("Z") or re.search(r"[+-]\d\d:?\d\d$", text[10:]) is not None
            self.texts["date" if is_date else "timestamp" if has_zone else "naive"] += 1
        else:
            self.texts["other"] += 1

    def verdict(self, name: str) -> Verdict:
        """Return the type for all of these values; ``name`` is the last key on the way to them."""
        if not self.kinds:
            return Verdict("string", "always null: string is a guess", is_open=True)
        if set(self.kinds) == {"int", "float"}:
            return self._of_numbers()
        if len(self.kinds) > 1:
            parts = ", ".join(f"{WORDS[kind]} in {count:,}" for kind, count in self.kinds.most_common())
            return Verdict(None, f"{parts}: no type takes all of them", is_open=True)
        match next(iter(self.kinds)):
            case "bool":
                return Verdict("bool")
            case "float":
                return Verdict("float64")
            case "int":
                return self._of_ints(name)
            case "text":
                return self._of_texts()
            case "object":
                return self._of_objects()
            case _:
                return self._of_arrays(name)

    def _of_numbers(self) -> Verdict:
        if max(-self.low, self.high) > 2**53:
            return Verdict(None, "fractions, and whole numbers beyond 2^53: no type takes all of them", is_open=True)
        return Verdict("float64", "whole numbers and fractions")

    def _of_ints(self, name: str) -> Verdict:
        if self.low < -(2**63) or self.high >= 2**63:
            digits = len(str(max(-self.low, self.high)))
            return (
                Verdict(f"decimal({DIGITS_MAX},0)", "beyond 64 bits")
                if digits <= DIGITS_MAX
                else Verdict(
                    None, f"whole numbers of {digits} digits: no type takes more than {DIGITS_MAX}", is_open=True
                )
            )
        unit = next((each for each, per in _EPOCHS if self._in_years(per)), None)
        if unit is None:
            return Verdict("int64")
        if _NAME_OF_TIME.search(name):
            return Verdict(unit, "by its name and its range; int64, if it is a number", is_open=True)
        return Verdict("int64", f"could be {unit}, by its range", is_open=True)

    def _in_years(self, per_s: int) -> bool:
        return _YEAR_2000_S * per_s <= self.low and self.high < _YEAR_2100_S * per_s

    def _of_texts(self) -> Verdict:
        looks = set(self.texts)
        if looks == {"date"}:
            return Verdict("date")
        if looks <= {"timestamp", "naive", "date"}:
            naive = "times without a zone are taken as UTC" if looks != {"timestamp"} else ""
            return Verdict("timestamp", naive, is_open=bool(naive))
        if "decimal" in looks and looks <= {"decimal", "whole"}:
            return self._of_decimals()
        if looks == {"whole"}:
            return Verdict("string", "whole numbers as text, kept as text: some may begin with zeros", is_open=True)
        return self._of_mixed_texts()

    def _of_mixed_texts(self) -> Verdict:
        """Return text; where nearly all look like something else, say so."""
        look, count = self.texts.most_common(1)[0]
        others = self.texts.total() - count
        if look != "other" and others * 10 <= count:
            what = {"naive": "timestamp", "whole": "whole number"}.get(look, look)
            return Verdict("string", f"all but {others:,} of {self.texts.total():,} look like a {what}", is_open=True)
        return Verdict("string")

    def _of_decimals(self) -> Verdict:
        whole, scale = self.digits
        if self.texts["whole"]:  # their digits were not counted: they may be codes as well
            return Verdict("string", "text of numbers, some of them whole: kept as text", is_open=True)
        if whole + scale > DIGITS_MAX:
            return Verdict("string", f"text of numbers with more than {DIGITS_MAX} digits: kept as text", is_open=True)
        precision = 18 if whole + scale <= 18 else DIGITS_MAX
        return Verdict(f"decimal({precision},{scale})", "text of numbers")

    def is_map(self) -> bool:
        """Return whether these objects have data for keys: many different ones, none of them in half of the objects."""
        most = max((each.count for each in self.fields.values()), default=0)
        return len(self.fields) >= MAP_KEYS_MIN and most * 2 < self.kinds["object"]

    def _of_objects(self) -> Verdict:
        """Return a type for whole objects, as items of a list have it or a map."""
        if self.is_map():
            merged = Seen()
            for each in self.fields.values():
                merged.merge(each)
            inner = merged.verdict("")
            kind = None if inner.type is None else f"map<string,{inner.type}>"
            return Verdict(kind, inner.remark or f"{len(self.fields):,} different keys", is_open=inner.is_open)
        parts, remarks = [], []
        for name, seen in self.fields.items():
            inner = seen.verdict(name)
            if inner.type is None or not (_IN_STRUCT.fullmatch(name) and is_text(name)):
                remarks.append(f"{shown(name)} is left out ({inner.remark or 'its name'})")
                continue
            if inner.is_open:
                remarks.append(f"{shown(name)}: {inner.remark}")
            parts.append(f"{name}:{inner.type}")
        if not parts:
            return Verdict(None, "; ".join(remarks) or "objects that are empty", is_open=True)
        return Verdict(f"struct<{','.join(parts)}>", "; ".join(remarks), is_open=bool(remarks))

    def _of_arrays(self, name: str) -> Verdict:
        if self.items is None or not self.items.count:
            return Verdict("list<string>", "always empty: list<string> is a guess", is_open=True)
        inner = self.items.verdict(name)
        return Verdict(None if inner.type is None else f"list<{inner.type}>", inner.remark, is_open=inner.is_open)

    def merge(self, other: Seen) -> None:
        """Take in what another place had."""
        if other.kinds["int"]:
            first = not self.kinds["int"]
            self.low = other.low if first else min(self.low, other.low)
            self.high = other.high if first else max(self.high, other.high)
        self.nulls += other.nulls
        self.kinds += other.kinds
        self.texts += other.texts
        self.digits = [max(pair) for pair in zip(self.digits, other.digits, strict=True)]
        for name, each in other.fields.items():
            self.fields.setdefault(name, Seen()).merge(each)
        if other.items is not None:
            self.items = self.items or Seen()
            self.items.merge(other.items)


def is_text(key: str) -> bool:
    """Return whether a key can be written as UTF-8; half of a surrogate pair cannot."""
    return not any("\ud800" <= each <= "\udfff" for each in key)


def shown(name: str) -> str:
    r"""Return a key of a record as a line of text, and of Python, may hold it.

    >>> shown("größe"), shown("a\nimport b")
    ('größe', '"a\\nimport b"')
    """
    return name if name.isprintable() else json.dumps(name)


def _is_time(text: str) -> bool:
    """Return whether a text is a date or a time, and there is such a day.

    >>> _is_time("2026-02-28T12:00Z"), _is_time("2026-02-30")
    (True, False)
    """
    if not (_DATE.fullmatch(text) or _TIME.fullmatch(text)):
        return False
    try:
        return datetime.fromisoformat(text).year >= 1
    except ValueError:
        return False
