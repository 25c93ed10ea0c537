"""Bind a checkpoint to its topology, by an extra file beside Spark's.

Spark assigns state to operators by their position in the plan. It would accept the checkpoint of another topology, or
of this one before its stateful bolts were changed. So the relevant parts of the topology are recorded and compared.

The records that a batch is committed without are stored as a pickle of a few types that only hold values; loading it
accepts no other types, so a forged file cannot run code. Spark's state, in which bolts keep arbitrary objects, has no
such protection.
"""

from __future__ import annotations

import grp
import io
import json
import logging
import os
import pickle
import pwd
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downspout.component import Failure
from downspout.dead_letters.claims import PlainRecord
from downspout.errors import ConfigError
from downspout.kafka.port import TopicPartition
from downspout.kafka.unreadable import Unreadable
from downspout.spark.topology.stage_rows import ExhaustedRecord, RecordPlace
from downspout.spark.topology.stages import StagePlan
from downspout.system.files import create_json, sync_folder

FILE = "_downspout.json"
EXHAUSTED_FILE = "_downspout.given-up"
FORMAT = 1
_TYPES = {
    (cls.__module__, cls.__qualname__): cls
    for cls in (ExhaustedRecord, RecordPlace, PlainRecord, Failure, Unreadable, TopicPartition)
}

log = logging.getLogger("downspout.spark")


def claim(directory: Path, plan: StagePlan) -> str:
    """Return the name of the checkpoint's query; a new directory is claimed for this topology.

    Raises:
        ConfigError: it belongs to another topology, is not a checkpoint, or cannot be written.
    """
    wanted = {
        "format": FORMAT,
        "topology": plan.graph.name,
        "spouts": list(plan.spouts),
        "stages": _stages(plan),
        "ticks": plan.ticks,
        "keys": plan.stateful_keys,
    }
    path = directory / FILE
    _warn_of_others(directory)
    try:
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            _compare(directory, known, wanted)
            return str(known["query"])
        if directory.exists() and any(directory.iterdir()):
            raise ConfigError(
                f"{directory} is not the checkpoint of a topology", cure="--checkpoint with an empty folder"
            )
        directory.mkdir(parents=True, exist_ok=True)
        query = uuid.uuid4().hex[:12]
        if not create_json(path, {**wanted, "query": query}):  # another run was first
            return claim(directory, plan)
        sync_folder(directory)
        return query
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} was not written by Downspout: {error}", cure="another --checkpoint") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error}", cure="--checkpoint with a folder that you may write to"
        ) from None


def remember(directory: Path, number: int, exhausted: Mapping[RecordPlace, ExhaustedRecord]) -> None:
    """Record, durably, which records a batch is committed without."""
    # Otherwise, after a crash between two sinks' commits, a record that no longer fails would be in the state and in
    # one sink, but not in the other, which has its entry.
    draft = directory / (EXHAUSTED_FILE + ".tmp")
    with draft.open("wb") as file:
        pickle.dump((number, dict(exhausted)), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / EXHAUSTED_FILE)
    sync_folder(directory)


def recall(directory: Path) -> tuple[int, dict[RecordPlace, ExhaustedRecord]]:
    """Return the batch and records of the last :func:`remember`; -1 if there was none.

    Raises:
        ConfigError: the file is damaged or forged.
    """
    path = directory / EXHAUSTED_FILE
    try:
        number, exhausted = _Unpickler(io.BytesIO(path.read_bytes())).load()
        if isinstance(number, int) and all(isinstance(each, ExhaustedRecord) for each in exhausted.values()):
            return number, exhausted
        why = "it holds something else"
    except FileNotFoundError:
        return -1, {}
    except Exception as error:  # a torn or forged pickle may raise anything
        why = f"{type(error).__name__}: {error}"
    raise ConfigError(
        f"{path} was not written by Downspout: {why}",
        cure="restore it; or delete it, if no other run has dead-lettered records of the batch that comes next",
    )


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of our own types; nothing else is imported or called."""
        if (found := _TYPES.get((module, name))) is None:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return found


def _warn_of_others(directory: Path) -> None:
    """Warn if others may write to the checkpoint: its state is unpickled, which may run any code."""
    if not directory.is_dir():
        return
    found = directory.stat()
    if found.st_mode & stat.S_IWOTH:
        who, cure = "everybody on this machine", "chmod go-w"
    elif found.st_mode & stat.S_IWGRP and not _is_own(found.st_gid, found.st_uid):
        who, cure = f"the group {_name_of(found.st_gid)}", "chmod g-w"
    else:
        return
    log.warning(
        "%s may write to the checkpoint %s, and could thus run programs as you. Try: %s on it and its contents",
        who, directory, cure,
    )  # fmt: skip


def _is_own(group: int, user: int) -> bool:
    """Return whether a group is a user's private one: it has the user's name and no other members."""
    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _name_of(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def _stages(plan: StagePlan) -> list[dict[str, int]]:
    return [{name: plan.graph.components[name].par for name in stage.entries} for stage in plan.stages[1:]]


def _compare(directory: Path, known: Any, wanted: dict[str, Any]) -> None:
    new = "another --checkpoint, which starts where kafka.start says; rows that the sinks have are not written twice"
    if known["topology"] != wanted["topology"]:
        raise ConfigError(
            f"{directory} is the checkpoint of topology {known['topology']}, not {wanted['topology']}", cure=new
        )
    compared = {
        "spouts": "reads from",
        "stages": "keeps the state of",
        "ticks": "has timers:",
        "keys": "keeps by key, as stateful_keys says,",
    }
    for what, text in compared.items():
        if known[what] != wanted[what]:
            raise ConfigError(
                f"{directory} {text} {_say(known[what])}, and the topology now has {_say(wanted[what])}", cure=new
            )


def _say(what: Any) -> str:
    if isinstance(what, bool):
        return "yes" if what else "no"
    if isinstance(what, dict):
        what = [f"{name}.{attribute}" for name, attribute in what.items()]
    if what and isinstance(what[0], dict):
        return " → ".join(", ".join(f"{name} ({par})" for name, par in stage.items()) for stage in what)
    return ", ".join(what) or "nothing"
