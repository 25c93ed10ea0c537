"""A translator whose second record has a value that cannot be serialised."""

from __future__ import annotations

from typing import Any


def translate(record: Any) -> list[Any]:
    return [record.offset, {1, 2} if record.offset == 1 else record.value]
