"""The how-to on monitoring works in production as described, and its files are valid."""

from __future__ import annotations

import json
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from downspout.cli import main
from downspout.cli.arguments import METRICS_PORT
from downspout.clock import SYSTEM_CLOCK
from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS
from downspout.settings import SETTINGS
from downspout.testing import FakeKafka
from tests.export.test_run_metrics import COUNTS, beside, page, served_at
from tests.spout.reasons import OTHERS_NEED_IT
from tests.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "how-to" / "monitor.md"
BLOCK = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> list[str]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_the_commands_of_the_page_do_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its run starts, and each curl gets the answer that the page shows; only the port is another."""
    caplog.set_level(logging.INFO, "downspout.export")
    (tmp_path / "topologies").mkdir()
    (tmp_path / "topologies" / "shop.py").write_text(COUNTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    run = next(line for block in blocks() for line in block.splitlines() if f"--metrics-port {METRICS_PORT}" in line)
    asked = [pair for block in blocks() for pair in re.findall(r"^\$ curl -s (\S+)\n((?:[^$\n].*\n)*)", block, re.M)]
    assert [url.rpartition("/")[2] for url, _ in asked] == ["healthz", "readyz", "metrics"]

    def look() -> None:
        served = served_at(caplog)
        eventually(lambda: page(f"{served}/readyz")[0] == 200)
        for url, shown in asked:
            status, text = page(url.replace(str(METRICS_PORT), served.rpartition(":")[2]))
            assert (status, text if shown else "") == (200, shown)

    words = shlex.split(run.replace(str(METRICS_PORT), "0"))
    words = [word for word in words if not word.startswith(("--log-format", "json"))]  # it would stay for other tests
    with FakeKafka("watched", clock=SYSTEM_CLOCK) as kafka:
        kafka.produce("orders", b"first")
        with beside(look):
            assert main([*words[1:], "--quiet"]) == 143


def test_series_that_the_page_names_are_there() -> None:
    """Alerts and tables use names that exist."""
    known = {each.series for table in (METRICS, PARTITION_METRICS, RUN_METRICS) for each in table.values()}
    named = set(re.findall(r"\bdownspout_\w+", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 8
    assert named <= known


def test_the_line_of_the_log_is_one() -> None:
    """The object that the page shows can be parsed, and has the keys that it explains."""
    (line,) = [block for block in blocks() if block.startswith("{")]
    assert {"time", "level", "logger", "message", "component", "task"} == json.loads(line).keys()


@pytest.mark.slow
def test_the_dockerfile_has_no_findings() -> None:
    """hadolint finds nothing, and the command is one that `downspout run` takes."""
    dockerfile = DOCS / "how-to" / "production" / "Dockerfile"
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, "--no-color", dockerfile], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    from downspout.cli import build_parser

    lines = dockerfile.read_text(encoding="utf-8")
    start, given = (json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", lines, re.MULTILINE))
    arguments = build_parser().parse_args([*start[1:], *given])
    assert (arguments.metrics_port, arguments.metrics_host, arguments.log_format) == (METRICS_PORT, "0.0.0.0", "json")


def test_the_stateful_set_asks_what_a_run_answers() -> None:
    """Its probes, its port and its variables are those that there are, and it waits longer than a drain."""
    (shop,) = yaml.safe_load_all((DOCS / "how-to" / "production" / "shop.yaml").read_text(encoding="utf-8"))
    pod = shop["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > SETTINGS["run.drain_s"].default
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert container["ports"] == [{"name": "metrics", "containerPort": METRICS_PORT}]
    assert {each["name"] for each in container["env"]} <= {setting.env for setting in SETTINGS.values()}
    assert shop["spec"]["selector"]["matchLabels"] == shop["spec"]["template"]["metadata"]["labels"]
