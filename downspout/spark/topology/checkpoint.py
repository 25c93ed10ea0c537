"""Whose checkpoint a directory is: a file of ours beside Spark's.

Spark's state belongs to operators by their place in the plan. Another topology's checkpoint, or this one's before its
stateful bolts were changed, would be read as if it were right. So what it was made for is written down, and compared.
"""

from __future__ import annotations

import json
import os
import pickle
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError
from downspout.kafka.broker_files import replace_json
from downspout.spark.topology.plan import Plan
from downspout.spark.topology.rows import Letter, Place

__all__ = ["FILE", "claim", "recall", "remember"]

FILE = "_downspout.json"
GIVEN_UP = "_downspout.given-up"
FORMAT = 1


def claim(directory: Path, plan: Plan, *, ticks: bool = False) -> str:
    """Return the name of the query whose checkpoint this is; a new directory becomes this topology's.

    Args:
        directory: Spark's checkpoint location.
        plan: what runs.
        ticks: whether its state has timers.

    Raises:
        ConfigError: it is another topology's or another program's, or the topology's stages have changed.
    """
    wanted = {
        "format": FORMAT,
        "topology": plan.graph.name,
        "spouts": list(plan.stages[0].heads),
        "stages": _stages(plan),
        "ticks": ticks,
    }
    path = directory / FILE
    try:
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            _compare(directory, known, wanted)
            return str(known["query"])
        if directory.exists() and any(directory.iterdir()):
            raise ConfigError(f"{directory} is no checkpoint of a topology", cure="--checkpoint with an empty folder")
        directory.mkdir(parents=True, exist_ok=True)
        query = uuid.uuid4().hex[:12]
        replace_json(path, {**wanted, "query": query})
        return query
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what Downspout wrote: {error}", cure="another --checkpoint") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be kept: {error}", cure="--checkpoint with a folder that can be written"
        ) from None


def remember(directory: Path, number: int, letters: Mapping[Place, Letter]) -> None:
    """Write down which records a batch is committed without; durable when this returns.

    Were it not known after a crash between two sinks, a record that fails no more would be in the state and one sink,
    and not in the other, which has its entry.
    """
    draft = directory / (GIVEN_UP + ".tmp")
    with draft.open("wb") as file:
        pickle.dump((number, dict(letters)), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / GIVEN_UP)


def recall(directory: Path) -> tuple[int, dict[Place, Letter]]:
    """Return what was last written down: the batch, and its records; -1 if nothing was."""
    try:
        number, letters = pickle.loads((directory / GIVEN_UP).read_bytes())
    except FileNotFoundError:
        return -1, {}
    return number, letters


def _stages(plan: Plan) -> list[dict[str, int]]:
    return [{name: plan.graph.components[name].par for name in stage.heads} for stage in plan.stages[1:]]


def _compare(directory: Path, known: Any, wanted: dict[str, Any]) -> None:
    new = "another --checkpoint, which begins where kafka.start says; rows that the sinks have are not written twice"
    if known["topology"] != wanted["topology"]:
        raise ConfigError(
            f"{directory} is the checkpoint of topology {known['topology']}, not {wanted['topology']}", cure=new
        )
    for what, text in (("spouts", "reads from"), ("stages", "keeps the state of"), ("ticks", "has timers:")):
        if known[what] != wanted[what]:
            raise ConfigError(
                f"{directory} {text} {_say(known[what])}, and the topology now has {_say(wanted[what])}", cure=new
            )


def _say(what: Any) -> str:
    if isinstance(what, bool):
        return "yes" if what else "no"
    if what and isinstance(what[0], dict):
        return " → ".join(", ".join(f"{name} ({par})" for name, par in stage.items()) for stage in what)
    return ", ".join(what) or "nothing"
