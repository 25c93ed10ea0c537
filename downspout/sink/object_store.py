"""Sinks' files on S3, Google Cloud Storage or Azure Blob Storage through ``obstore`` (docs/decisions/0007).

A request happens whole or not at all, but its answer may be lost. Then the sender does not know the outcome, and the
request may even arrive after the sender has given up. Therefore:

* ``put_if_absent`` compares the stored object with the content it sent, which no other writer would send.
* A data file that an entry may name is never deleted because a request failed: see ``SinkWriter._flush``.
* ``rename`` copies and then removes, so a file may be in both places. Names are never reused, so repeating either step
  late changes nothing.

:func:`storage_of` resolves a directory to its storage. By default the stores' own configuration applies: the variables
``AWS_…``, ``GOOGLE_…`` and ``AZURE_…``, an Amazon profile (``AWS_PROFILE``, ``~/.aws``), and the role of the machine or
container. ``parquet.storage_options`` overrides it, with the names that ``obstore`` uses.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from downspout.errors import ConfigError, MissingExtraError
from downspout.settings.object_path import ObjectPath
from downspout.settings.secrets import REFERENCE, STORAGE_OPTIONS, is_open_option, with_secrets
from downspout.settings.table import SETTINGS
from downspout.sink.storage import Disk, Storage

ATTEMPTS = 4
"""How often a request is sent whose answer broke off, or an entry whose answer was lost, beside the client's own."""
CONFLICT_PAUSE_S = 0.1  # Before a request is sent again that met another one; twice as long each time
CAUSE_CHARS_MAX = 300
LARGE = 1 << 20

_Answer = TypeVar("_Answer")


class TornError(OSError):
    """An answer broke off."""


class ObjectStore:
    """One bucket. It is a :class:`~downspout.sink.storage.Storage`."""

    is_remote = True

    def __init__(self, client: Any, endpoint: str = "", *, large: Any = None) -> None:
        self.client = client  # a store of ``obstore``, of the whole bucket
        self._large = large or client  # the same with time for large objects
        self._endpoint = endpoint  # where it is, if not where its provider's stores are

    def named(self, directory: Path) -> str:
        """Return the directory and the endpoint."""
        return f"{directory} at {_PASSWORD.sub('://…@', self._endpoint)}" if self._endpoint else str(directory)

    # --- one request each -------------------------------------------------------------------------------

    def _request(self, kind: str, path: Path, send: Callable[[], _Answer]) -> _Answer:
        """Send a request and wait for its answer; every request passes here.

        Raises:
            OSError: with a number and the path, as for a local file.
        """
        import obstore.exceptions as refused

        for attempt in range(ATTEMPTS):
            try:
                return send()
            except (refused.BaseError, OSError) as error:
                failed = as_os_error(kind, path, error)
            # The client below asks again after most failures, but not after an answer that broke off.
            if not isinstance(failed, TornError) or kind in ("create", "page") or attempt == ATTEMPTS - 1:
                raise failed
        raise AssertionError("the last attempt returns or raises")

    def write(self, path: Path, content: bytes) -> None:
        """Write an object whole; it is durable when this returns."""
        import obstore

        # In one request: a multipart upload that is stopped leaves parts that are paid for and that no listing shows.
        client = self._large if len(content) > LARGE else self.client
        self._request("put", path, lambda: obstore.put(client, _key(path), content, use_multipart=False))

    def _create(self, path: Path, content: bytes) -> None:
        """Write an object whole. Raises FileExistsError: there is one."""
        import obstore

        put = obstore.put
        self._request("create", path, lambda: put(self.client, _key(path), content, mode="create", use_multipart=False))

    def _copy(self, source: Path, target: Path) -> None:
        import obstore

        self._request("copy", source, lambda: obstore.copy(self.client, _key(source), _key(target)))

    def remove(self, path: Path) -> None:
        """Remove an object that may be gone already."""
        import obstore

        with suppress(FileNotFoundError):  # Google's and Azure's stores say so, S3 does not
            self._request("delete", path, lambda: obstore.delete(self.client, _key(path)))

    def read(self, path: Path) -> bytes:
        """Return the content of an object."""
        import obstore

        client = self.client if path.suffix == ".json" else self._large
        return self._request("get", path, lambda: bytes(obstore.get(client, _key(path)).bytes()))

    def _head(self, path: Path) -> Any:
        import obstore

        return self._request("head", path, lambda: obstore.head(self.client, _key(path)))

    def _list(self, folder: Path, after: str | None = None) -> Iterator[Any]:
        """Yield what a listing says of the objects below a folder, page by page."""
        import obstore

        failures = 0
        pages = obstore.list(self.client, _key(folder), offset=after)
        while True:
            try:
                page = self._request("page", folder, lambda: next(pages))  # noqa: B023
            except StopIteration:
                return
            except TornError:
                if (failures := failures + 1) == ATTEMPTS:
                    raise
                pages = obstore.list(self.client, _key(folder), offset=after)
                continue
            if page:
                after, failures = page[-1]["path"], 0
            # An object ``folder/`` stands for the folder itself: consoles make one. It comes without its slash.
            yield from (meta for meta in page if meta["path"] != _key(folder))

    def _list_folder(self, folder: Path) -> list[str]:
        """Return the keys of the objects and of the folders in a folder."""
        import obstore

        listed = self._request("list", folder, lambda: obstore.list_with_delimiter(self.client, _key(folder)))
        return [*listed["common_prefixes"], *(meta["path"] for meta in listed["objects"])]

    # --- made of them -----------------------------------------------------------------------------------

    def make_folder(self, folder: Path) -> None:
        """Do nothing: a folder exists once an object is in it."""

    def sync(self, path: Path) -> None:
        """Do nothing: answered writes are durable."""

    def link(self, source: Path, target: Path) -> None:
        """Raise OSError: an object has one name."""
        raise OSError(errno.ENOTSUP, "an object store has no links", str(source))

    def rename(self, source: Path, target: Path) -> None:
        """Give an object another name: copy it there, then remove it here.

        If it stops between the two, the object is in both places, and the next process that opens the directory renames
        it again. Two at once do it twice, which is harmless.
        """
        self._copy(source, target)
        self.remove(source)

    def put_if_absent(self, path: Path, content: bytes, temporary: Path) -> bool:
        """Create an object, unless one has that name; return whether the existing one is ours.

        The race: the request arrives and its answer is lost. Resent, by us or by the client below us, it meets its own
        object and fails because the name is taken. So the stored object is compared with ours.
        """
        for attempt in range(ATTEMPTS):
            try:
                self._create(path, content)
                return True
            except FileExistsError:
                doubt = OSError(errno.EBUSY, "other requests for it were under way each time", str(path))
            except OSError as error:
                doubt = error
            # It may be there, or arrive yet (``Storage.is_remote``): look, and send it again if it is not there.
            try:
                return self.read(path) == content
            except FileNotFoundError:
                # S3 answers 409 to a request that meets another one for that name, which then may fail itself.
                if doubt.errno == errno.EBUSY:
                    time.sleep(CONFLICT_PAUSE_S * 2**attempt)
            except OSError as unseen:
                raise (unseen if doubt.errno == errno.EBUSY else doubt) from None
        raise doubt

    def replace(self, path: Path, content: bytes, temporary: Path) -> None:
        """Write an object, replacing any of that name."""
        self.write(path, content)

    def exists(self, path: Path) -> bool:
        """Return whether there is an object of that name, or any below it."""
        return self._has_object(path) or self.has_names(path)

    def names(self, folder: Path, at_least: str = "") -> list[str]:
        """Return what is in a folder; with ``at_least`` the listing begins there, so that a long one is short."""
        if at_least:
            # ``offset`` leaves out the key itself, and those names end in something: none is equal to it.
            found = self._list(folder, f"{_key(folder)}/{at_least}")
            return sorted({_below(meta["path"], folder).partition("/")[0] for meta in found})
        return [_below(key, folder).rstrip("/") for key in self._list_folder(folder) if key != _key(folder)]

    def has_names(self, folder: Path) -> bool:
        """Return whether there is any object below a folder."""
        return next(self._list(folder), None) is not None

    def files_below(self, folder: Path, without: str = "") -> Iterator[Path]:
        """Yield all objects below a folder; of those in ``without`` no more than a page is listed."""
        for meta in self._list_without(folder, without) if without else self._list(folder):
            path = folder / _below(meta["path"], folder)
            if meta["size"] or self._has_object(path):  # else it stands for a folder, as in :meth:`_list`
                yield path

    def _list_without(self, folder: Path, without: str) -> Iterator[Any]:
        skipped = f"{_key(folder)}/{without}"
        for meta in self._list(folder):
            if meta["path"].startswith(f"{skipped}/"):  # stores list by name, and "0" comes next to "/"
                yield from self._list(folder, f"{skipped}0")
                return
            yield meta

    def _has_object(self, path: Path) -> bool:
        """Return whether there is an object of that name; a folder is none."""
        try:
            self._head(path)
        except FileNotFoundError:
            return False
        return True

    def modified(self, path: Path) -> float:
        """Return when an object was written, by the store's clock; 0.0 for one that is gone."""
        try:
            return float(self._head(path)["last_modified"].timestamp())
        except FileNotFoundError:
            return 0.0

    changed = modified
    """A copy is written when it is made."""


def _key(path: Path) -> str:
    if not isinstance(path, ObjectPath):
        raise TypeError(f"{path} is not in an object store")
    return path.key


def _below(key: str, folder: Path) -> str:
    return key.removeprefix(f"{_key(folder)}/")


def as_os_error(kind: str, path: Path, error: Exception) -> OSError:
    """Return an error of the client as Python would raise it for a local file, with the store's own words."""
    import obstore.exceptions as refused

    text = _PASSWORD.sub("://…@", " ".join(str(error).partition("Debug source:")[0].split()))
    text = _TRIES.sub(r"\1: ", text)
    if isinstance(error, refused.NotFoundError | FileNotFoundError) and "NoSuchBucket" not in text:
        if kind in ("get", "head", "copy", "delete"):
            return FileNotFoundError(errno.ENOENT, "it is not there", str(path))
        return OSError(errno.ENXIO, f"there is no bucket of that name ({_short(text)})", str(path))
    if isinstance(error, refused.AlreadyExistsError | refused.PreconditionError | FileExistsError):
        return FileExistsError(errno.EEXIST, "it is there already", str(path))
    for number, what, signs in _CAUSES:
        if any(sign in text for sign in signs):
            return OSError(number, f"{what} ({_short(text)})", str(path))
    denied = isinstance(error, refused.PermissionDeniedError | refused.UnauthenticatedError)
    if denied or _DENIED.search(text):  # of a listing the client says by its text alone what was answered
        return PermissionError(errno.EACCES, f"the store refuses to {kind} ({_short(text)})", str(path))
    if _REFUSED.search(text):
        return OSError(errno.EIO, f"the request to {kind} failed ({_short(text)})", str(path))
    made = TornError if _TORN.search(text) and "status code" not in text else OSError
    return made(errno.ETIMEDOUT, f"the request to {kind} failed ({_short(text)})", str(path))


_TORN = re.compile(r"response body|body error|invalid \w+ response", re.IGNORECASE)
_DENIED = re.compile(r"status code: 40[13]\b")
_REFUSED = re.compile(r"status code: (4(?!08|09|25|29)|501)")
"""Answers that the same request gets again. Others pass, and so does no answer."""
_PASSWORD = re.compile(r"://[^/@ ]*@")
"""An endpoint may have one in it; the client's errors name the whole URL."""
_TRIES = re.compile(r"^Generic \w+ error: Error performing (\S+ \S+) in .*? - ")
"""How the client begins: how often it tried, and what it was told about retries."""
_CAUSES = (
    (errno.ENXIO, "there is no bucket of that name", ("NoSuchBucket",)),
    (errno.EACCES, "no credentials were found", ("169.254.169.254", "169.254.170", "metadata.google", "Unable to")),
    (errno.EACCES, "the credentials are expired", ("ExpiredToken", "TokenRefreshRequired")),
    (errno.EACCES, "the credentials are wrong", ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")),
)
"""What a user can act on, by words of the store's answer."""


def _short(text: str) -> str:
    """Return the beginning of a long text: the request, its target and the answer."""
    return text if len(text) <= CAUSE_CHARS_MAX else f"{text[:CAUSE_CHARS_MAX]}…"


REQUEST_TIMEOUT_S = {False: 20.0, True: 120.0}
"""Of a request, by whether it carries a large object. On a connection that was cut only this ends the wait."""
RETRIES: dict[str, Any] = {
    "max_retries": 14,
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
}
RETRY_S = 60.0
"""How long a request is sent again after an answer 429 or 5xx, or a lost connection, with growing pauses."""
SINK_RETRY_S = 10.0
"""The same for a sink, which tries its flush again by itself and must not keep the loop for long."""

VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")
"""How the names of the variables begin from which ``obstore`` takes what no option says."""


def storage_of(directory: Path, options: Iterable[str] | None = None, retry_s: float = RETRY_S) -> Storage:
    """Return the storage that a directory is on.

    Args:
        directory: a local path, or an :class:`~downspout.settings.object_path.ObjectPath`.
        options: ``parquet.storage_options``; None: that setting from the environment.
        retry_s: how long a request is retried.

    Raises:
        ConfigError: an option is malformed, unknown, or a secret in plain text.
        MissingExtraError: ``obstore`` is not installed.

    >>> type(storage_of(Path("out"))).__name__
    'Disk'
    """
    if not isinstance(directory, ObjectPath):
        return Disk()
    setting = SETTINGS[STORAGE_OPTIONS]
    given = setting.parse(options or os.environ.get(setting.env) or [], "environment")
    found = tuple(sorted(resolve(given).items()))
    # The client reads these variables once, when it is made: where they have changed since, there must be another one.
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES)))
    endpoint = dict(found).get("endpoint") or dict(variables).get("AWS_ENDPOINT_URL") or ""
    small, large = (
        _client(directory.scheme, directory.bucket, found, variables, retry_s, timeout_s)
        for timeout_s in REQUEST_TIMEOUT_S.values()
    )
    return ObjectStore(small, endpoint, large=large)


def resolve(options: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return options by name, with references to secrets resolved.

    >>> resolve(["endpoint=http://127.0.0.1:9000", "secret_access_key=env:KEY"], {"KEY": "hush"})
    {'endpoint': 'http://127.0.0.1:9000', 'secret_access_key': 'hush'}
    >>> resolve(["secret_access_key=hush"])
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: parquet.storage_options: secret_access_key is not a reference to a secret, and \
settings are visible in many places. Try: secret_access_key=env:NAME or file:PATH, looked up where the component runs
    """
    found: dict[str, str] = {}
    for position, option in enumerate(options, 1):
        name, equals, value = option.partition("=")
        name = name.strip().lower()
        if not equals or not name or not value:
            # It is not quoted: it may be a secret that lost its name, such as one with a comma in it.
            raise ConfigError(
                f"{STORAGE_OPTIONS}: option {position} is not name=value", cure="endpoint=https://host:9000"
            )
        if is_open_option(f"{name}={value}"):
            raise ConfigError(
                f"{STORAGE_OPTIONS}: {name} is not a reference to a secret, and settings are visible in many places",
                cure=f"{name}=env:NAME or file:PATH, looked up where the component runs",
            )
        found[name] = _looked_up(name, value, environ)
    return found


def _looked_up(name: str, value: str, environ: Mapping[str, str] | None) -> str:
    if not REFERENCE.match(value):
        return value
    try:
        return str(with_secrets({f"kafka.client.{name}": value}, environ)[f"kafka.client.{name}"])
    except ConfigError as error:
        message = error.message.replace("kafka.client.", f"{STORAGE_OPTIONS}: ")
        raise ConfigError(message, cure=error.cure) from None


@lru_cache(maxsize=32)
def _client(
    scheme: str,
    bucket: str,
    options: tuple[tuple[str, str], ...],
    variables: tuple[tuple[str, str], ...],
    retry_s: float,
    timeout_s: float,
) -> Any:
    """Return the client of a bucket: one for each process, since it holds connections and credentials."""
    try:
        from obstore import store as stores
        from obstore.exceptions import BaseError
    except ImportError:
        raise MissingExtraError(
            f"{scheme}://{bucket} needs obstore, which is not installed", cure="pip install 'downspout[cloud]'"
        ) from None
    config: Any = dict(options)
    http: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
    endpoint = config.get("endpoint") or dict(variables).get("AWS_ENDPOINT_URL") or ""
    if endpoint.startswith("http://"):
        http["allow_http"] = True
    retries = {**RETRIES, "retry_timeout": timedelta(seconds=retry_s)}
    common: dict[str, Any] = {"client_options": http, "retry_config": retries}
    try:
        if scheme == "s3":
            return stores.S3Store(bucket, config=config, credential_provider=_profile(config), **common)
        if scheme == "gs":
            return stores.GCSStore(bucket, config=config, **common)
        return stores.AzureStore(bucket, config=config, **common)
    except (BaseError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{scheme}://{bucket} cannot be used: {' '.join(str(error).partition('Debug source')[0].split())[:300]}",
            cure=f"correct {STORAGE_OPTIONS}, or the variables of the environment that say how the store is reached",
        ) from None


def _profile(config: Mapping[str, Any]) -> Any:
    """Return what looks up a profile's credentials; None where there is no profile, or keys are given."""
    if "access_key_id" in config or "skip_signature" in config or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", os.path.expanduser("~/.aws/credentials"))
    if not os.environ.get("AWS_PROFILE") and not os.path.exists(file):
        return None
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise MissingExtraError(
            "a profile of ~/.aws needs boto3, which is not installed",
            cure="pip install 'downspout[cloud]'; or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        ) from None
    try:
        return Boto3CredentialProvider(boto3.Session())
    except Exception as error:
        raise ConfigError(f"the profile of ~/.aws cannot be used: {error}", cure="correct AWS_PROFILE") from None
