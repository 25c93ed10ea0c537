"""Prometheus's language as far as an alert on partitions needs it: comparisons of series, joined by ``and``.

It is evaluated over what one scrape has brought. Series match if all their labels are the same.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = Mapping[Labels, float]
TERM = re.compile(r"(?:(?P<factor>[\d.]+) \* )?(?P<name>[a-z_]+)|(?P<number>-?[\d.]+)")
COMPARISONS = {"<": operator.lt, ">": operator.gt}


def firing(expression: str, scraped: str) -> list[dict[str, str]]:
    """Return the labels of the series for which an alert's expression holds."""
    series: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    held = [_holds(part, series) for part in expression.split(" and ")]
    return [dict(labels) for labels in sorted(set.intersection(*held), key=sorted)]


def _holds(comparison: str, series: Mapping[str, Vector]) -> set[Labels]:
    left, sign, right = re.split(r" ([<>]) ", comparison)
    values = _values(left, series, {})
    others = _values(right, series, values)
    return {labels for labels in values if labels in others and COMPARISONS[sign](values[labels], others[labels])}


def _values(term: str, series: Mapping[str, Vector], like: Vector) -> Vector:
    found = TERM.fullmatch(term)
    assert found is not None, term
    if found["number"]:
        return dict.fromkeys(like, float(found["number"]))
    factor = float(found["factor"] or 1)
    return {labels: factor * value for labels, value in series.get(found["name"], {}).items()}
