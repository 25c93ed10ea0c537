"""The lock names every package of every extra that it is for, each with its hash, and no machine or registry."""

from __future__ import annotations

import re
import tomllib

from tests.command import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def wanted(extra: str) -> set[str]:
    """Return the names that an extra asks for, those of the extras that it contains too."""
    names: set[str] = set()
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]:
        found = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line)
        assert found is not None
        if found[1] == PROJECT["name"]:
            names |= {each for part in found[2].split(",") for each in wanted(part)}
        else:
            names.add(re.sub(r"[._-]+", "-", found[1]).lower())
    return names


def test_the_lock_has_all_packages_with_hashes_and_nothing_of_a_machine() -> None:
    """A package without a hash would be installed unchecked; an address would bind the lock to one registry."""
    entries = re.findall(r"^([\w-]+)==(.*?)(?=^\S|\Z)", LOCK, re.MULTILINE | re.DOTALL)
    assert len(entries) == len(re.findall(r"^\S", LOCK, re.MULTILINE))
    assert wanted("dev-all") <= {name for name, _ in entries}
    assert [name for name, text in entries if "--hash=sha256:" not in text] == []
    assert [name for name, text in entries if "/" in text] == []
