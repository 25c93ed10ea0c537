"""Which of its inputs a sink got a row through: the last step of the row's path.

A spout may feed two bolts that feed one sink. Both hand the record's origin on unchanged, so the sink gets two rows
with one origin, and they are two rows. What tells them apart is the input, component and stream, which every tuple
names. So each input of a sink has a *step*, and the sink appends it to the paths of the rows that come through it::

    ''  via parse         → '@parse'
    'split.2'  via split  → 'split.2/@split'
    ''  via route:late    → '@route:late'

The only input of a sink has the empty step: its rows keep the path that they come with.

**An input's step never changes**, or its replayed rows would be rows that nobody wrote. So the steps are part of the
directory: each entry of the commit log holds those that it was made under, and a sink goes by what it finds there. What
is not there yet gets a step by the rules of :func:`resolve`.

What this does not know: rows. That two inputs with different steps carry the same row is the topology's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from urllib.parse import quote

from downspout.errors import ConfigError, SinkError

MARK = "@"
SETTING = "parquet.input_names"


def name_of(component: str, stream: str = "default") -> str:
    """Return the name of an input. Two inputs never have one name: what could be mistaken is escaped as in a URL.

    >>> name_of("parse"), name_of("route", "late"), name_of("a:b")
    ('parse', 'route:late', 'a%3Ab')
    """
    name = quote(component, safe="")
    return name if stream == "default" else f"{name}:{quote(stream, safe='')}"


def with_step(path: str, step: str) -> str:
    """Return the path of a row that came with ``path`` through the input with this step.

    >>> with_step("split.2", "split"), with_step("", "parse"), with_step("split.2", "")
    ('split.2/@split', '@parse', 'split.2')
    """
    if not step:
        return path
    return f"{path}/{MARK}{step}" if path else f"{MARK}{step}"


def ends_in_step(path: str) -> bool:
    """Return whether a path ends as only a sink may end it. Were others to, two rows could get one path.

    >>> ends_in_step("split.2"), ends_in_step("split.2/@split")
    (False, True)
    """
    return path.rpartition("/")[2].startswith(MARK)


class KnownInputs:
    """The inputs that a directory knows, and their steps.

    >>> known = KnownInputs()
    >>> known.take({"parse": ""})
    >>> known.take({"enrich": ""})      # parse has another name now, and what is named parse from here on is another
    >>> known.steps, known.last
    ({'enrich': ''}, ('enrich',))
    """

    def __init__(self) -> None:
        self.steps: dict[str, str] = {}  # input → step
        self.last: tuple[str, ...] = ()  # the inputs of the sink that wrote last

    def take(self, steps: Mapping[str, str]) -> None:
        """Take the steps of the next entry; a step belongs to those that had it last."""
        if not steps:
            return
        taken = set(steps.values())
        self.steps = {name: step for name, step in self.steps.items() if step not in taken} | dict(steps)
        self.last = tuple(steps)


def check_names(declared: Sequence[str], present: Sequence[str], setting: str = SETTING) -> dict[str, str]:
    """Return what the setting ``input_names`` says: input → step.

    >>> check_names(["enrich=parse", "late="], ["enrich", "late"])
    {'enrich': 'parse', 'late': ''}
    """
    given: dict[str, str] = {}
    for entry in declared:
        name, equals, step = (part.strip() for part in entry.partition("="))
        if not equals or "/" in step:
            raise ConfigError(f"{setting}: {entry!r} is not input=name", cure='"enrich=parse"')
        if name not in present:
            raise ConfigError(
                f"{setting}: {name!r} is not an input of this sink with the field `origin`",
                cure=f"one of {', '.join(present)}" if present else "remove it: it has no such input",
            )
        if name in given:
            raise ConfigError(f"{setting} names {name!r} twice", cure="one name for each input")
        given[name] = step
    return given


def resolve(
    directory: str | PathLike[str],  # for errors
    present: Sequence[str],  # the names of the inputs that carry origins
    given: Mapping[str, str],  # what ``parquet.input_names`` says
    known: KnownInputs,  # what the directory says
    *,
    has_rows: bool,  # whether there are rows with origins in the directory
    setting: str = SETTING,  # which setting says ``given``, for errors
) -> dict[str, str]:
    """Return the step of each input.

    ====================================================  ==========================================================
    an input that                                         has the step
    ====================================================  ==========================================================
    the directory knows                                   that it always had
    ``parquet.input_names`` names                         that says
    is the only one, where there was at most one before   of the one before; the empty one in a new directory
    came in addition                                      that is its own name
    took the place of another                             none: it is an error, for nobody but the user knows
    ====================================================  ==========================================================

    Raises:
        SinkError: it cannot be told which rows of the directory are whose.
    """
    steps: dict[str, str] = {}
    for name in present:
        if name in given:
            steps[name] = _given(directory, name, given[name], known, has_rows=has_rows, setting=setting)
        elif name in known.steps:
            steps[name] = known.steps[name]
    new = [name for name in present if name not in steps]
    if new and len(present) == 1 and len(known.last) <= 1:
        steps[new[0]] = known.steps[known.last[0]] if known.last else ""
    elif new:
        _check_new(directory, new, steps, known)
        steps.update({name: name for name in new})
    steps = {name: steps[name] for name in present}
    _check_shared(directory, steps, given)
    return steps


def _given(
    directory: str | PathLike[str], name: str, step: str, known: KnownInputs, *, has_rows: bool, setting: str
) -> str:
    """Return what the setting says, if it can be so."""
    if known.steps.get(name, step) != step:
        raise SinkError(
            f"{directory}: {setting} calls {name} {step!r}, but its rows are there as {known.steps[name]!r}",
            cure=f"remove it, or {name}={known.steps[name]}: an input keeps its name for ever",
        )
    possible = {name, *known.steps.values()}
    if has_rows and step not in possible:
        raise SinkError(
            f"{directory}: {setting} calls {name} {step!r}, a name that no rows there have",
            cure=" or ".join(f"{name}={one}" for one in sorted(possible)),
        )
    return step


def _check_new(
    directory: str | PathLike[str], new: Sequence[str], steps: Mapping[str, str], known: KnownInputs
) -> None:
    """Raise where new inputs may be old ones under another name."""
    taken = set(steps.values())
    gone = [name for name in known.last if name not in steps and known.steps.get(name, name) not in taken]
    if gone:
        old = known.steps.get(gone[0], gone[0])
        raise SinkError(
            f"{directory}: this sink reads {', '.join(new)} and no longer {', '.join(gone)}, whose rows are there: "
            "another name for the same rows, or other rows?",
            cure=f'input_names={{"{new[0]}": "{old}"}} for the same, {{"{new[0]}": "{new[0]}"}} for others',
        )


def _check_shared(directory: str | PathLike[str], steps: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise where two inputs have one step, and not because the user said so of both."""
    by_step: dict[str, list[str]] = {}
    for name, step in steps.items():
        by_step.setdefault(step, []).append(name)
    for step, names in by_step.items():
        if len(names) > 1 and not all(name in given for name in names):
            both = ", ".join(f'"{name}": "{step}"' for name in names)
            raise SinkError(
                f"{directory}: {' and '.join(names)} would both be {step!r}: rows of theirs with one origin would be "
                "one row",
                cure=f"another name for one of the components; or, if they are one row, input_names={{{both}}}",
            )
