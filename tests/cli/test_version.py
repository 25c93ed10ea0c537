"""``downspout version`` prints the facts that an issue needs."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import yaml

from downspout.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_versions_are_printed_as_json_and_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Both forms name Python, and a library in the version that is installed."""
    assert main(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["python"] == platform.python_version()
    assert found["libraries"]["pyarrow"] == __import__("pyarrow").__version__
    assert main(["version"]) == 0
    assert f"pyarrow{'':<21}  {found['libraries']['pyarrow']}" in capsys.readouterr().out


def test_the_issue_template_asks_for_it() -> None:
    """The template for bugs asks for the output of the command, and can be parsed."""
    template = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    assert "`downspout version --json`" in template["body"][0]["attributes"]["description"]


def test_the_hosted_ci_calls_what_ci_calls() -> None:
    """The workflow's last step is ``.ci/run``."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": ".ci/run"}
