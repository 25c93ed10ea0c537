"""Values that were written with a schema registry: Confluent's wire format, and the registry's HTTP.

A value begins with a zero byte and the schema's id in four bytes; with Protobuf, the index of the message in the schema
follows. The rest is the document. The schema of an id never changes, so it is requested once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa

from downspout.errors import ConfigError, MissingExtraError, UnavailableError
from downspout.parse import parser
from downspout.parse.binary_columns import Decoder, Schema
from downspout.parse.columns import Ints, Mask
from downspout.parse.flat import Block
from downspout.parse.json import Paths
from downspout.parse.parser import ChunkParser, Part
from downspout.sink.schema import Columns

if TYPE_CHECKING:
    from downspout.parse.binary_columns import BinaryColumns

HEADER = 5  # Bytes: a zero, and the schema's id
REQUEST_S = 5.0  # A whole answer, however slowly it comes
ANSWER_BYTES_MAX = 16 * 1024 * 1024
REDIRECTS_MAX = 5
REFERENCES_MAX = 1_000  # Schemas that one refers to, by way of others too
PAUSE_S_MAX = 10.0  # Between two requests of a registry that does not answer, and of an id that it does not know
_UNKNOWN = {40401, 40402, 40403}
"""By these codes a registry says that it has no such subject, version or schema. A 404 without is not a registry's."""


class UnknownSchemaError(ValueError):
    """The registry has no such schema."""


class Registry:
    """A client of a schema registry.

    Args:
        urls: its URL; several, separated by commas, are one registry and are tried in turn.
        password: for the user in the URL.

    Raises:
        ConfigError: this is not a URL, or a password is in it.
        MissingExtraError: httpx is not installed.
    """

    def __init__(self, urls: str, password: str | None = None) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError(
                "a schema registry needs the package httpx", cure="pip install 'downspout[avro]', or [protobuf]"
            ) from error
        self._urls = [_base(url.strip()) for url in urls.split(",")]
        self._clients = [self._client(httpx, url, password) for url in self._urls]

    @staticmethod
    def _client(httpx: Any, url: str, password: str | None) -> Any:
        parts = httpx.URL(url)
        auth = httpx.BasicAuth(parts.username, password or "") if parts.username else None
        bare = parts.copy_with(username=None, password=None)
        return httpx.Client(
            base_url=bare, auth=auth, timeout=REQUEST_S, follow_redirects=True, max_redirects=REDIRECTS_MAX
        )

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return ",".join(self._urls)

    def schema(self, number: int) -> Schema:
        """Return the schema with an id.

        Raises:
            UnknownSchemaError: there is none.
            UnavailableError: the registry does not answer, or refuses.
        """
        answer = self._get(f"schemas/ids/{number}", f"schema id {number}")
        found: dict[str, str] = {}
        self._collect(answer, found, ())
        return Schema(answer.kind, answer.text, tuple(found.items()))

    def _collect(self, schema: _Answer, found: dict[str, str], inside: tuple[str, ...]) -> None:
        """Add the schemas that one refers to, each after those that it refers to itself."""
        for name, subject, version in schema.references:
            if name in found or name in inside:
                continue
            if len(found) + len(inside) >= REFERENCES_MAX:
                raise UnknownSchemaError(f"{name}: the schema refers to more than {REFERENCES_MAX:,} others")
            answer = self._get(
                f"subjects/{quote(subject, safe='')}/versions/{version}", f"version {version} of {subject}"
            )
            self._collect(answer, found, (*inside, name))
            found[name] = answer.text

    def _get(self, path: str, what: str) -> _Answer:
        import httpx

        reason = ""
        for client in self._clients:
            url = str(client.base_url.join(path))
            try:
                status, phrase, content = _fetched(client, path)
                if status == 404 and _error_code(content) in _UNKNOWN:
                    raise UnknownSchemaError(f"{what} is unknown to the registry {self.location}")
                if status == 200:
                    return _Answer.of(content)
                reason = f"{url} answers {status} {phrase}".rstrip()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = f"{url}: {str(error) or type(error).__name__}"
            except _NoRegistryError as error:
                reason = f"{url} does not answer like a schema registry: {error}"
        cure = "parse.registry, a user's name in it and parse.registry_password, or the registry itself"
        raise UnavailableError(f"the registry {self.location} cannot provide {what}: {reason}", cure=cure)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()


class _NoRegistryError(Exception):
    """The answer is not a registry's. Records are not the cause, so the caller waits, as if the registry were down."""


@dataclass(frozen=True)
class _Answer:
    """A schema as a registry gives it."""

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]  # names, subjects, versions

    @classmethod
    def of(cls, content: bytes) -> _Answer:
        try:
            found = orjson.loads(content)
            kind, text = found.get("schemaType") or "AVRO", found["schema"]
            references = tuple(
                (each["name"], each["subject"], each["version"]) for each in found.get("references") or ()
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _NoRegistryError(f"{content[:60]!r}") from None
        texts = (kind, text, *(name for name, _, _ in references), *(subject for _, subject, _ in references))
        if not all(isinstance(each, str) for each in texts) or not all(
            type(number) is int for *_, number in references
        ):
            raise _NoRegistryError(f"{content[:60]!r}")
        return cls(kind, text, references)


def _fetched(client: Any, path: str) -> tuple[int, str, bytes]:
    """Return status, its phrase and content of an answer that is not too long and does not take too long."""
    end = time.monotonic() + REQUEST_S
    with client.stream("GET", path) as answer:
        content = bytearray()
        for part in answer.iter_bytes():
            content += part
            if len(content) > ANSWER_BYTES_MAX:
                raise _NoRegistryError(f"more than {ANSWER_BYTES_MAX:,} bytes")
            if time.monotonic() > end:
                raise _NoRegistryError(f"it did not end within {REQUEST_S:g} s")
        return answer.status_code, answer.reason_phrase, bytes(content)


def _error_code(content: bytes) -> int | None:
    try:
        found = orjson.loads(content)
        return found.get("error_code") if isinstance(found, dict) else None
    except ValueError:
        return None


def _base(url: str) -> str:
    """Return a registry's URL with one slash at its end.

    >>> _base("http://registry:8081")
    'http://registry:8081/'
    """
    if not re.match(r"https?://[^\s/]+", url):
        raise ConfigError(f"parse.registry: {url!r} is not a URL", cure="http://registry:8081")
    if re.match(r"https?://[^/@]*:[^/@]*@", url):
        raise ConfigError(
            "parse.registry holds a password, which would be seen wherever settings are shown",
            cure="parse.registry_password=env:NAME or file:PATH, and https://user@registry as the URL",
        )
    return url.rstrip("/") + "/"


class Documents:
    """Decodes values into documents.

    An unknown schema is remembered for a while. So is a registry that is down, which then gets no other requests,
    either. Values with cached schemas go on meanwhile.

    Args:
        registry: the source of schemas.
        reader_schema: of Avro, as which values are read.
    """

    def __init__(self, registry: Registry, reader_schema: str | None = None) -> None:
        self._registry = registry
        self._reader_schema = reader_schema
        self._decoders: dict[int, Decoder] = {}
        self._bad: dict[int, str] = {}  # schemas that cannot be used, and why
        self._failed: dict[int | None, tuple[float, Exception]] = {}  # when to ask again; None: for any schema
        self._pause_s = 0.0

    def read(self, value: Any) -> dict[str, Any]:
        """Return the document in a value.

        Raises:
            ValueError: it has no document, or none of its schema; or the schema does not exist.
            UnavailableError: its schema is not cached yet, and the registry is down.
        """
        if not isinstance(value, bytes):
            raise ValueError("it is text, but a registry's values are bytes (kafka.value_format=bytes)")
        if len(value) < HEADER or value[0]:
            raise ValueError("it does not begin with a zero byte and a schema's id: no registry was used to write it")
        number = int.from_bytes(value[1:HEADER], "big")
        decoder = self._decoders.get(number) or self._decoder(number)
        try:
            return decoder.decode(value[HEADER:])
        except ValueError as error:
            raise ValueError(f"it is not of schema {number}: {error}") from error

    def in_columns(self, number: int) -> BinaryColumns | None:
        """Return the column decoder for documents of a schema; None: they are read one by one."""
        with suppress(ValueError, UnavailableError):  # what there is to say is said of each value
            return (self._decoders.get(number) or self._decoder(number)).columns
        return None

    def _decoder(self, number: int) -> Decoder:
        if number in self._bad:
            raise ValueError(self._bad[number])
        for key in (None, number):
            until, before = self._failed.get(key, (0.0, None))
            if before is not None and time.monotonic() < until:
                raise before
        try:
            schema = self._registry.schema(number)
        except (UnknownSchemaError, UnavailableError) as error:
            self._pause_s = min(max(0.1, 2 * self._pause_s), PAUSE_S_MAX)
            key = None if isinstance(error, UnavailableError) else number
            self._failed[key] = time.monotonic() + self._pause_s, error
            raise
        self._failed.clear()
        self._pause_s = 0.0
        try:
            self._decoders[number] = made = decoder_of(schema, self._reader_schema)
        except ValueError as error:
            self._bad[number] = f"schema {number} cannot be used: {error}"
            raise ValueError(self._bad[number]) from error
        return made


def decoder_of(schema: Schema, reader_schema: str | None) -> Decoder:
    """Return the decoder of a schema's documents.

    Raises:
        ValueError: the schema is invalid, or of an unknown kind.
        MissingExtraError: the library for it is not installed.
    """
    if schema.kind == "AVRO":
        from downspout.parse.avro import avro_decoder

        return avro_decoder(schema, reader_schema)
    if schema.kind == "PROTOBUF":
        from downspout.parse.protobuf import protobuf_decoder

        return protobuf_decoder(schema)
    if schema.kind == "JSON":
        return Decoder(_json_object)
    raise ValueError(f"its kind is {schema.kind}; AVRO, PROTOBUF and JSON are read")


def _json_object(content: bytes) -> dict[str, Any]:
    """Return a JSON object. Its schema is the producer's affair: what the columns need is checked against them."""
    document = orjson.loads(content)
    if type(document) is not dict:
        raise ValueError("a JSON object is needed")
    return document


class RegistryParser(ChunkParser):
    """Parses values with a registry's schemas into declared columns."""

    def __init__(self, documents: Documents, paths: Paths, columns: Columns) -> None:
        super().__init__(columns)
        self._documents = documents
        self._paths = paths

    def read(self, value: Any) -> Sequence[Any]:
        """Return the values of the fields."""
        return read_fields(value, self._documents, self._paths)

    def _trim(self, data: Any, starts: Ints, ends: Ints) -> None:
        pass

    def _is_plain(self, data: Any, starts: Ints, ends: Ints) -> Mask:
        length = ends - starts
        plain: Mask = (length >= HEADER) & (length < parser.LARGE)
        plain[plain] = data[starts[plain]] == 0
        return plain

    def _fast(self, texts: Any, data: Any, starts: Ints, ends: Ints, rows: Ints, parts: list[Part]) -> Ints:
        numbers = data[starts[rows, None] + np.arange(1, HEADER)].view(">u4").ravel()
        left = [np.empty(0, dtype=np.int64)]
        for number in np.unique(numbers):
            some = rows[numbers == number]
            if len(some) >= parser.ROWS_MIN:
                some = self._by_column(int(number), data, starts[some] + HEADER, ends[some], some, parts)
            left.append(some)
        return np.concatenate(left)

    def _by_column(self, number: int, data: Any, starts: Ints, ends: Ints, rows: Ints, parts: list[Part]) -> Ints:
        """Decode rows of one schema a column at a time; return those that must be read by themselves."""
        reader = self._documents.in_columns(number)
        places = reader.paths(self._paths.paths) if reader is not None else None
        if reader is None or places is None:
            return rows
        fits, arrays = reader.parse(Block(data, starts, ends), places, self._columns.columns)
        if fits.any():
            kept = pa.array(fits)
            parts.append((rows[fits], arrays if fits.all() else [made.filter(kept) for made in arrays]))
        return rows[~fits]


def read_fields(value: Any, documents: Documents, paths: Paths) -> list[Any]:
    """Return the values of the fields in one value; its error says of what it is."""
    try:
        return paths.of(documents.read(value))
    except ValueError as error:
        raise ValueError(f"value is not as expected: {error}") from error
