"""Lazy public names of packages, for other packages and tests.

A package's ``__init__`` lists its public names by module. Importing the package costs nothing; a name is imported on
first access. So modules can be moved, split or joined within the package without changes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def offered(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Return a package's ``__getattr__`` and ``__all__`` (PEP 562).

    ``homes``: module, relative to the package → its public names, separated by blanks.

    >>> find, names = offered("downspout", {"offset_ranges": "merged"})
    >>> names
    ['merged']
    >>> find("other")
    Traceback (most recent call last):
    AttributeError: module 'downspout' has no attribute 'other'
    """
    places = {name: f"{package}.{module}" for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name]), name)

    return find, list(places)
