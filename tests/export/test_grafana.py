"""The dashboard for Grafana uses every metric, and only existing ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.grafana import ALERTS
from downspout.export import GROUP_LAG
from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS
from downspout.spout.observe import log_figures
from tests.export.alerts import firing

ROOT = Path(__file__).parents[2]
KNOWN = {metric.series for table in (METRICS, PARTITION_METRICS, RUN_METRICS) for metric in table.values()} | {
    GROUP_LAG
}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "grafana.json").read_text(encoding="utf-8"))
    return found


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield from panel.get("panels", ()) if panel["type"] == "row" else ()
        yield panel


def expressions(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in panels(dashboard) for target in panel.get("targets", ())]
    return asked + [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]


def test_each_expression_names_a_metric(dashboard: dict[str, Any]) -> None:
    """No panel stays empty because its metric is called otherwise; and no metric is without a panel."""
    named = [set(re.findall(r"\b(?:downspout|kafka)_\w+", asked)) for asked in expressions(dashboard)]
    assert all(named)
    assert set().union(*named) == KNOWN


def test_the_alerts_are_those_of_the_page_and_name_metrics() -> None:
    """Grafana's file has each alert once, under a name of its own; the page gives their expressions."""
    (group,) = json.loads((ROOT / "docs/reference/grafana-alerts.json").read_text(encoding="utf-8"))["groups"]
    expressions = [rule["data"][0]["model"]["expr"] for rule in group["rules"]]
    assert expressions == [alert.expression for alert in ALERTS]
    assert all(set(re.findall(r"downspout_\w+", each)) <= KNOWN for each in expressions)
    assert len({rule["uid"] for rule in group["rules"]}) == len(ALERTS)
    page = (ROOT / "docs/how-to/monitor.md").read_text(encoding="utf-8")
    assert "\n".join(expressions) in page


@pytest.mark.parametrize(
    ("begin", "committed", "end", "fires"),
    [(0, 0, 100, False), (50, 55, 150, True), (50, 60, 150, False), (50, 40, 150, True), (50, 150, 150, False)],
    ids=["nothing was deleted", "near", "far enough", "lost", "no lag"],
)
def test_retention_is_near_if_the_commit_is_in_the_oldest_tenth(
    begin: int, committed: int, end: int, fires: bool
) -> None:
    """Of a log from which something was deleted, and only while there is a lag."""
    figures = log_figures(committed, begin, end)
    text = "\n".join(f'{PARTITION_METRICS[name].series}{{partition="7"}} {value}' for name, value in figures.items())
    assert firing(ALERTS[0].expression, text + "\n") == ([{"partition": "7"}] if fires else [])


def test_counters_are_shown_as_rates(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            assert ("rate(" in target["expr"]) == ("_total{" in target["expr"]), target["expr"]
            assert target["expr"].count("(") == target["expr"].count(")")


def test_legends_use_labels_that_are_left(dashboard: dict[str, Any]) -> None:
    """A line is named by labels that its expression keeps."""
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            kept = set(re.findall(r"\w+", re.findall(r"by \(([^)]*)\)", target["expr"])[0]))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept


def test_panels_have_their_own_number_and_place(dashboard: dict[str, Any]) -> None:
    """Grafana draws two panels with one id, or at one place, as one."""
    every = list(panels(dashboard))
    assert len({panel["id"] for panel in every}) == len(every)
    for row in [dashboard["panels"], *(panel["panels"] for panel in dashboard["panels"] if panel.get("panels"))]:
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in row]
        assert len(set(places)) == len(places)
