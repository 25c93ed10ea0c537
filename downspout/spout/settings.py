"""The settings of a spout, and what they mean together: its group, its guarantee, the offsets that they name.

==============  ==================================  =======================================================
guarantee       what is committed                   what a crash, or a failed tuple, does
==============  ==================================  =======================================================
AT_LEAST_ONCE   what is acked, on the timer         comes again
AT_MOST_ONCE    what is read, before it is emitted  is lost, and never comes twice
NO_GUARANTEE    what is read, on the timer, without  is lost or comes again
                waiting for the broker's answer
AUTO_COMMIT     what is read, by the client itself  is lost or comes again; the client does not say what it commits
==============  ==================================  =======================================================

Only AT_LEAST_ONCE uses acks and fails. With the others an offset is done as soon as it is emitted, so the limit on
uncommitted offsets is never reached. With all of them, a planned stop or hand-over commits what was emitted.

Whether settings contradict each other is checked in ``downspout.spout.findings``.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from downspout.clock import Clock
from downspout.errors import USER_ERRORS, ConfigError, coordinates
from downspout.kafka.clusters import is_scheme
from downspout.kafka.port import Gathering, TopicPartition
from downspout.ledger.metadata import BYTES_MAX
from downspout.ledger.retry_schedule import FOR_EVER, Backoff, RetryPolicy
from downspout.settings.table import load
from downspout.spout.partition import RENEW_MS, Makers
from downspout.wire.side_streams import FLUSH, TRANSACTIONS


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a processing guarantee decides."""

    tracks: bool = False  # acks and fails decide what is committed, and what is read again
    before_emit: bool = False  # what was read is committed before any of it is emitted
    on_timer: bool = False  # the spout commits every ``kafka.commit_period_ms``
    waits: bool = True  # on the timer, it waits for the broker's word
    by_client: bool = False  # the client commits by itself, every ``kafka.commit_period_ms``

    def period_ms(self, settings: Mapping[str, Any]) -> float:
        """Return how often the spout commits by its timer; without end where the client does."""
        if self.by_client:
            return float("inf")
        # Where what is read is committed before it is emitted, the timer only looks whether that has become old.
        return float(settings["commit_period_ms"]) if self.on_timer else RENEW_MS

    def auto_commit_ms(self, settings: Mapping[str, Any]) -> int | None:
        """Return how often the client commits; None where it does not."""
        return int(settings["commit_period_ms"]) if self.by_client else None


GUARANTEES = {
    "AT_LEAST_ONCE": Guarantee(tracks=True, on_timer=True),
    "AT_MOST_ONCE": Guarantee(before_emit=True),
    "NO_GUARANTEE": Guarantee(on_timer=True, waits=False),
    "AUTO_COMMIT": Guarantee(by_client=True),
}
NAME_MAX = 100  # characters of a topology or component in the name of a static member: Kafka takes 249 in all
INSTANCE = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z_][A-Za-z0-9_-]*\.\d+\.\d+")
UI_KEYS = ("config.topics", "config.groupid", "config.bootstrap.servers")
"""What Storm's UI looks for in a spout's configuration; nothing else reads it."""


class EmitMode:
    """One value of ``kafka.emit``: what a tuple of a KafkaSpout holds, and all that follows from it.

    A mode is chosen once (:func:`downspout.spout.tuples.choose_mode`); nothing else compares the setting's values.
    """

    name: ClassVar[str]
    """The value of ``kafka.emit``."""
    columns: ClassVar[bool]
    """Whether the consumer returns columns, and a tuple holds several records."""

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise a ConfigError if other settings of the scope ``kafka`` rule this mode out."""

    def check_transactional(self, settings: Mapping[str, Any], sink: str) -> None:
        """Raise a ConfigError if a transactional KafkaBolt cannot commit in this mode; ``sink`` begins the text."""

    def fit(self, settings: dict[str, Any], pending_max: int) -> dict[str, Any]:
        """Return the settings with limits that fit ``topology.max.spout.pending`` (0: none) and each other."""
        return settings

    def gathering(self, client: Mapping[str, Any]) -> Gathering | None:
        """Return how much a broker gathers for a fetch; None: what the client's properties say."""
        return None

    def room(self, settings: Mapping[str, Any], pending_max: int, out: int, in_flight: Callable[[], int]) -> int:
        """Return how many tuples may leave before ``topology.max.spout.pending`` records are out.

        Args:
            out: tuples without an answer.
            in_flight: returns how many records are out. O(partitions).
        """
        raise NotImplementedError

    def makers(self, settings: Mapping[str, Any], topic: str, topic_id: str) -> Makers:
        """Return the functions that make tuples of a topic's records."""
        raise NotImplementedError

    def emitter(self, services: Any, component: str, clock: Clock, **parts: Any) -> Any:
        """Return the emitter; ``parts`` as for :class:`~downspout.spout.emit_records.RecordEmitter`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Setup:
    """The checked settings of one task."""

    # those of the scope ``kafka``; secrets among them, so no text of this holds them
    settings: Mapping[str, Any] = field(repr=False)
    topology: str  # its name
    group: str  # the consumer group
    # the static member's name, ``topology.component.index.member``: the same after a restart, another for each task
    instance: str
    index: int  # which of the component's tasks this is, from 0
    tasks: int
    identity: Identity  # who commits
    bounded: bool  # whether the run ends at the end of the log as of the start
    timeout_ms: float  # a tuple that is out for so long has timed out
    pending_max: int  # Storm's limit of open tuples per task, here of records; 0: none, or no ackers, which it needs
    # where the sinks of the topology write: commits are noted there; none where they are kept in a store
    sinks: tuple[Path, ...]
    dead_letter_topic: str  # empty: the run stops at a record that fails for good
    mode: EmitMode  # whether tuples hold records or chunks

    @property
    def joins(self) -> bool:
        """Return whether the consumer group gives out the partitions."""
        return bool(self.settings["mode"] == "subscribe")

    @property
    def guarantee(self) -> Guarantee:
        """Return what the processing guarantee decides."""
        return GUARANTEES[self.settings["guarantee"]]

    @property
    def commits_wait(self) -> bool:
        """Return whether the commits of a spout that runs wait for the broker's answer."""
        return self.guarantee.waits and self.settings["commit"] == "sync"

    @property
    def hand_overs_wait(self) -> bool:
        """Return whether the commit before others get our partitions does."""
        return bool(self.settings["commit"] != "async")

    @property
    def client(self) -> dict[str, Any]:
        """Return the properties for the client: the user's, and what the spout needs."""
        # "none": where reading starts, and what happens when records are gone, is decided here and not by the client.
        ours = {"auto_offset_reset": "none", "session_timeout_ms": self.settings["session_timeout_ms"]}
        users = self.settings["client"]
        return {**users, **ours}


def topology_of(instance: str) -> str:
    """Return the topology in the name of a static member; empty where it is not a spout's.

    >>> topology_of("shop.reader.0.1"), topology_of("consumer-1-c0ffee"), topology_of("10.0.0.1")
    ('shop', '', '')
    """
    found = INSTANCE.fullmatch(instance)
    return found[1] if found else ""


def data_streams(context: Mapping[str, Any]) -> set[str]:
    """Return the streams on which records go: all of the spout's but those by which our components speak."""
    return set(context.get("stream->outputfields") or ()) - {FLUSH, TRANSACTIONS}


def lag_config(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what Storm's UI looks for in a spout's configuration to show its lag; no secret is among it.

    What is not known before the topology runs (an embedded broker, a group named like the topology) is left out.

    >>> lag_config({"topics": ["a", "b"], "group": "g", "bootstrap": "one:9092"})
    {'config.topics': 'a,b', 'config.groupid': 'g', 'config.bootstrap.servers': 'one:9092'}
    """
    bootstrap = settings["bootstrap"] if not is_scheme(settings["bootstrap"]) else None
    topics = ",".join(settings["topics"] or ())
    found = zip(UI_KEYS, (topics, settings["group"], bootstrap), strict=True)
    return {key: value for key, value in found if value}


@dataclass(slots=True)
class MetadataLimit:
    """How much metadata a commit may have, as far as we know."""

    bytes_max: int = BYTES_MAX  # the bound; no metadata is longer
    is_known: bool = False  # whether the broker has taken a commit with it

    def lower(self) -> bool:
        """Halve it; return whether that is less than before. With 0, metadata is empty."""
        before, self.bytes_max = self.bytes_max, self.bytes_max // 2
        self.is_known = False
        return self.bytes_max < before


@dataclass(frozen=True, slots=True)
class Identity:
    """Who commits: goes into the metadata of each commit; and which tasks there are beside it, where that is known."""

    topology_id: str
    task: int
    tasks: frozenset[int] = frozenset()
    metadata_limit: MetadataLimit = field(default_factory=MetadataLimit, compare=False, repr=False)


def pattern_without(dead_letters: str, pattern: str) -> str:
    """Return a pattern that leaves the spout's own dead letters out: it would feed on them for ever.

    >>> made = pattern_without("g.letters", ".*")
    >>> re.fullmatch(made, "orders") is not None, re.fullmatch(made, "g.letters") is not None
    (True, False)
    """
    return rf"(?!{re.escape(dead_letters)}\Z)(?:{pattern})" if dead_letters else pattern


def reading(settings: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the settings by which a spout of this group reads: its pattern leaves its own dead letters out."""
    pattern = settings["pattern"] and pattern_without(dead_letter_topic(settings, group), settings["pattern"])
    return {**settings, "pattern": pattern}


def dead_letter_topic(settings: Mapping[str, Any], group: str) -> str:
    """Return where letters go; empty: the run stops at a record that fails for good.

    >>> dead_letter_topic({"dead_letter_topic": "{group}.dead-letters"}, "shop")
    'shop.dead-letters'
    """
    return str(settings["dead_letter_topic"] or "").replace("{group}", group)


def is_named(settings: Mapping[str, Any], topic: str) -> bool:
    """Return whether a spout's settings name a topic, by name or by pattern.

    >>> is_named({"topics": None, "pattern": "orders-.*"}, "orders-eu")
    True
    """
    topics, pattern = settings["topics"] or (), settings["pattern"]
    return topic in topics or bool(pattern and re.fullmatch(pattern, topic))


ENTRY = re.compile(r"\s*([^\[\]=]+)\[([0-9]{1,9})\]\s*=\s*([0-9]{1,18})\s*")
_SOME = re.compile(r"\s*([^\[\],]+)\[\s*([0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)\s*\]\s*(?:,|\Z)")


def partitions_named(entries: Iterable[str] | None) -> dict[str, frozenset[int]]:
    """Return the partitions that ``kafka.partitions`` names, by topic.

    >>> {topic: sorted(numbers) for topic, numbers in partitions_named(["orders[0,2]", "users[1]"]).items()}
    {'orders': [0, 2], 'users': [1]}
    """
    text, at = ",".join(entries or ()), 0  # the environment gives a list in one text, which was split at each comma
    found: dict[str, frozenset[int]] = {}
    while at < len(text):
        if (match := _SOME.match(text, at)) is None:
            raise ConfigError(
                f"kafka.partitions: {text[at:]!r} does not name partitions of a topic", cure="orders[0,2]"
            )
        topic, numbers = match[1].strip(), frozenset(int(number) for number in match[2].split(","))
        if topic in found:
            raise ConfigError(f"kafka.partitions names {topic} twice", cure="orders[0,2]: all its partitions at once")
        found[topic], at = numbers, match.end()
    return found


def named_alone(settings: Mapping[str, Any], partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return those of the partitions that ``kafka.partitions`` does not leave out: it may name some of a topic."""
    named = partitions_named(settings["partitions"])
    return [tp for tp in partitions if tp.partition in named.get(tp.topic, (tp.partition,))]


def offsets_of(setting: str, entries: Iterable[str] | None) -> dict[TopicPartition, int]:
    """Return the offset of each partition that is named.

    >>> offsets_of("kafka.start_offsets", ["orders[0]=17"])
    {TopicPartition(topic='orders', partition=0): 17}
    >>> offsets_of("kafka.start_offsets", ["orders=17"])
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafka.start_offsets: 'orders=17' is not an offset of a partition. Try: orders[0]=17
    """
    found: dict[TopicPartition, int] = {}
    for entry in entries or ():
        if not (match := ENTRY.fullmatch(entry)):
            raise ConfigError(f"{setting}: {entry!r} is not an offset of a partition", cure="orders[0]=17")
        tp = TopicPartition(match[1], int(match[2]))
        if tp in found:
            raise ConfigError(f"{setting} names {coordinates(*tp)} twice", cure="each partition once")
        found[tp] = int(match[3])
    return found


DELAY_MS_MAX = 86_400_000  # As of the settings


def retries_of(retries_max: int) -> int:
    """Return how many retries a record has, as a number that can be compared: -1 is for ever.

    >>> retries_of(3), retries_of(-1) == FOR_EVER
    (3, True)
    """
    return FOR_EVER if retries_max < 0 else retries_max


def policy_of(settings: Mapping[str, Any], log: logging.Logger) -> RetryPolicy:
    """Return what says how long a record waits for its retry.

    Raises:
        ConfigError: ``kafka.retry_policy`` is no function of a number.
    """
    backoff = Backoff(settings["retry_delay_ms"], settings["retry_delay_ms_max"])
    path = settings["retry_policy"]
    return UserPolicy(path, policy_function(path), backoff, log) if path else backoff


def policy_function(path: str) -> Callable[[int], Any]:
    """Return the function that ``kafka.retry_policy`` names.

    Raises:
        ConfigError: there is none at that path, or it does not take a number alone.
    """
    function = load("kafka.retry_policy", path)
    try:
        inspect.signature(function).bind(1)
    except TypeError:
        raise ConfigError(
            f"kafka.retry_policy: {path} cannot be called with one number", cure="failures -> milliseconds"
        ) from None
    except ValueError:  # some functions that are written in C do not say what they take
        pass
    return function  # type: ignore[no-any-return]


class UserPolicy:
    """A policy of the user's. Where that fails, the settings hold: it must not stop what takes fails."""

    def __init__(self, path: str, function: Callable[[int], Any], backoff: RetryPolicy, log: logging.Logger) -> None:
        self._path = path
        self._function = function
        self._backoff = backoff
        self._log = log
        self._said: set[type[BaseException]] = set()

    def delay(self, failures: int) -> int:
        """Return the wait in ms after ``failures`` failures in all."""
        try:
            made = self._function(max(1, failures))
            if isinstance(made, bool) or not isinstance(made, int | float) or not 0 <= made <= DELAY_MS_MAX:
                raise ValueError(f"it returned {made!r}, which is not a number of milliseconds up to {DELAY_MS_MAX:,}")
        except USER_ERRORS as error:
            if type(error) not in self._said:
                self._said.add(type(error))
                self._log.error(
                    "kafka.retry_policy: %s(%d): %s; kafka.retry_delay_ms applies instead. Try: failures -> "
                    "milliseconds",
                    self._path, failures, error,
                )  # fmt: skip
            return self._backoff.delay(failures)
        return int(made)
