"""Secrets in settings: how they are recognised, hidden and resolved."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.settings.table import CLIENT_PREFIX, SETTINGS

SECRET = re.compile(
    r"(passw(or)?d|pwd|passphrase|secret|token|credentials?|jaas[._]config|keytab|authorization|connection[._-]?string"
    r"|(api|access|account|auth|encryption|keystore|private|secret|shared|signing)[._-]?key([._-]?id)?)\Z",
    re.IGNORECASE,
)
REFERENCE = re.compile(r"(env|file):.")
HIDDEN = "…"
REFERENCES_ONLY = tuple(key for key in SETTINGS if key.endswith("password"))
"""Our settings that accept only references to secrets."""
PASSWORD_IN_URL = re.compile(
    r"://[^/?#@:]*:(?!\d{1,5}/)(?:(?!\?\w+=)[^@])*@"
    r"|[?&;][\w.-]*(passw(or)?d|pwd|secret|token|credential|signature|(api|access|account|auth|private)[._-]?key)[\w.-]*="
    r"|[?&;]sig="
    r"|://(?=[^/?#@:]*\d)(?=[^/?#@:]*[A-Za-z])[\w.~%+=-]{20,}@",
    re.IGNORECASE,
)
"""A password or similar in a URL, or a user name that is a token (long, with letters and digits). Matches passwords
with unescaped ``/``, ``?`` or ``#``, which URL parsers miss, but neither ``host:port/path`` nor an ``@`` in an option.
"""


STORAGE_OPTIONS = "parquet.storage_options"
OPEN_OPTION = re.compile(
    r"([^=]*,)?\s*[^=,]*(key|secret|token|password|credential|service_account|authorization|sas|client_options)[^=,]*="
    r"(?!(env|file):.)",
    re.IGNORECASE,
)
"""An option of an object store that is a secret in plain text."""


def is_open_option(option: str) -> bool:
    """Return whether an option of an object store is a secret in plain text, by its name or in a URL.

    >>> is_open_option("secret_access_key=hush"), is_open_option("endpoint=http://me:hush@minio:9000")
    (True, True)
    """
    return OPEN_OPTION.match(option) is not None or PASSWORD_IN_URL.search(option) is not None


def _hides_option(option: str) -> bool:
    """Return whether to hide an option: a secret in plain text, or a malformed option, which may be part of one.

    >>> _hides_option("region=us-east-1"), _hides_option("hush"), _hides_option("=hush")
    (False, True, True)
    """
    return is_open_option(option) or not option.partition("=")[0].strip() or "=" not in option


def is_secret(key: str, value: Any) -> bool:
    """Return whether to hide the value of a setting; references to secrets are shown.

    >>> is_secret("kafka.client.sasl_plain_password", "hush"), is_secret("kafka.client.ssl_password", "env:P")
    (True, False)
    >>> is_secret("kafka.client.proxy_url", "http://me:hush@proxy:80"), is_secret("kafka.sasl.jaas.config", "…;")
    (True, True)
    >>> is_secret("sql.database", "postgresql://me:hush@db/flights"), is_secret("sql.database", "postgresql://me@db/x")
    (True, False)
    >>> urls = ["https://r/?token=hush", "https://r/?a=1&api_key=hush", "https://s/c?sv=1&sig=hush"]
    >>> [is_secret("parse.registry", url) for url in [*urls, "https://ghp_16C7e42F292c6912E7710c838347Ae@r/"]]
    [True, True, True, True]
    >>> [is_secret("sql.database", f"postgresql://db/x?ssl{end}") for end in ("password=hush", "mode=require")]
    [True, False]
    >>> is_secret(STORAGE_OPTIONS, ["region=x", "access_key_id=hush"]), is_secret(STORAGE_OPTIONS, ["token=env:T"])
    (True, False)
    >>> [is_secret(f"x.{name}", "hush") for name in ("api_key", "accessKey", "ssl.keystore.key", "keys", "key_field")]
    [True, True, True, False, False]
    """
    if key == STORAGE_OPTIONS and value:
        return any(map(_hides_option, value.split(",") if isinstance(value, str) else map(str, value)))
    if value is None or value == "" or (isinstance(value, str) and REFERENCE.match(value)):
        return False
    if SECRET.search(key) is not None or ("proxy" in key and "@" in str(value)):
        return True
    return isinstance(value, str) and PASSWORD_IN_URL.search(value) is not None


def shown(key: str, value: Any) -> Any:
    """Return the value of a setting for display.

    >>> shown("kafka.client.sasl_plain_password", "hush"), shown("kafka.group", "g")
    ('…', 'g')
    """
    return HIDDEN if is_secret(key, value) else value


def resolve_client(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's properties with resolved secrets, by their names without a prefix.

    Raises:
        ConfigError: as :func:`with_secrets`.
    """
    conf = with_secrets({CLIENT_PREFIX + name: value for name, value in properties.items()})
    return {name.removeprefix(CLIENT_PREFIX): value for name, value in conf.items()}


def with_secrets(conf: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Resolve the references to secrets in a configuration.

    A configuration is visible in many places (Storm's UI and logs, `downspout check`), and is sent with the topology.
    So properties of the Kafka client may be, and passwords of databases must be, ``env:NAME`` or ``file:PATH``, which
    is resolved where the component runs.

    >>> with_secrets({"kafka.client.sasl_plain_password": "env:P", "kafka.group": "env:x"}, {"P": "secret"})
    {'kafka.client.sasl_plain_password': 'secret', 'kafka.group': 'env:x'}
    """
    environ = os.environ if environ is None else environ
    found = dict(conf)
    for key, value in conf.items():
        if key in REFERENCES_ONLY and value is not None and not (isinstance(value, str) and REFERENCE.match(value)):
            raise ConfigError(
                f"{key} is not a reference to a secret, and settings are visible in many places",
                cure=f"{key}=env:NAME or file:PATH, looked up where the component runs",
            )
        if not key.startswith((CLIENT_PREFIX, *REFERENCES_ONLY)) or not isinstance(value, str):
            continue
        if not REFERENCE.match(value):
            continue
        kind, _, name = value.partition(":")
        if kind == "env":
            if name not in environ:
                raise ConfigError(
                    f"{key} = {value!r}: {name} is not in the environment", cure=f"set {name} where the component runs"
                )
            found[key] = environ[name]
        elif kind == "file":
            try:
                found[key] = Path(name).read_text(encoding="utf-8").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                cure = "a file that exists where the component runs"
                raise ConfigError(f"{key} = {value!r} cannot be read: {error}", cure=cure) from None
    return found
