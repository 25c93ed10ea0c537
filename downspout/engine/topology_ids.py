"""The id of each topology, kept from run to run.

By the topology id a spout tells a restarted topology from one that was deployed again, which matters for the start
strategies. On Storm the id is new with every submit. Here it is kept in ``.downspout/state/NAME.json`` and renewed only
by ``--redeploy``.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import ConfigError
from downspout.settings import folders
from downspout.system.files import sync_folder


def topology_id(name: str, *, redeploy: bool = False, clock: Clock = SYSTEM_CLOCK) -> str:
    """Return the topology's id, ``NAME-COUNT-SECONDS`` as on Storm; the same one until it is renewed."""
    path = folders.home() / "state" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.json"
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
    """Write the state whole or not at all; where another process was first, return what it wrote."""
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
