"""Which storage a directory is on, and how an object store is reached: endpoint, region and credentials.

Where nothing is given, the stores' usual ways hold: ``AWS_ACCESS_KEY_ID`` and the other variables ``AWS_…``,
``GOOGLE_…`` and ``AZURE_…``, of Amazon also a profile (``AWS_PROFILE``, ``~/.aws``), and the role of the machine or
container. ``parquet.storage_options`` says what is different, in the words of ``obstore``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError, MissingExtraError
from downspout.settings.object_path import ObjectPath
from downspout.settings.secrets import REFERENCE, STORAGE_OPTIONS, is_open_option, with_secrets
from downspout.settings.table import SETTINGS
from downspout.sink.storage.disk import Disk
from downspout.sink.storage.object_store import ObjectStore
from downspout.sink.storage.port import Storage

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
        options: what ``parquet.storage_options`` says; None: what the environment says of that setting.
        retry_s: how long a request is sent again.

    Raises:
        ConfigError: an option is malformed, unknown, or a secret in the open.
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
    """Return options by name, with secrets in the place of the references to them.

    >>> resolve(["endpoint=http://127.0.0.1:9000", "secret_access_key=env:KEY"], {"KEY": "hush"})
    {'endpoint': 'http://127.0.0.1:9000', 'secret_access_key': 'hush'}
    >>> resolve(["secret_access_key=hush"])
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: parquet.storage_options: secret_access_key is no reference to a secret, and settings \
are seen in many places. Try: secret_access_key=env:NAME or file:PATH, looked up where the component runs
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
                f"{STORAGE_OPTIONS}: {name} is no reference to a secret, and settings are seen in many places",
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
