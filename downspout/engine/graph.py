"""A topology as a plain graph: components, streams, groupings, configuration; its id; fields that components require.

All other modules use :class:`Graph`, not streamparse's DSL or Thrift structures, so tests can build graphs by hand.

A spout uses the topology id to distinguish a restart from a new deployment, which matters for the start strategies.
Storm makes a new id with every submit. Here, ``.downspout/state/NAME.json`` keeps the id until ``--redeploy``.
"""

from __future__ import annotations

import difflib
import json
import keyword
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pystorm.spout
from streamparse.dsl.bolt import JavaBoltSpec
from streamparse.dsl.spout import JavaSpoutSpec

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.component import FLUSH
from downspout.errors import ConfigError, TopologyError
from downspout.settings import folders
from downspout.system.files import sync_folder
from downspout.wire.side_streams import TRANSACTIONS

GROUPINGS = ("shuffle", "fields", "all", "global", "none", "direct", "local_or_shuffle")
"""The groupings that run without Java, as Storm names them."""
LOCAL_STAGES = ("local", "dev", "development", "default")
"""If ``par`` is given per environment, the first of these applies; without any of them, the smallest value."""


@dataclass(frozen=True)
class OutputStream:
    """A declared output: its fields, and whether the emitter picks the task."""

    name: str
    fields: tuple[str, ...]
    direct: bool = False


@dataclass(frozen=True)
class Input:
    """A subscription of a bolt."""

    source: str  # the component that emits
    stream: str  # its stream
    grouping: str = "shuffle"  # one of GROUPINGS
    fields: tuple[str, ...] = ()  # the fields of a fields grouping


@dataclass(frozen=True)
class Component:
    """A spout or bolt of a topology."""

    name: str
    cls: type
    par: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    streams: Mapping[str, OutputStream] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()

    @property
    def is_spout(self) -> bool:
        """Whether it is a spout."""
        return issubclass(self.cls, pystorm.spout.Spout)


@dataclass(frozen=True)
class Graph:
    """A topology; ``components`` are in the order of the class, which ``file`` and ``cls`` locate, if there is one."""

    name: str
    components: Mapping[str, Component]
    config: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    cls: str = ""

    @property
    def spouts(self) -> list[Component]:
        """The spouts, in order."""
        return [component for component in self.components.values() if component.is_spout]

    @property
    def bolts(self) -> list[Component]:
        """The bolts, each after its sources; a cycle is cut somewhere. O(components + inputs)."""
        ordered: dict[str, Component] = {}
        for component in self.components.values():
            self._visit(component, ordered, set())
        return [component for component in ordered.values() if not component.is_spout]

    def _visit(self, component: Component, ordered: dict[str, Component], on_path: set[str]) -> None:
        if component.name in ordered or component.name in on_path:
            return
        on_path.add(component.name)
        for given in component.inputs:
            self._visit(self.components[given.source], ordered, on_path)
        ordered[component.name] = component

    def subscribers(self, source: str, stream: str) -> Iterator[tuple[Component, Input]]:
        """Yield the components that read a stream, each with its input."""
        for component in self.components.values():
            for given in component.inputs:
                if (given.source, given.stream) == (source, stream):
                    yield component, given

    def upstream(self, names: Iterable[str]) -> set[str]:
        """Return these components and everything upstream of them. O(components + inputs)."""
        found: set[str] = set()
        rest = list(names)
        while rest:
            if (name := rest.pop()) not in found:
                found.add(name)
                rest += [given.source for given in self.components[name].inputs if given.source in self.components]
        return found

    def problems(self) -> list[str]:
        """Return the problems of the wiring, one sentence each."""
        return [problem for component in self.components.values() for problem in _problems(self, component)]

    def check(self) -> None:
        """Raise a TopologyError that lists all of :meth:`problems`."""
        if problems := self.problems():
            raise TopologyError(f"topology {self.name!r}: " + "; ".join(problems))


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a hint for a wrong name: the closest known one, or all of them.

    >>> nearest("word_spot", ["word_spout", "count"])
    "'word_spout'"
    """
    names = sorted(known)
    found = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    if found or len(names) == 1:
        return repr((found or names)[0])
    return f"one of {', '.join(map(repr, names))}"


def _problems(graph: Graph, component: Component) -> Iterator[str]:
    for stream in component.streams.values():
        for name in stream.fields:
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                yield (
                    f"{component.name}: field {name!r} of stream {stream.name!r} is not a valid name in Python "
                    f"(try {_valid_name(name)!r})"
                )
        if len(set(stream.fields)) != len(stream.fields):
            yield f"{component.name}: stream {stream.name!r} names a field twice"
    if not component.is_spout and not component.inputs:
        yield f"{component.name} has no inputs"
    for given in component.inputs:
        yield from _input_problems(graph, component.name, given)


def _valid_name(name: str) -> str:
    """Return the valid field name closest to a name.

    >>> _valid_name("a b"), _valid_name("_id"), _valid_name("class"), _valid_name("2")
    ('a_b', 'id', 'class_', 'field')
    """
    name = re.sub(r"\W", "_", name).lstrip("_0123456789") or "field"
    return f"{name}_" if keyword.iskeyword(name) else name


def _input_problems(graph: Graph, name: str, given: Input) -> Iterator[str]:
    source = graph.components.get(given.source)
    if source is None:
        yield (
            f"{name} reads {given.source!r}, but there is no such component "
            f"(try {nearest(given.source, graph.components)})"
        )
        return
    stream = source.streams.get(given.stream)
    if stream is None:
        yield (
            f"{name} reads stream {given.stream!r} of {given.source!r}, which does not have it "
            f"(try {nearest(given.stream, source.streams) if source.streams else 'declaring outputs'})"
        )
        return
    if given.grouping not in GROUPINGS:
        yield f"{name}: grouping {given.grouping!r} of {given.source!r} runs only in Java"
    for wanted in given.fields:
        if wanted not in stream.fields:
            yield (
                f"{name}: fields grouping on {wanted!r}, but stream {given.stream!r} of {given.source!r} has no such "
                f"field (try {nearest(wanted, stream.fields)})"
            )
    if (given.grouping == "direct") != stream.direct:
        kind = "a direct stream" if stream.direct else "not a direct stream"
        yield f"{name}: grouping {given.grouping!r} on {given.source!r}:{given.stream!r}, which is {kind}"


def from_class(cls: Any, name: str) -> Graph:
    """Return the graph of a streamparse Topology class.

    Raises:
        TopologyError: it has Java components, shell components or custom groupings, or its wiring is wrong.
    """
    components = {spec.name: component_of(spec) for spec in cls.specs}
    graph = Graph(name, components, dict(cls.config), file_of(cls), cls.__name__)
    graph.check()
    return graph


def file_of(cls: Any) -> str:
    """Return the file of a topology's class: relative if it is below the working directory, otherwise absolute."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not file:
        return ""
    relative: str = os.path.relpath(file)
    return os.path.abspath(file) if relative.startswith(os.pardir) else relative


def component_of(spec: Any) -> Component:
    """Return the component that a streamparse spec describes; see :func:`from_class` for errors."""
    _refuse(spec)
    streams = {
        key: OutputStream(key, tuple(info.output_fields), bool(info.direct))
        for key, info in (spec.outputs or {}).items()
        if key != FLUSH
    }
    read = [(source, grouping) for source, grouping in (spec.inputs or {}).items() if source.streamId != FLUSH]
    inputs = tuple(input_of(spec.name, source, grouping) for source, grouping in read)
    config = spec.config if isinstance(spec.config, dict) else json.loads(spec.config or "{}")
    return Component(spec.name, spec.component_cls, _par(spec.par), config, streams, inputs)


def _refuse(spec: Any) -> None:
    if isinstance(spec, JavaBoltSpec | JavaSpoutSpec):
        name = str(getattr(spec.component_object.java_object, "full_class_name", ""))
        storm = f"run it on a Storm that has the class {name or 'of it'} in its lib folder"
        ours = "put a KafkaSpout in its place: KafkaSpout.spec(topics=[…]) reads the same topic; or "
        cure = ours + storm if isinstance(spec, JavaSpoutSpec) and "kafka" in name.lower() else storm
        raise TopologyError(f"{spec.name} is a Java component, which needs a JVM", cure=cure)
    if not issubclass(spec.component_cls, pystorm.bolt.Bolt | pystorm.spout.Spout):
        shell = spec.component_object.shell
        raise TopologyError(
            f"{spec.name} is a shell component ({shell.execution_command} {shell.script}), not a Python class",
            cure="run it on Storm: `sparse run`",
        )


def _par(par: Any) -> int:
    if not isinstance(par, dict):
        return int(par)
    for stage in LOCAL_STAGES:
        if stage in par:
            return int(par[stage])
    return int(min(par.values()))


def input_of(name: str, source: Any, grouping: Any) -> Input:
    """Return an Input from Thrift's source and grouping. Raises TopologyError: the grouping is Java code."""
    kind, value = next(((k, v) for k, v in vars(grouping).items() if v is not None), ("none", None))
    if kind.startswith("custom"):
        raise TopologyError(
            f"{name}: the grouping of {source.componentId!r} is custom Java code, which needs a JVM",
            cure="use a fields or direct grouping, or run it on Storm",
        )
    if kind == "fields":
        # Thrift has no global grouping: it is a fields grouping without fields.
        return Input(source.componentId, source.streamId, "fields" if value else "global", tuple(value or ()))
    return Input(source.componentId, source.streamId, kind)


def lacking_fields(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield component, problem and cure for each input that lacks a field its reader needs."""
    for component in graph.components.values():
        for given in (each for each in component.inputs if each.stream != TRANSACTIONS):
            source = graph.components.get(given.source)
            stream = source.streams.get(given.stream) if source else None
            requires_of = getattr(component.cls, "requires_of", None)
            requires = tuple(getattr(component.cls, "requires", ()))
            wanted = requires_of(component.config) if requires_of is not None else requires
            if stream and (lacks := [name for name in wanted if name not in stream.fields]):
                yield (
                    component.name,
                    f"stream {given.stream!r} of {given.source!r} lacks {', '.join(map(repr, lacks))}, which "
                    f"{component.cls.__name__} needs",
                    f"fields={json.dumps(wanted)} of {given.source!r}",
                )


def require_fields(graph: Graph) -> None:
    """Raise a TopologyError if an input lacks a field its reader needs."""
    for name, what, cure in lacking_fields(graph):
        raise TopologyError(f"{name}: {what}", cure=cure)


def topology_id(name: str, *, redeploy: bool = False, clock: Clock = SYSTEM_CLOCK) -> str:
    """Return the topology's id, ``NAME-COUNT-SECONDS`` as on Storm; ``redeploy`` makes a new one."""
    path = folders.home() / "state" / f"{quote(name, safe='')}.json"
    try:
        known = _read(path)
        if known is not None and not redeploy:
            return str(known["id"])
        count = int(known["count"]) + 1 if known else 1
        fresh = {"id": f"{name}-{count}-{int(clock.wall())}", "count": count}
        return _write(path, fresh, replace=redeploy)
    except OSError as error:
        raise ConfigError(
            f"cannot read or write the topology's state {path}: {error}", cure="a writable folder in DOWNSPOUT_HOME"
        ) from None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {"id": state["id"], "count": state["count"]}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is damaged", cure="delete it; the topology gets a new id") from None


def _write(path: Path, state: dict[str, Any], *, replace: bool) -> str:
    """Write the state atomically and return its id; if another process was first, return that one's id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with staged.open("w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        if replace:
            os.replace(staged, path)
        else:
            os.link(staged, path)
    except FileExistsError:
        first = _read(path)
        return str(first["id"] if first else state["id"])
    finally:
        staged.unlink(missing_ok=True)
    sync_folder(path.parent)
    return str(state["id"])
