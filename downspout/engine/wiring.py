"""What streamparse refuses while a topology's class is made: which component it is about, and what to do.

Its errors name neither. The frames in which they were raised still know.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import streamparse.dsl
from streamparse.dsl.component import ComponentSpec

from downspout.engine.graph import nearest
from downspout.errors import TopologyError, UserError

_DSL = os.path.dirname(streamparse.dsl.__file__) + os.sep
TEXT_MAX = 200
_CURES = {
    "_sanitize_par": "par=1, or a larger whole number",
    "_sanitize_inputs": "a list of components, such as inputs=[words], or groupings by component, such as "
    'inputs={words: Grouping.fields("word")}; a component is what its class\'s spec() returns',
    "_sanitize_config": "a dict, such as config={'topology.tick.tuple.freq.secs': 10}",
    "_sanitize_outputs": 'a list of field names, outputs = ["word"], or of streams, [Stream(["word"], name="x")]',
    "class_dict_to_specs": "components that their class's spec() has returned, with different names",
    "add_bolt_spec": "inputs=[…] in its spec()",
    "add_spout_spec": 'outputs = ["word"] in its class',
    "__new__": "a spout, such as words = Words.spec(), and a dict as config",
    "__init__": 'a list of texts, such as Stream(fields=["word"], name="words")',
    "fields": 'the names of the fields, such as Grouping.fields("word")',
}


def explain_wiring(error: UserError, frames: Sequence[FrameType], where: str) -> TopologyError | None:
    """Return streamparse's error with component and cure; None where it is another one."""
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
    """Return that a source of several components was given one name; None where none was.

    ``KafkaBatches.spec`` returns a named tuple of components: streamparse takes it for no component at all.
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
    """Yield the attributes of a topology's class, and what a component was given as its input, by name."""
    given = [frames[-1].f_locals.get(name) for name in ("key", "input_spec")] if frames else []
    for frame in frames:
        yield from dict(frame.f_locals.get("class_dict") or {}).items()
        yield from ((name, value) for name, value in frame.f_locals.items() if any(value is each for each in given))


def _subject(local: dict[str, Any]) -> str | None:
    """Return the name of the component, or topology, that a frame of streamparse's deals with."""
    if name := getattr(local.get("spec"), "name", None):
        return str(name)
    found = local.get("component_cls")
    return found.__name__ if isinstance(found, type) else local.get("classname")
