"""Users' code by its import path: Storm's configuration is JSON and cannot hold a function."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from downspout.errors import USER_ERRORS, ConfigError


def load(setting: str, path: str) -> Any:
    """Return what ``module.name`` is.

    >>> load("kafka.listener", "collections.OrderedDict").__name__
    'OrderedDict'
    """
    module, dot, name = path.rpartition(".")
    try:
        if not dot:
            raise ImportError("there is no dot in it")
        return getattr(import_module(module), name)
    except USER_ERRORS as error:  # a module may raise anything while it is imported
        raise ConfigError(f"{setting} = {path!r} cannot be imported: {error}", cure="module.name") from error
