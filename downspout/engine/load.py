"""Finds the topology class in a user's file, and explains why a file cannot be loaded.

streamparse's errors about a topology class name neither the component nor a remedy. The component is found in the
frames of their tracebacks.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import streamparse.dsl
from streamparse import Topology
from streamparse.dsl.component import ComponentSpec

from downspout.engine.graph import Graph, from_class, nearest
from downspout.errors import USER_ERRORS, DownspoutError, TopologyError, UserError

FILES_SHOWN = 3


def load(target: str, topology: str | None = None) -> Graph:
    """Return the graph of the topology that ``target`` names.

    Args:
        target: a file (``topologies/word_count.py``), a file and a class (``topologies/word_count.py:WordCount``), or a
            module and a class (``topologies.word_count:WordCount``).
        topology: the class, if the file has several.

    Raises:
        TopologyError: the file or class does not exist or cannot be imported, the choice is ambiguous, or the wiring
            is wrong. The message names the line.
    """
    cls, name = load_class(target, topology)
    return from_class(cls, name)


def load_class(target: str, topology: str | None = None) -> tuple[Any, str]:
    """Return the topology's class and name; see :func:`load`."""
    place, colon, class_name = (target, "", "") if os.path.exists(target) else target.partition(":")
    if colon and not place.endswith(".py"):
        module, name = _import_module(place), place.rpartition(".")[2]
    else:
        module, name = _import_file(Path(place)), Path(place).stem
    classes = _classes(module)
    cls = _choose(classes, target, topology or class_name or None)
    return cls, _name(cls, name, classes)


def component_modules(target: str) -> list[str]:
    """Return the modules of the Python components of a file's topologies; see :func:`load_module`."""
    specs = [spec for cls in _classes(load_module(target)).values() for spec in cls.specs]
    return sorted({spec.component_cls.__module__ for spec in specs if isinstance(spec.component_cls, type)})


def name_of(cls: Any) -> str:
    """Return the topology name that a class has when it is run from its file."""
    module = sys.modules.get(cls.__module__)
    if module is None or not hasattr(module, cls.__qualname__):
        # A class made inside a function cannot be run from a file.
        return str(cls.__name__)
    return _name(
        cls, Path(getattr(module, "__file__", None) or module.__name__.replace(".", "/")).stem, _classes(module)
    )


def _name(cls: Any, stem: str, classes: dict[str, Any]) -> str:
    """Return the file's name, as ``sparse`` does, with the class's appended if the file has several topologies."""
    return stem if len(classes) == 1 else f"{stem}-{cls.__name__}"


def load_module(target: str, what: str = "a topology") -> ModuleType:
    """Return the module of a file (``topologies/x.py``) or name (``topologies.x``); errors say that it holds ``what``.

    Raises:
        TopologyError: it does not exist or cannot be imported; the message names the line.
    """
    return _import_file(Path(target), what) if target.endswith(".py") else _import_module(target)


def _classes(module: ModuleType) -> dict[str, Any]:
    """Return the topologies that a module defines; if it defines none, those that it imports."""
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Topology) and value is not Topology
    }
    own = {name: value for name, value in found.items() if value.__module__ == module.__name__}
    return own or found


def _choose(classes: dict[str, Any], target: str, wanted: str | None) -> Any:
    if not classes:
        raise TopologyError(
            f"{target} contains no topology",
            cure="a class that inherits from streamparse.Topology, with its components",
        )
    if wanted is None:
        if len(classes) > 1:
            raise TopologyError(
                f"{target} contains several topologies: {', '.join(classes)}",
                cure=f"--topology {next(iter(classes))} (audit: --class)",
            )
        return next(iter(classes.values()))
    if wanted not in classes:
        raise TopologyError(f"{target} contains no topology {wanted!r}", cure=nearest(wanted, classes))
    return classes[wanted]


class _FromSource(SourceFileLoader):
    """Compiles the file at each load, because Python's bytecode cache compares only size and time in whole seconds.

    A topology edited right after a run (``"b"`` for ``"d"``) would run unchanged.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_module(name: str) -> ModuleType:
    _extend_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except USER_ERRORS as error:
        raise _explain(error, name) from error


def _import_file(path: Path, what: str = "a topology") -> ModuleType:
    if path.is_dir():
        found = sorted(each.as_posix() for each in path.glob("*.py") if each.stem != "__init__")
        cure = f"one of its files: {', '.join(found[:FILES_SHOWN])}" if found else f"the path of {what}'s .py file"
        raise TopologyError("no file is named" if path == Path() else f"{path} is a folder", cure=cure)
    if not path.is_file():
        siblings = [p.stem for p in path.parent.glob("*.py") if p.stem != "__init__"] if path.parent.is_dir() else []
        near = get_close_matches(path.stem, siblings, n=1)  # without the common suffix
        cure = f"{str(path.with_name(f'{near[0]}.py'))!r}" if near else f"the path of {what}'s .py file"
        raise TopologyError(f"{path} does not exist", cure=cure)
    folder = path.resolve().parent
    # As under `sparse run`: spouts and bolts are in the project's root or its src/, and siblings can be imported.
    _extend_path(Path.cwd(), folder.parent, siblings=folder)
    name = _module_name(path)
    loader = _FromSource(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or path.suffix != ".py":
        raise TopologyError(f"{path} is not a Python file", cure=f"the path of {what}'s .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except USER_ERRORS as error:
        sys.modules.pop(name, None)
        raise _explain(error, str(path)) from error
    return module


def _module_name(path: Path) -> str:
    """Return the dotted name of a file below the working directory, otherwise its stem."""
    try:
        parts = path.resolve().relative_to(Path.cwd()).with_suffix("").parts
    except ValueError:
        parts = (path.stem,)
    return ".".join(parts) if all(part.isidentifier() for part in parts) else path.stem


def _extend_path(*roots: Path, siblings: Path | None = None) -> None:
    places = [str(place) for root in roots for place in (root, root / "src") if place.is_dir()]
    new = [place for place in places if place not in sys.path]
    sys.path[:0] = new
    if siblings is not None and str(siblings) not in sys.path:
        sys.path.append(str(siblings))


def _explain(error: UserError, target: str) -> TopologyError:
    """Return an import's exception as one sentence that names the user's line."""
    frames = list(traceback.walk_tb(error.__traceback__))
    where = _user_line(frames, target, _OUR_OWN + _OUR_PARTS if isinstance(error, DownspoutError) else _OUR_OWN)
    if isinstance(error, SyntaxError) and error.filename:
        return TopologyError(f"{_short(error.filename)}:{error.lineno}: {error.msg}")
    if isinstance(error, DownspoutError):
        return TopologyError(f"{where}: {error.message}", cure=error.cure)
    stack = [frame for frame, _ in frames]
    if (found := explain_packed(stack, _user_line(frames, target, _OUR_OWN + _OUR_PARTS))) is not None:
        return found
    if isinstance(error, KeyError) and frames:
        return _explain_key(error, frames[-1][0], where)
    if (found := explain_wiring(error, stack, where)) is not None:
        return found
    cure = None
    if isinstance(error, ModuleNotFoundError):
        cure = _cure_of_missing(error.name or "")
    return TopologyError(f"{where}: {type(error).__name__}: {error}", cure=cure)


def _cure_of_missing(module: str) -> str:
    """Return the cure for a missing module: a checkout's folders may hide those of the project."""
    package = module.partition(".")[0]
    if package in ("spouts", "bolts") and Path.cwd() != _CHECKOUT:
        file = getattr(sys.modules.get(package), "__file__", None)
        if file is not None and Path(file).is_relative_to(_CHECKOUT):
            return (
                f"`pip install {_CHECKOUT}` without -e: the folders spouts/ and bolts/ of the checkout (or of an "
                "editable install) hide your own"
            )
    if package in ("spouts", "bolts") and find_spec(f"downspout.{module}") is not None:
        return f"`downspout.{module}`, the full name of Downspout's own module"
    return "run from the project's root, the folder that holds spouts/ and bolts/; or install the package"


def _explain_key(error: KeyError, frame: FrameType, where: str) -> TopologyError:
    """Explain a KeyError that streamparse's metaclass lets through; its frame has the names."""
    local = frame.f_locals
    if frame.f_code.co_name == "clean_spec_inputs":
        reader, wanted = local["spec"].name, local["stream_id"]
        if (source := local["specs"].get(wanted.componentId)) is None:
            known = [name for name in local["specs"] if name != reader]
            return TopologyError(
                f"{where}: {reader} reads {wanted.componentId!r}, but this topology has no such component",
                cure=nearest(wanted.componentId, known),
            )
        return TopologyError(
            f"{where}: {reader} reads stream {wanted.streamId!r} of {source.name!r}, which does not have it",
            cure=nearest(wanted.streamId, source.outputs) if source.outputs else f"declaring outputs in {source.name}",
        )
    if frame.f_code.co_name == "__getitem__" and "stream" in local:
        spec, stream = local["self"], local["stream"]
        known, setting = spec.common.streams, getattr(spec.component_cls, "streams_by_setting", {}).get(stream)
        return TopologyError(
            f"{where}: {spec.name or spec.component_cls.__name__} has no stream {stream!r}",
            cure=setting or (nearest(stream, known) if known else "declaring its outputs"),
        )
    return TopologyError(f"{where}: KeyError: {error}")


def _user_line(frames: list[tuple[FrameType, int]], target: str, foreign: tuple[str, ...]) -> str:
    """Return ``file:line`` of the innermost frame in the user's code."""
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if not file.startswith("<") and "site-packages" not in file and not os.path.realpath(file).startswith(foreign):
            return f"{_short(file)}:{line}"
    return target


def _short(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


_CHECKOUT = Path(__file__).resolve().parents[2]
_OUR_PARTS = tuple(str(_CHECKOUT / part) + os.sep for part in ("spouts", "bolts"))
"""Our spouts/ and bolts/ in a checkout; a DownspoutError raised there is blamed on the caller."""
_OUR_OWN = (str(Path(__file__).parents[1]) + os.sep, os.path.dirname(os.__file__) + os.sep)
_DSL = os.path.dirname(streamparse.dsl.__file__) + os.sep
TEXT_MAX = 200
_CURES = {
    "_sanitize_par": "par=1, or a larger whole number",
    "_sanitize_inputs": "a list of components, such as inputs=[words], or groupings by component, such as "
    'inputs={words: Grouping.fields("word")}; a component is what its class\'s spec() returns',
    "_sanitize_config": "a dict, such as config={'topology.tick.tuple.freq.secs': 10}",
    "_sanitize_outputs": 'a list of field names, outputs = ["word"], or of streams, [OutputStream(["word"], name="x")]',
    "class_dict_to_specs": "components that their class's spec() has returned, with different names",
    "add_bolt_spec": "inputs=[…] in its spec()",
    "add_spout_spec": 'outputs = ["word"] in its class',
    "__new__": "a spout, such as words = Words.spec(), and a dict as config",
    "__init__": 'a list of texts, such as OutputStream(fields=["word"], name="words")',
    "fields": 'the names of the fields, such as Grouping.fields("word")',
}


def explain_wiring(error: UserError, frames: Sequence[FrameType], where: str) -> TopologyError | None:
    """Return streamparse's error with component and cure; None if the error is not streamparse's."""
    inside = [frame for frame in frames if frame.f_code.co_filename.startswith(_DSL)]
    if not inside or inside[-1] is not frames[-1]:
        return None
    last = inside[-1]
    name = last.f_code.co_name
    if name == "clean_spec_inputs" and "field" in last.f_locals:
        local = last.f_locals
        source, stream, wanted = local["stream_comp"], local["stream_id"].streamId, local["field"]
        return TopologyError(
            f"{where}: {type(error).__name__}: Field {wanted!r} specified in grouping of "
            f"{local['spec'].name!r} is not in stream {stream!r} of {source.name!r}",
            cure=nearest(wanted, local["valid_fields"]),
        )
    text = str(error)
    text = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
    subject = next((found for frame in reversed(inside) if (found := _subject(frame.f_locals))), None)
    about = f" (component {subject})" if subject and subject not in text else ""
    return TopologyError(f"{where}: {type(error).__name__}: {text.rstrip('. ')}{about}", cure=_CURES.get(name))


def explain_packed(frames: Sequence[FrameType], where: str) -> TopologyError | None:
    """Return an error if one name was given to a source of several components; otherwise None.

    ``KafkaBatches.spec`` returns a named tuple of components, which streamparse does not recognise.
    """
    for name, value in _suspects(frames):
        fields = getattr(value, "_fields", ())
        if fields and all(isinstance(each, ComponentSpec) for each in value):
            return TopologyError(
                f"{where}: {name} is {len(fields)} components, {' and '.join(fields)}",
                cure=f"a name for each: {', '.join([*fields[:-1], name])} = KafkaBatches.spec(…)",
            )
    return None


def _suspects(frames: Sequence[FrameType]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of a topology class's attributes and of a component's given inputs."""
    given = [frames[-1].f_locals.get(name) for name in ("key", "input_spec")] if frames else []
    for frame in frames:
        yield from dict(frame.f_locals.get("class_dict") or {}).items()
        yield from ((name, value) for name, value in frame.f_locals.items() if any(value is each for each in given))


def _subject(local: dict[str, Any]) -> str | None:
    """Return the name of the component or topology that a streamparse frame handles."""
    if name := getattr(local.get("spec"), "name", None):
        return str(name)
    found = local.get("component_cls")
    return found.__name__ if isinstance(found, type) else local.get("classname")
