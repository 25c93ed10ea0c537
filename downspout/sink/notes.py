"""Small state that a sink's directory keeps beside its log. None of it decides which rows exist.

* ``runs.json`` holds the settings of the runs that wrote here, the latest first; equal runs are noted once. An audit
  needs them: the topic of the dead letters, the broker, the file of the bolts that dropped a record. Secrets
  (:func:`~downspout.settings.secrets.is_secret`) are left out; references to secrets (``env:NAME``) are kept.
* ``skips.json`` holds the offsets that ``downspout offsets seek --sink DIR`` skipped, so that an audit does not report
  them as missing. A seek notes them only after its commit, and a seek back removes them. A group may also return to
  them without telling this directory, so a noted range counts only while it has no row (:func:`still_skipped`).
* ``commits/`` holds the highest commits of each group; ``downspout/spout/commit_stores.py`` compares them with Kafka's.
* ``offsets/`` holds the offsets of groups whose ``kafka.offset_store`` is this directory: rows and offsets are moved,
  copied and backed up together.

An unreadable file counts as empty: a missing note makes an audit report a gap, an invented one would hide data loss.
"""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from downspout import offset_ranges
from downspout.component import OF_SPOUT, RUN, SINKS
from downspout.engine.graph import Graph
from downspout.engine.settings import Settings, reads
from downspout.errors import SinkError, coordinates
from downspout.kafka.port import OffsetAndMetadata, TopicPartition
from downspout.offset_ranges import OffsetRanges
from downspout.settings.folders import of_project
from downspout.settings.layers import FILE_NAME, Resolved, from_file
from downspout.settings.secrets import is_secret
from downspout.settings.table import CLIENT_PREFIX, SETTINGS, parse_scope
from downspout.sink.layout import OURS, Layout, temporary_name
from downspout.sink.log import CommitLog
from downspout.sink.log_entry import Stream, from_document, in_form, listed, text, to_document, whole
from downspout.sink.object_store import storage_of
from downspout.sink.storage import Disk, Storage
from downspout.spout.ports import OffsetStoreError, StaleOwnerError, StoreContext, StoredOffset
from downspout.spout.settings import dead_letter_topic

RUNS_MAX = 10  # Runs with different settings that are remembered, the latest ones
FORMAT = 1
IN_THE_TOPOLOGY = frozenset({"component", "topology", "default"})
"""Sources of values that the topology's file gives again, whenever it is read."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """The settings of a run that matter to readers of its output."""

    topology: str = ""
    # the topology's file, relative to the folder it was run in where it lies below that; empty: not known
    file: str = ""
    cls: str = ""  # the class in it
    # of each Kafka spout that leads to the sink, its settings ``kafka.…``
    spouts: Mapping[str, Values] = field(default_factory=dict)
    # of each component, what was given for this run and is not in the topology's file
    settings: Mapping[str, Values] = field(default_factory=dict)

    @property
    def dead_letter_topics(self) -> list[str]:
        """The topics in which its spouts put dead letters, each once.

        >>> Run("words", spouts={"a": {"kafka.group": "g"}, "b": {}}).dead_letter_topics
        ['g.dead-letters', 'words.dead-letters']
        """
        found = (
            dead_letter_topic(parse_scope(values, "kafka"), self._group(values)) for values in self.spouts.values()
        )
        return list(dict.fromkeys(topic for topic in found if topic))

    @property
    def groups(self) -> list[str]:
        """The consumer groups of its spouts, each once."""
        return list(dict.fromkeys(map(self._group, self.spouts.values())))

    def _group(self, values: Values) -> str:
        return str(values.get("kafka.group") or self.topology)

    @property
    def topics(self) -> list[str]:
        """The topics that its spouts name."""
        return list(dict.fromkeys(topic for values in self.spouts.values() for topic in _topics(values)))

    @property
    def selections(self) -> list[str]:
        """The topics and patterns of its spouts; empty if one has neither, since then they are unknown."""
        found = [[*_topics(values), *_pattern(values)] for values in self.spouts.values()]
        return list(dict.fromkeys(text for one in found for text in one)) if all(found) else []

    def selects(self, topic: str) -> bool:
        """Return whether one of its spouts reads a topic.

        >>> run = Run("words", spouts={"a": {"kafka.topics": ["x"]}, "b": {"kafka.pattern": "y.*"}})
        >>> [run.selects(topic) for topic in ("x", "yes", "z")], run.selections
        ([True, True, False], ['x', 'y.*'])
        """
        patterns = [pattern for values in self.spouts.values() for pattern in _pattern(values)]
        return topic in self.topics or any(_matches(pattern, topic) for pattern in patterns)

    @property
    def access(self) -> dict[str, Any]:
        """How its spouts reached Kafka: ``kafka.bootstrap`` and ``kafka.client.…``; empty if they differ."""
        ways = [
            {key: value for key, value in values.items() if key == "kafka.bootstrap" or key.startswith(CLIENT_PREFIX)}
            for values in self.spouts.values()
        ]
        return ways[0] if ways and all(way == ways[0] for way in ways) else {}

    def overrides(self) -> list[str]:
        """Return the ``--set`` options that repeat this run's settings, without those in ``downspout.toml``.

        >>> given = {"parquet.directory": "out", "parquet.partition_by": ["day"]}
        >>> Run(settings={"reader": given, "sink": {**given, "parquet.rows_max": 7}}).overrides()
        ['parquet.directory=out', 'parquet.partition_by=day', 'sink:parquet.rows_max=7']
        """
        stored = from_file(Path(FILE_NAME)).values
        given: dict[str, dict[str, str]] = {}  # by key and component
        for name, values in self.settings.items():
            for key, value in values.items():
                # What a spout emits follows from the topology, and changes no row.
                if key not in ("kafka.emit", SINKS, RUN) and stored.get(key) != value:
                    given.setdefault(key, {})[name] = _as_option(value)
        options = []
        for key, by_name in sorted(given.items()):
            # What was given for all reaches those too that do not read it, and may not be given to one of them.
            shared = max(by_name.values(), key=[*by_name.values()].count) if len(by_name) > 1 else None
            is_for_all = len(by_name) == len(self.settings) and shared is not None
            options += [f"{key}={shared}"] if is_for_all else []
            options += [f"{name}:{key}={text}" for name, text in by_name.items() if not is_for_all or text != shared]
        return options

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "topology": self.topology, "file": self.file, "class": self.cls,
            "spouts": {name: dict(values) for name, values in self.spouts.items()},
            "settings": {name: dict(values) for name, values in self.settings.items()},
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Any) -> Run:
        """Return what :meth:`to_json` made. It is untrusted."""
        if not isinstance(value, dict):
            raise ValueError(f"{str(value)[:200]!r} is not a run")
        with in_form():
            return cls(
                text(value["topology"]), text(value["file"]), text(value["class"]),
                _by_name(value["spouts"]), _by_name(value["settings"]),
            )  # fmt: skip


def _as_option(value: Any) -> str:
    """Return a value as ``--set`` takes it."""
    if isinstance(value, list) and not any("," in str(each) for each in value):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _topics(values: Values) -> list[str]:
    """Return the topics that a spout names; ``sparse -o`` gives them as one text."""
    return SETTINGS["kafka.topics"].parse(values.get("kafka.topics"), "run") or []


def _pattern(values: Values) -> list[str]:
    return [str(values["kafka.pattern"])] if values.get("kafka.pattern") else []


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:  # the spout refuses it
        return True


def spout_values(values: Values) -> dict[str, Any]:
    """Return the settings of a Kafka spout to record, without secrets.

    >>> spout_values({"kafka.group": "g", "kafka.retries_max": 3, "kafka.client.sasl_plain_password": "hush"})
    {'kafka.group': 'g'}
    """
    return {
        key: value
        for key, value in sorted(values.items())
        if (key in OF_SPOUT or key.startswith(CLIENT_PREFIX)) and value is not None and not is_secret(key, value)
    }


def hand_over_run(graph: Graph, settings: Settings, confs: Mapping[str, dict[str, Any]]) -> None:
    """Put the settings of a run into the configuration of each of its sinks, which writes them down; and tell each
    Kafka spout where these write, to note its commits there.
    """
    given = {name: _given(resolved) for name, resolved in settings.components.items()}
    given = {name: values for name, values in given.items() if values}
    for name, component in graph.components.items():
        if not reads(component, "parquet"):
            continue
        upstream = graph.upstream([name])
        spouts = {
            spout.name: spout_values(settings.components[spout.name].values)
            for spout in graph.spouts
            if spout.name in upstream and reads(spout, "kafka")
        }
        confs[name][RUN] = Run(graph.name, graph.file, graph.cls, spouts, given).to_json()
        for spout_name in spouts:
            confs[spout_name].setdefault(SINKS, []).append(confs[name].get("parquet.directory"))


def _given(resolved: Resolved) -> dict[str, Any]:
    """Return the values that were given for this run alone."""
    return {
        key: value
        for key, value in sorted(resolved.values.items())
        if resolved.sources[key] not in IN_THE_TOPOLOGY and not key.startswith("run.") and not is_secret(key, value)
    }


def run_of(conf: Mapping[str, Any]) -> Run | None:
    """Return the run that a sink is part of, from its configuration; None if the engine does not set it."""
    if (told := conf.get(RUN)) is None:
        return None
    run = Run.from_json(told)
    if run.topology:
        return run
    # On Storm a spec tells what the topology's file says (``downspout/wire/specs.py``); the name, and what was given
    # with ``sparse -o``, are in the configuration that all components share.
    shared = spout_values({key: value for key, value in conf.items() if key.startswith("kafka.")})
    spouts = {name: {**shared, **spout_values(values)} for name, values in run.spouts.items()}
    return replace(run, topology=str(conf.get("topology.name", "")), spouts=spouts)


def read_runs(directory: Path, disk: Storage | None = None) -> list[Run]:
    """Return the recorded runs of a directory, the latest first; none if they cannot be read."""
    try:
        return [Run.from_json(one) for one in _read(Layout(directory).runs, disk or storage_of(directory), "runs")]
    except (OSError, ValueError):
        return []


def _read(path: Path, disk: Storage, key: str) -> list[Any]:
    """Return what a file of notes lists. Raises OSError or ValueError."""
    return listed(from_document(disk.read(path), FORMAT).get(key))


def _replace(layout: Layout, path: Path, key: str, values: Sequence[Any], disk: Storage, writer: str) -> None:
    """Write a file of notes in the place of the one before. Raises OSError."""
    disk.replace(path, to_document({"format": FORMAT, key: values}), layout.staging / temporary_name(writer, 0))


def note_run(directory: Path, run: Run, disk: Storage, writer: str) -> None:
    """Add a run in front of a directory's recorded ones.

    The race: all tasks of a sink do this when they start, in any number of processes. All write the same, and a file
    takes the place of the other whole.

    Raises:
        OSError: the disk refused.
    """
    known = read_runs(directory, disk)
    if known[:1] == [run]:
        return
    runs = [run, *(one for one in known if one != run)][:RUNS_MAX]
    layout = Layout(directory)
    _replace(layout, layout.runs, "runs", [one.to_json() for one in runs], disk, writer)


def _by_name(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise ValueError(f"{str(value)[:200]!r} are no settings by component")
    return {name: dict(one) for name, one in value.items()}


Source = tuple[str, str, int]
"""Topic, Kafka's id of it, partition."""


class SeekStep(NamedTuple):
    """What a seek does to a partition."""

    source: Source
    skipped: OffsetRanges  # will not be read
    again: OffsetRanges  # will be read again


def read_skips(directory: Path, disk: Storage | None = None) -> dict[Source, OffsetRanges]:
    """Return the offsets that were skipped on purpose; empty without notes."""
    try:
        return dict(map(_from_json, _read(Layout(directory).skips, disk or storage_of(directory), "skips")))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def noted_of(skips: Mapping[Source, OffsetRanges], topic: str, topic_id: str, partition: int) -> OffsetRanges:
    """Return what is noted of a partition; an id that one side does not know may be any."""
    return offset_ranges.union(
        *(
            ranges
            for (name, known, number), ranges in skips.items()
            if (name, number) == (topic, partition) and (known == topic_id or not (known and topic_id))
        )
    )


def still_skipped(noted: OffsetRanges, rows: OffsetRanges) -> OffsetRanges:
    """Return the ranges without a row. A range with some rows was read again, and the rest of it may be lost.

    >>> still_skipped([(3, 6), (8, 9)], [(0, 3), (5, 6)])
    [(8, 9)]
    """
    touched = offset_ranges.intersect(noted, rows)
    return [each for each in noted if not offset_ranges.intersect([each], touched)]


def note_skips(directory: Path, steps: Iterable[SeekStep], log: CommitLog, writer: str) -> None:
    """Add the offsets that a seek skipped and that have no row; remove those that will be read again.

    Raises:
        SinkError: the disk refused, or the log is damaged.
    """
    log.refresh()
    disk = log.disk
    skips = read_skips(directory, disk)
    for source, skipped, again in steps:
        rows = covered(log, *source)
        before = offset_ranges.subtract(still_skipped(skips.get(source, []), rows), again)
        skips[source] = offset_ranges.union(before, offset_ranges.subtract(skipped, rows))
    noted = [
        {"topic": topic, "topic_id": topic_id, "partition": partition, "offsets": [list(each) for each in ranges]}
        for (topic, topic_id, partition), ranges in sorted(skips.items())
        if ranges
    ]
    layout = Layout(directory)
    try:
        _replace(layout, layout.skips, "skips", noted, disk, writer)
    except OSError as error:
        raise SinkError(
            f"{layout.skips} cannot be written: {error.strerror}", cure="make room, or grant the right"
        ) from error


def rows_of(directory: Path) -> CommitLog:
    """Return the log of a sink's directory, up to now.

    Raises:
        SinkError: the directory has no log, or it is damaged.
    """
    log = CommitLog(directory)
    log.refresh()
    if not log.length:
        raise SinkError(f"{directory} has no commit log", cure="the directory that parquet.directory names")
    return log


def covered(log: CommitLog, topic: str, topic_id: str, partition: int) -> OffsetRanges:
    """Return the offsets of a partition that have a row: their records are skipped."""

    def matches(stream: Stream) -> bool:
        same_topic = stream.topic_id == topic_id or not (stream.topic_id and topic_id)
        return (stream.topic, stream.partition) == (topic, partition) and same_topic

    return offset_ranges.union(*(log.coverage.ranges(stream) for stream in log.coverage.streams() if matches(stream)))


def _from_json(value: Any) -> tuple[Source, OffsetRanges]:
    source = text(value["topic"]), text(value["topic_id"]), value["partition"]
    ranges = [(start, end) for start, end in listed(value["offsets"])]
    numbers = [source[2], *(bound for each in ranges for bound in each)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(value)
    return source, offset_ranges.union(ranges)


# --- offsets: of commits, and of groups that are stored here ---
#
# Each change creates a new numbered file with all offsets of a group, exclusively, like a log entry. So of two writers
# one is first, and the other reads the new state and tries again.
#
# Old files are removed, all but the last :data:`KEPT`. The race: a process reads file 7 and is paused, while others go
# on to 500 and remove 8; then it creates 8, which succeeds. That has no effect, since the highest number counts. So a
# writer checks that its file is among the last; if not, it makes the change again.

T = TypeVar("T")
PREFIX = "parquet:///"
KEPT = 100
NAME = re.compile(r"(\d{20})\.json")
State = dict[TopicPartition, StoredOffset]


def open_directory_store(location: str, context: StoreContext) -> DirectoryStore:
    """Open the store of a directory: ``parquet:///out``."""
    directory = of_project(location.removeprefix(PREFIX), context.setting, {})
    return DirectoryStore(directory, context.group)


class DirectoryStore:
    """The offsets of one consumer group. See :class:`~downspout.spout.ports.OffsetStore`."""

    def __init__(self, directory: Path, group: str, disk: Disk | None = None, folder: Path | None = None) -> None:
        self.location = f"{PREFIX}{directory}"
        self._disk, self._group = disk or Disk(), group
        self._folder = folder or directory / OURS / "offsets" / f"group-{quote(group, safe='')}"
        self._is_durable = False

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Return the entries of these partitions."""
        return {tp: stored for tp, stored in self.list().items() if tp in partitions}

    def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Claim all or none."""

        def change(state: State) -> State:
            for tp in partitions:
                before = state.get(tp, StoredOffset(None))
                state[tp] = before._replace(epoch=before.epoch + 1)
            return {tp: state[tp] for tp in partitions}

        return self.change(change) if partitions else {}

    def store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store all or none."""

        def change(state: State) -> None:
            for tp, stored in offsets.items():
                if (before := state.get(tp)) is not None and before.epoch > stored.epoch:
                    place = coordinates(tp.topic, tp.partition)
                    raise StaleOwnerError(
                        f"{self.location}: {place} of group {self._group} was claimed by another process (epoch "
                        f"{stored.epoch} has ended); nothing was stored",
                        cure="one topology for each group",
                    )
            state.update(offsets)

        if offsets:
            self.change(change)

    def list(self) -> Mapping[TopicPartition, StoredOffset]:
        """Return all of the group."""
        try:
            _, state = self._read()
        except OSError as error:
            raise self._error(error) from error
        return {tp: stored for tp, stored in sorted(state.items()) if stored.offset is not None}

    def delete(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all or none."""

        def change(state: State) -> None:
            for tp in partitions:
                state.pop(tp, None)

        if partitions:
            self.change(change)

    def close(self) -> None:
        """Nothing is open."""

    def change(self, change: Callable[[State], T]) -> T:
        """Change the present state; if another was first, change the new state. Returns the result of ``change``."""
        try:
            self._make_folder()
            while True:
                number, state = self._read()
                result = change(state)
                if self.put(number + 1, state):
                    return result
        except OSError as error:
            raise self._error(error) from error

    # --- files ------------------------------------------------------------------------------------------

    def put(self, number: int, state: State) -> bool:
        """Create a file; return whether it exists and counts."""
        # The token makes each file one that nobody else would write.
        document = {"format": FORMAT, "token": uuid.uuid4().hex, "offsets": [[*tp, *state[tp]] for tp in sorted(state)]}
        temporary = self._folder / f".{uuid.uuid4().hex}"
        if not self._disk.put_if_absent(self._path(number), to_document(document), temporary):
            return False
        numbers = self._numbers()
        counts = numbers[-1] - number < KEPT
        for old in numbers[:-KEPT]:
            self._disk.remove(self._path(old))
        return counts

    def _read(self) -> tuple[int, State]:
        """Return the highest number, and what its file holds."""
        while numbers := self._numbers():
            path = self._path(numbers[-1])
            try:
                return numbers[-1], _state(from_document(self._disk.read(path), FORMAT))
            except FileNotFoundError:
                continue  # others have gone on, by so much that it is removed
            except ValueError as error:
                raise OffsetStoreError(
                    f"{path} cannot be read: {error}",
                    cure="restore it from a backup; or remove it: the one before holds",
                ) from None
        return -1, {}

    def _numbers(self) -> Sequence[int]:
        return sorted(int(found[1]) for name in self._disk.names(self._folder) if (found := NAME.fullmatch(name)))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020}.json"

    def _make_folder(self) -> None:
        """Make the folder durable: else a power cut may take it, with all that is in it."""
        if self._is_durable:
            return
        self._disk.make_folder(self._folder)
        for place in (self._folder, *list(self._folder.parents)[:4]):
            self._disk.sync(place)
        self._is_durable = True

    def _error(self, error: OSError) -> OffsetStoreError:
        return OffsetStoreError(
            f"{self.location}: {error.strerror or error} ({error.filename or self._folder})",
            cure="a folder that this user may write, with room on the disk",
        )


def _state(document: Mapping[str, Any]) -> State:
    """Parse a file. It is untrusted: malformed content raises ValueError."""
    found: State = {}
    for row in listed(document.get("offsets")):
        topic, partition, offset, metadata, epoch = listed(row)
        tp = TopicPartition(text(topic), whole(partition))
        found[tp] = StoredOffset(None if offset is None else whole(offset), text(metadata), whole(epoch))
    return found


class SinkNotes:
    """See :class:`~downspout.spout.ports.CommitNotes`."""

    def __init__(self, directory: Path, group: str) -> None:
        self.directory, self._group, self._disk = directory, group, Disk()

    def _store(self) -> DirectoryStore | None:
        """Return where they are; None before a sink has opened the directory. It may have begun a new log meanwhile."""
        layout = Layout(self.directory)
        if not self._disk.exists(layout.log):
            return None
        folder = layout.home / "commits" / f"group-{quote(self._group, safe='')}"
        return DirectoryStore(self.directory, self._group, self._disk, folder)

    def read(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the highest commit that was about to be made, of each partition."""
        stored = store.list() if (store := self._store()) else {}
        return {
            tp: OffsetAndMetadata(each.offset, each.metadata, -1)
            for tp, each in stored.items()
            if each.offset is not None
        }

    def note(self, commits: Mapping[TopicPartition, OffsetAndMetadata], *, lower: bool = False) -> None:
        """Note commits that are about to be made."""
        if (store := self._store()) is None:
            return

        def change(state: State) -> None:
            for tp, commit in commits.items():
                if lower or tp not in state or commit.offset >= (state[tp].offset or 0):
                    state[tp] = StoredOffset(commit.offset, commit.metadata)

        store.change(change)

    def without_rows(self, partition: TopicPartition, done: OffsetRanges) -> OffsetRanges:
        """Return what of this has no row, and was not skipped on purpose; rows of an earlier topic count, too."""
        rows = self._covered(partition)
        noted = noted_of(read_skips(self.directory, self._disk), partition.topic, "", partition.partition)
        known = offset_ranges.union(rows, still_skipped(noted, rows))
        return offset_ranges.subtract(done, known)

    def has_rows(self, partition: TopicPartition) -> bool:
        """Return whether there is a row of any record of a partition."""
        return bool(self._covered(partition))

    def _covered(self, partition: TopicPartition) -> OffsetRanges:
        log = CommitLog(self.directory, self._disk)
        log.refresh()
        return covered(log, partition.topic, "", partition.partition)

    def cure(self) -> str:
        """Return the command that reads records again, with what was given to the latest run."""
        run = next(iter(read_runs(self.directory, self._disk)), Run())
        keys = re.compile(r"([^=]*:)?kafka\.(group|start\w*)=")
        given = [option for option in run.overrides() if not keys.match(option)]
        given += [f"kafka.group={self._group}.again", "kafka.start=EARLIEST"]
        options = [part for option in given for part in ("--set", option)]
        return shlex.join(["downspout", "run", run.file or "TOPOLOGY.py", *options, "--until", "end"])
