"""What a directory remembers of the runs that wrote to it: ``runs.json`` beside the log.

The commit log says which rows are there. It does not say with which settings they were made, and an audit needs these:
which topic holds the dead letters, where the broker is, which file holds the bolts that dropped a record. So each run
notes them when it opens the directory. The latest run comes first; equal runs are noted once.

The notes are a help for people and for commands, and no part of what is true: without the file, or with one that is
torn, nothing is lost but the help. They hold no secret: values that :func:`~downspout.settings.secrets.is_secret` names
are left out, references to secrets (``env:NAME``) are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from downspout.component import OF_SPOUT, RUN, SINKS
from downspout.engine.graph import Graph
from downspout.engine.settings import Settings, reads
from downspout.settings.layers import FILE_NAME, Resolved, from_file
from downspout.settings.secrets import is_secret
from downspout.settings.table import CLIENT_PREFIX, SETTINGS, parse_scope
from downspout.sink.log.entry import from_document, listed, text, to_document
from downspout.sink.storage.layout import Layout, temporary_name
from downspout.sink.storage.places import storage_of
from downspout.sink.storage.port import Storage
from downspout.spout.settings import dead_letter_topic

__all__ = ["RUN", "Run", "hand_over_run", "note_run", "read_runs", "run_of", "spout_values"]

RUNS_MAX = 10  # Runs with different settings that are remembered, the latest ones
FORMAT = 1
IN_THE_TOPOLOGY = frozenset({"component", "topology", "default"})
"""Sources of values that the topology's file gives again, whenever it is read."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """The settings of a run, as far as they matter to who looks at its output."""

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
            dead_letter_topic(parse_scope(values, "kafka"), str(values.get("kafka.group") or self.topology))
            for values in self.spouts.values()
        )
        return list(dict.fromkeys(topic for topic in found if topic))

    @property
    def topics(self) -> list[str]:
        """The topics that its spouts name."""
        return list(dict.fromkeys(topic for values in self.spouts.values() for topic in _topics(values)))

    @property
    def selections(self) -> list[str]:
        """The topics and patterns of its spouts; none where one of them has neither: then it is not known."""
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
        """How its spouts reached Kafka: ``kafka.bootstrap`` and ``kafka.client.…``; nothing where they differ."""
        ways = [
            {key: value for key, value in values.items() if key == "kafka.bootstrap" or key.startswith(CLIENT_PREFIX)}
            for values in self.spouts.values()
        ]
        return ways[0] if ways and all(way == ways[0] for way in ways) else {}

    def overrides(self) -> list[str]:
        """Return the ``--set`` options that give what was given for this run, but what ``downspout.toml`` says anyway.

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
        try:
            return cls(
                text(value["topology"]), text(value["file"]), text(value["class"]),
                _by_name(value["spouts"]), _by_name(value["settings"]),
            )  # fmt: skip
        except KeyError as error:
            raise ValueError(f"out of form (no {error})") from None


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
    """Return what is worth remembering of a Kafka spout's settings, without secrets.

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
    """Return the run that a sink is part of, by its configuration; None where the engine does not say."""
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
    """Return the runs that a directory remembers, the latest first; none where there are none that can be read."""
    try:
        document = from_document((disk or storage_of(directory)).read(Layout(directory).runs))
        if document.get("format") != FORMAT:
            return []
        return [Run.from_json(one) for one in listed(document.get("runs"))]
    except (OSError, ValueError):
        return []


def note_run(directory: Path, run: Run, disk: Storage, writer: str) -> None:
    """Put a run in front of those that a directory remembers.

    The race: all tasks of a sink do this when they start, in any number of processes. All write the same, and a file
    takes the place of the other whole.

    Raises:
        OSError: the disk says no.
    """
    known = read_runs(directory, disk)
    if known[:1] == [run]:
        return
    runs = [run, *(one for one in known if one != run)][:RUNS_MAX]
    layout = Layout(directory)
    content = to_document({"format": FORMAT, "runs": [one.to_json() for one in runs]})
    disk.replace(layout.runs, content, layout.staging / temporary_name(writer, 0))


def _by_name(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise ValueError(f"{str(value)[:200]!r} are no settings by component")
    return {name: dict(one) for name, one in value.items()}
