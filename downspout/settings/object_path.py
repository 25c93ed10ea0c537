"""Folders on object stores: their URLs, and the path class for them.

``s3://bucket/name`` (also R2, MinIO, Ceph), ``gs://bucket/name`` and ``az://container/name``. A bucket alone is not
accepted.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PosixPath
from typing import NoReturn

from downspout.errors import ConfigError
from downspout.settings.folders import local_path

SCHEMES = ("s3", "gs", "az")
_OBJECT = re.compile(rf"({'|'.join(SCHEMES)}):/{{1,2}}([^/?#@\0-\x1f\x7f]+)((?:/[^/?#\0-\x1f\x7f]+)*)/*")
_LOOKS_SO = re.compile(rf"({'|'.join(SCHEMES)}):/")
_CURES = {
    "s3a": "s3://bucket/name: s3a is Hadoop's word for the same place",
    "s3n": "s3://bucket/name: s3n is Hadoop's word for the same place",
    "gcs": "gs://bucket/name",
    "abfs": "az://container/name, with the account in AZURE_STORAGE_ACCOUNT_NAME",
    "abfss": "az://container/name, with the account in AZURE_STORAGE_ACCOUNT_NAME",
    "azure": "az://container/name, with the account in AZURE_STORAGE_ACCOUNT_NAME",
    "hdfs": "a path where HDFS is mounted (its NFS gateway, or FUSE), or s3://… through an S3 gateway such as Ozone's",
}
"""Replacements for other schemes of URLs."""


class ObjectPath(PosixPath):
    """A path in an object store.

    It can be joined, split and compared like any path. Operations on the local disk raise a ConfigError, so that no
    local folder ``s3:`` is ever created, read or listed.

    >>> place = ObjectPath("s3://bucket/out") / "month=7" / "a.parquet"
    >>> str(place), place.bucket, place.key, place.parent.name
    ('s3://bucket/out/month=7/a.parquet', 'bucket', 'out/month=7/a.parquet', 'month=7')
    >>> place.exists()
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: s3://bucket/out/month=7/a.parquet is on s3, but this works with local paths only. \
Try: a local path, or one where it is mounted; docs/how-to/write-to-s3.md says what reads and writes object stores
    """

    @property
    def scheme(self) -> str:
        """The scheme of its URL, one of :data:`SCHEMES`."""
        return self.parts[0].removesuffix(":")

    @property
    def bucket(self) -> str:
        """Its bucket, or Azure's container."""
        return self.parts[1]

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return "/".join(self.parts[2:])

    def __str__(self) -> str:
        text = super().__str__()
        return text.replace(":/", "://", 1) if _LOOKS_SO.match(text) else text

    def is_absolute(self) -> bool:
        """Return True."""
        return True

    def is_symlink(self) -> bool:
        """Return False: object stores have no links."""
        return False

    def absolute(self) -> ObjectPath:
        """Return this path."""
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:
        """Return this path."""
        return self

    def __fspath__(self) -> str:
        self._refuse()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            f"{self} is on {self.scheme}, but this works with local paths only",
            cure="a local path, or one where it is mounted; docs/how-to/write-to-s3.md says what reads and writes "
            "object stores",
        )

    # pathlib of Python 3.11 passes a path's text to the system, without ``__fspath__``.
    stat = open = mkdir = rmdir = unlink = rename = replace = iterdir = glob = rglob = touch = chmod = _refuse


def place_path(given: str | os.PathLike[str], what: str) -> str:
    """Return a local path, or the normalised URL of a folder on an object store, as text.

    Raises:
        ConfigError: it is neither; the message suggests a replacement.

    >>> place_path("s3:/bucket/out/", "x"), place_path("file:///data/out", "x"), place_path("out", "x")
    ('s3://bucket/out', '/data/out', 'out')
    >>> place_path("hdfs://node:8020/out", "parquet.directory = 'hdfs://node:8020/out' (spec)")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: parquet.directory = 'hdfs://node:8020/out' (spec) is on hdfs, which is not \
supported. Try: a path where HDFS is mounted (its NFS gateway, or FUSE), or s3://… through an S3 gateway such as Ozone's
    """
    if isinstance(given, ObjectPath):
        return str(given)
    text = os.fspath(given)
    if _LOOKS_SO.match(url := text.strip()):  # with a leading blank, it would be a local path
        return _object_url(url, what)
    scheme = text.partition(":/")[0].lower() if ":/" in text else ""
    if scheme in _CURES:
        raise ConfigError(f"{what} is on {scheme}, which is not supported", cure=_CURES[scheme])
    return local_path(text, what)


def _object_url(text: str, what: str) -> str:
    found = _OBJECT.fullmatch(text)
    if found is None or {".", ".."} & {*found[3].split("/")}:
        raise ConfigError(
            f"{what} is not the URL of a folder on an object store",
            cure="s3://bucket/name, gs://bucket/name or az://container/name, without a query, a user or ..",
        )
    if not found[3]:
        raise ConfigError(f"{what} is a whole bucket: a directory has a name in it", cure=f"{text.rstrip('/')}/name")
    return f"{found[1]}://{found[2]}{found[3]}"


def place(given: str | os.PathLike[str], name: str = "directory") -> Path:
    """Return a folder that was passed to a function, as a local path or an :class:`ObjectPath`.

    Raises:
        ConfigError: as :func:`place_path`.
    """
    text = place_path(given, f"{name} = {str(given)!r}")
    return ObjectPath(text) if is_object_url(text) else Path(text)


def is_object_url(text: str) -> bool:
    """Return whether a text is a URL on an object store.

    >>> is_object_url("s3://bucket/out"), is_object_url("/data/out")
    (True, False)
    """
    return _LOOKS_SO.match(text) is not None
