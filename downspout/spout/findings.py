"""Findings about a KafkaSpout's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from downspout.errors import ConfigError
from downspout.findings import Finding
from downspout.kafka.handshake import check_client
from downspout.settings.secrets import is_secret, with_secrets
from downspout.settings.table import parse_scope
from downspout.spout import validation


def findings(name: str, conf: Mapping[str, Any]) -> Iterator[Finding]:
    """Find what is wrong with the settings of the KafkaSpout that has this name."""
    try:
        settings = parse_scope(conf, "kafka")
    except ConfigError:
        return  # said above
    try:
        validation.check(settings, conf.get("run.until") == "end", conf.get("run.member"))
        validation.check_dead_letter_topic(settings, settings["group"] or str(conf.get("topology.name") or ""))
    except ConfigError as error:
        yield Finding(True, name, error.message, error.cure or "`downspout settings kafka`")
        return
    for what, cure in validation.doubts(settings):
        yield Finding(False, name, what, cure)
    try:
        check_client(parse_scope(with_secrets(conf), "kafka")["client"])
    except ConfigError as error:  # it may be there where the topology will run
        yield Finding(False, name, error.message, error.cure or "set it where the topology runs")
    for key, value in conf.items():
        if is_secret(key, value):
            yield Finding(
                False,
                name,
                f"{key} stands in plain text: Storm keeps and shows the settings of a topology",
                f"{key}=env:NAME, or file:PATH: looked up where the component runs",
            )
