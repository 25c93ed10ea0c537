"""The files of a new project: templates filled with its name and inferred columns."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from string import Template

from downspout.errors import ConfigError
from downspout.scaffold.infer import Field, Inferred, RecordSample, as_paths, infer, read_sample
from downspout.system.jars import STORM_VERSION

TEMPLATES = files("downspout.scaffold") / "templates"
FILES = {
    "README.md": "README.md",
    "topologies/__init__.py": "package.py",
    "topologies/{name}.py": "topology.py",
    "src/{name}_bolts.py": "bolts.py",
    "src/{name}_columns.py": "columns.py",
    "tests/test_{name}.py": "test.py",
    "downspout.toml": "downspout.toml",
    "config.json": "config.json",
    "project.clj": "project.clj",
    "pyproject.toml": "pyproject.toml",
    ".gitignore": "gitignore",
}
"""Template by file of the project."""
SAMPLE_MAX = 1_000
"""Sample records kept in the project."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_LINE_MAX = 118


def create(folder: Path, sample_file: Path | None = None) -> tuple[RecordSample, Inferred]:
    """Create a project in an empty or new folder; return its sample and the inferred columns.

    Args:
        folder: its last part names the project, its topic and its topology.
        sample_file: records as JSON lines; default: a shop's orders.

    Raises:
        ConfigError: the name, the folder or the sample is invalid, or the folder cannot be written. All is checked
            before anything is written.
    """
    name = check_name(folder)
    check_folder(folder)
    if sample_file is not None:
        shown = re.sub(r"[^\w.-]", "_", sample_file.name)  # for a docstring; file names may contain anything
        sample, source = read_sample(sample_file), f"Inferred from {shown}."
    else:
        with as_file(TEMPLATES / "sample.ndjson") as shipped:
            sample, source = read_sample(shipped), "Inferred from the sample."
    inferred = infer(sample)
    contents = render(name, source, sample, inferred)
    try:
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", cure="a folder that can be written") from None
    return sample, inferred


def check_name(folder: Path) -> str:
    """Return a project's name, the folder's.

    Raises:
        ConfigError: it is not a valid module name, or that of an installed module.

    >>> check_name(Path("my-shop"))
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: 'my-shop' cannot name a Python module. Try: my_shop
    """
    name = folder.name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        near = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
        near = near if _NAME.fullmatch(near) and not keyword.iskeyword(near) else "shop"
        raise ConfigError(f"{name!r} cannot name a Python module", cure=near)
    if name in sys.stdlib_module_names or name in ("tests", "topologies") or _is_installed(name):
        raise ConfigError(f"{name!r} is the name of an existing module", cure=f"{name}_rows")
    return name


def _is_installed(name: str) -> bool:
    """Return whether a module is installed; an empty folder in the working directory does not count."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def check_folder(folder: Path) -> None:
    """Raise a ConfigError unless the folder is new or empty."""
    try:
        first = next(folder.iterdir(), None) if folder.exists() else None
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", cure="a folder that is empty, or does not exist") from None
    if first is not None:
        raise ConfigError(f"{folder} is not empty: it holds {first.name}", cure="another name, or an empty folder")


def render(name: str, source: str, sample: RecordSample, inferred: Inferred) -> Mapping[str, bytes]:
    """Return the content of each file by path."""
    records = [line for place, line in enumerate(sample.lines) if place not in inferred.unfit][:SAMPLE_MAX]
    values = {
        "name": name,
        "class_name": f"{name[0].upper()}{re.sub('_+(.)', lambda match: match[1].upper(), name[1:])}Topology",
        "source": source,
        "storm": STORM_VERSION,
        "records": f"{len(records):,}",
        "paths": "\n".join(f"    {json.dumps(path, ensure_ascii=False)}," for path in as_paths(inferred.fields)),
        "types": "\n".join(map(_type_line, inferred.fields)),
        "left_out": _left_out(inferred),
    }
    found = {path.format(name=name): _filled(template, values) for path, template in FILES.items()}
    return {**found, f"sample/{name}.ndjson": b"".join(line + b"\n" for line in records)}


def _filled(template: str, values: Mapping[str, str]) -> bytes:
    text = Template((TEMPLATES / f"{template}.txt").read_text("utf-8")).substitute(values)
    return f"{text.rstrip()}\n".encode()


def _type_line(field: Field) -> str:
    line = f'    "{field.name}": {json.dumps(field.type, ensure_ascii=False)},'
    remark = f"  # {' '.join(field.remark.split())}" if field.remark else ""
    return line + remark if len(line + remark) <= _LINE_MAX or not remark else f"    {remark.strip()}\n{line}"


def _left_out(inferred: Inferred) -> str:
    if not inferred.left_out:
        return ""
    lines = [f"# {path}: {' '.join(reason.split())}" for path, reason in inferred.left_out]
    return "\n" + "\n".join(["# Left out, because no type is right for all of their values:", *lines]) + "\n"
