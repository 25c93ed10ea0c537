"""Local folders: Downspout's own, and those that a user names.

``Path("s3://bucket/out")`` would be a relative path with a folder ``s3:``. So each setting of the kind ``Path``, each
option and each function that takes a folder checks for a URL before it makes a :class:`~pathlib.Path`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""One slash is enough: ``dbfs:/mnt/x`` is a URL, and a Path turns ``s3://bucket`` into ``s3:/bucket``."""
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/[^/].*|/)", re.IGNORECASE | re.DOTALL)


def local_path(given: str | os.PathLike[str], what: str) -> str:
    """Return a local path as text; also of a URL ``file:///path``, or below ``~``.

    >>> local_path("data/out", "x"), local_path("file:///data/out", "x"), local_path("a:b/c", "x")
    ('data/out', '/data/out', 'a:b/c')
    >>> local_path("s3://bucket/out", "parquet.directory = 's3://bucket/out' (spec)")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: parquet.directory = 's3://bucket/out' (spec) is on s3, not a path on this \
machine: object stores and other file systems are not supported yet. Try: a local path, or one where it is mounted
    """
    text = os.fspath(given)
    if (url := _URL.match(text)) is None:
        return os.path.expanduser(text) if text == "~" or text.startswith("~/") else text
    if url[1].lower() != "file":
        raise ConfigError(
            f"{what} is on {url[1]}, not a path on this machine: object stores and other file systems are "
            "not supported yet",
            cure="a local path, or one where it is mounted",
        )
    found = _FILE.fullmatch(text)
    if found is None or "%" in text:
        raise ConfigError(f"{what} is a URL without a usable path", cure="the path itself, without file:")
    return found[1]


def local_folder(given: str | os.PathLike[str], name: str = "directory") -> Path:
    """Return a local folder that was passed to a function. Raises ConfigError: as :func:`local_path`."""
    return Path(local_path(given, f"{name} = {str(given)!r}"))


def home() -> Path:
    """Return the folder for a project's state: broker data, topology ids, logs (``.downspout``)."""
    return _given_by("DOWNSPOUT_HOME", ".downspout")


def project() -> Path:
    """Return the base of relative directories in settings: the project's folder, or else the current one."""
    # A Storm worker's own folder is deleted with the topology, so our Storm passes the project's folder on.
    return _given_by("DOWNSPOUT_PROJECT", "")


def of_project(given: str, setting: str, conf: Mapping[str, Any]) -> Path:
    """Return the path that a setting names; a relative one is in the project's folder.

    Raises:
        ConfigError: it is not a local path, or relative on a Storm that does not know the project's folder.
    """
    path = Path(local_path(given, f"{setting} = {given!r}"))
    if path.is_absolute():
        return path
    # Only on Storm is this key in a component's configuration.
    if "storm.cluster.mode" in conf and not os.environ.get("DOWNSPOUT_PROJECT"):
        raise ConfigError(
            f"{setting} = {given!r} is relative, and a Storm worker's folder is deleted with the topology",
            cure="an absolute path that all workers share, or DOWNSPOUT_PROJECT in the workers' environment",
        )
    return project() / path


FILE_URL = re.compile(r"(sqlite|parquet):///(?P<path>[^?]+)")
"""URLs of local paths: relative with three slashes, absolute with four."""


def of_project_url(url: str, setting: str, conf: Mapping[str, Any]) -> str:
    """Return a URL; a local path in it is made absolute.

    Raises:
        ConfigError: as :func:`of_project`.

    >>> of_project_url("sqlite:////data/flights.db", "sql.database", {})
    'sqlite:////data/flights.db'
    """
    if (found := FILE_URL.fullmatch(url)) is None:
        return url
    return f"{found[1]}:///{of_project(found['path'], setting, conf).absolute()}"


def _given_by(name: str, default: str) -> Path:
    """Return the folder that an environment variable names."""
    given = os.environ.get(name, default)
    return Path(local_path(given, f"{name} = {given!r} (environment)"))


def worker_environment(folder: Path) -> dict[str, str]:
    """Return this process's environment for a Storm that is started for the project in ``folder``."""
    # Storm's own variables would select another configuration.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STORM_")}
    return {**kept, "DOWNSPOUT_HOME": str(home().absolute()), "DOWNSPOUT_PROJECT": str(folder.absolute())}


def cache() -> Path:
    """Return the folder for jars, which can be fetched again (``~/.cache/downspout``)."""
    if os.environ.get("DOWNSPOUT_CACHE"):
        return _given_by("DOWNSPOUT_CACHE", "")
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "downspout"
