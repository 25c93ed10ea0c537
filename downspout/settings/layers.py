"""The layers of settings (command line, environment, topology, file, table), and the names of Storm's settings."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.formatting import nearest
from downspout.settings.secrets import is_secret
from downspout.settings.table import (
    CLIENT_PREFIX,
    ENV_PREFIX,
    SCOPES,
    SETTINGS,
    TABLE,
    check_key,
    check_number,
    env_name,
)

# --- Storm's settings ---


PREFIX = "topology."
PART_CUTOFF = 0.85
CUTOFF = 0.7
NAMES = """
acker.cpu.pcore.percent acker.executors acker.resources.offheap.memory.mb acker.resources.onheap.memory.mb
auto-credentials auto.task.hooks backpressure.check.millis backpressure.enable backpressure.wait.park.microsec
backpressure.wait.progressive.level1.count backpressure.wait.progressive.level2.count
backpressure.wait.progressive.level3.sleep.millis backpressure.wait.strategy batch.flush.interval.millis
blobstore.map bolt.wait.park.microsec bolt.wait.progressive.level1.count bolt.wait.progressive.level2.count
bolt.wait.progressive.level3.sleep.millis bolt.wait.strategy bolts.late.tuple.stream bolts.message.id.field.name
bolts.tuple.timestamp.max.lag.ms bolts.watermark.event.interval.ms bolts.window.length.count
bolts.window.length.duration.ms bolts.window.sliding.interval.count bolts.window.sliding.interval.duration.ms
builtin.metrics.bucket.size.secs classpath classpath.beginning component.cpu.pcore.percent component.resources.map
component.resources.onheap.memory.mb debug disable.loadaware.messaging enable.message.timeouts
enable.send.iconnection.metrics enable.v2.metrics.tick environment error.throttle.interval.secs
event.logger.register eventlogger.executors executor.overflow.limit executor.receive.buffer.size
fall.back.on.java.serialization groups isolate.machines kryo.decorators kryo.factory kryo.register
localityaware.higher.bound localityaware.lower.bound logging.config logging.sensitivity
max.error.report.per.interval max.replication.wait.time.sec max.spout.pending max.task.parallelism
message.timeout.secs metrics.consumer.cpu.pcore.percent metrics.consumer.register
metrics.consumer.resources.offheap.memory.mb metrics.consumer.resources.onheap.memory.mb metrics.reporters
min.replication.count multilang.log.handler multilang.serializer name oci.image priority producer.batch.size
python.path ras.acker.executors.per.worker ras.constraint.max.state.search ras.constraint.max.time.secs
ras.constraints ras.one.component.per.worker ras.one.executor.per.worker ras.order.executors.by.proximity.needs
readonly.groups readonly.users scheduler.favored.nodes scheduler.strategy scheduler.unfavored.nodes
serialized.message.size.metrics shellbolt.max.pending skip.missing.kryo.registrations
sleep.spout.wait.strategy.time.ms spout.recvq.skips spout.wait.park.microsec spout.wait.progressive.level1.count
spout.wait.progressive.level2.count spout.wait.progressive.level3.sleep.millis spout.wait.strategy spread.components
state.checkpoint.interval.ms state.kryo.register state.provider state.provider.config
state.synchronization.timeout.secs stats.sample.rate submitter.principal submitter.user subprocess.timeout.secs
tasks testing.always.try.serialize tick.tuple.freq.secs transactional.id transfer.batch.size transfer.buffer.size
trident.batch.emit.interval.millis trident.windowing.cache.tuple.limit tuple.serializer users
v2.metrics.tick.interval.seconds version worker.childopts worker.gc.childopts worker.logwriter.childopts
worker.max.heap.size.mb worker.metrics worker.nimbus.thrift.client.use.tls worker.shared.thread.pool.size
worker.timeout.secs workers
"""
"""The ``topology.`` keys of Storm 2.8's ``org.apache.storm.Config``, and those that streamparse adds."""
KNOWN = frozenset(NAMES.split())


def meant(key: str) -> str | None:
    """Return the Storm setting that an unknown key resembles; None: it is known, or resembles none.

    Keys are compared part by part, so one that lacks a part, or has a wrong unit, is similar.

    >>> [meant(f"topology.{name}") for name in ("debugg", "message.timeout.ms", "ackers", "debug", "region")]
    ['topology.debug', 'topology.message.timeout.secs', 'topology.acker.executors', None, None]
    >>> meant("storm.message.timeout.secs"), meant("storm.local.dir")
    ('topology.message.timeout.secs', None)
    """
    prefix, _, name = key.partition(".")
    if prefix == "storm" and name in KNOWN:
        return PREFIX + name
    if prefix != "topology" or name in KNOWN:
        return None
    close = {known: found for known in KNOWN if (found := _closeness(name, known)) >= CUTOFF}
    near = max(close, key=lambda known: (close[known] + _ratio(name, known), known), default=None)
    return None if near is None else PREFIX + near


def _closeness(name: str, known: str) -> float:
    """Return the similarity of the parts of a name to those of a known one, 0 to 1; a weak match counts half."""
    others = known.split(".")
    best = [max(_ratio(part, other) for other in others) for part in name.split(".")]
    return sum(ratio if ratio >= PART_CUTOFF else ratio / 2 for ratio in best) / len(best)


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


# --- Layers ---


FILE_NAME = "downspout.toml"
ENV_RESERVED = frozenset({"DOWNSPOUT_HOME", "DOWNSPOUT_CACHE", "DOWNSPOUT_OFFLINE", "DOWNSPOUT_PROJECT"})
"""Our environment variables that are not settings: folders for state, cached jars and the project, and "never
download"."""
TABLES = SCOPES | {CLIENT_PREFIX[:-1]}
"""Keys that are tables in the file."""
CLIENT_TEXT = re.compile(
    r"(api_version|sasl_|ssl_(?!check_hostname)|security_protocol|client_id|client_rack|proxy_url)"
)


def client_value(key: str, value: Any) -> Any:
    """Parse the text given for a key outside the table: JSON if it is valid JSON, so that 30 is a number.

    Properties that the client takes as text stay text: a password may look like a number.

    >>> client_value("kafka.client.fetch_min_bytes", "30"), client_value("kafka.client.sasl_plain_password", "030e1")
    (30, '030e1')
    """
    if key.startswith(CLIENT_PREFIX) and CLIENT_TEXT.match(key.removeprefix(CLIENT_PREFIX).replace(".", "_")):
        return value
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return value


@dataclass(frozen=True)
class Layer:
    """One source of values; its name is for messages."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """The effective values for one component, and the source of each."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]


def resolve(layers: Sequence[Layer]) -> Resolved:
    """Merge layers, strongest first, and the table's defaults.

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
                value = None  # not set, which the component reports
            if key not in values:
                values[key] = SETTINGS[key].parse(value, layer.name) if key in SETTINGS else value
                sources[key] = layer.name
    for setting in TABLE:
        if setting.key not in values:
            values[setting.key] = setting.default
            sources[setting.key] = "default"
    return Resolved(values, sources)


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the environment.

    >>> from_environment({"DOWNSPOUT_KAFKA_CLIENT_FETCH_MIN_BYTES": "4096", "HOME": "/"}).values
    {'kafka.client.fetch_min_bytes': 4096}
    """
    by_env = {env_name(key): key for key in SETTINGS}
    values: dict[str, Any] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX) or name in ENV_RESERVED:
            continue
        client = ENV_PREFIX + "KAFKA_CLIENT_"
        if name in by_env:
            values[by_env[name]] = value
        elif name.startswith(client):
            key = CLIENT_PREFIX + name.removeprefix(client).lower()
            # Settings are displayed and sent to other machines, so a secret stays a reference.
            values[key] = f"env:{name}" if is_secret(key, value) else client_value(key, value)
        else:
            cure = nearest(name, by_env, "`downspout settings` lists all", 0.5)
            raise ConfigError(f"unknown setting {name} (environment)", cure=cure)
    return Layer("environment", values)


def from_file(path: Path) -> Layer:
    """Return the settings of a TOML file (``[kafka]``, then ``group = "x"``); none if it is missing."""
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
        if key in TABLES:
            cure = f"[{key}], and below it what belongs there: NAME = VALUE"
            raise ConfigError(f"{key} ({path.name}) is a table, not a value", cure=cure)
        check_key(key, path.name)
    return Layer(path.name, values)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def from_command_line(pairs: Sequence[str]) -> dict[str, Layer]:
    """Return the ``--set`` options as layers by component; the key ``""`` stands for all.

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


def from_mapping(values: Mapping[str, Any], source: str) -> dict[str, Layer]:
    """Return settings from a program as layers by component, like :func:`from_command_line`.

    >>> from_mapping({"kafka.group": "g", "flights:kafka.start": "LATEST"}, "config")["flights"].values
    {'kafka.start': 'LATEST'}
    """
    layers: dict[str, dict[str, Any]] = {"": {}}
    for name, value in values.items():
        component, _, key = name.rpartition(":")
        layers.setdefault(component, {})[key] = value
    return {component: Layer(source, given) for component, given in layers.items()}
