"""Private parts of the client: whether they are there, and the error where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kafka

from downspout.errors import BrokerError

CURE = '`pip install "kafka-python>=3.0.9,<3.1"`'


def absent(root: Any, parts: Mapping[str, str]) -> str | None:
    """Return the first part that is not there, or is of another type; None where all are as they should be.

    >>> absent("", {"upper": "builtin_function_or_method", "upper.__name__": "str", "_lower": "method"})
    '_lower'
    """
    for path, kind in parts.items():
        found = root
        for name in path.split("."):
            found = getattr(found, name, None)
        if type(found).__name__ != kind:
            return path
    return None


def unknown_client(path: str) -> BrokerError:
    """Return the error for a client without this part."""
    return BrokerError(f"kafka-python {kafka.__version__} has no {path}, which downspout needs", cure=CURE)
