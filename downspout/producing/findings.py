"""Findings about a KafkaBolt's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from downspout.errors import ConfigError, DownspoutError
from downspout.findings import Finding
from downspout.kafka.address import parse_bootstrap
from downspout.kafka.clusters import is_registered, is_scheme
from downspout.kafka.partitioners import make_partitioner
from downspout.producing.settings import check, produce_settings
from downspout.settings.table import load

__all__ = ["findings"]


def findings(name: str, conf: Mapping[str, Any]) -> Iterator[Finding]:
    """Find what is wrong with the settings of the KafkaBolt that has this name."""
    try:
        settings = produce_settings(conf)
    except ConfigError:
        return  # said of all components
    try:
        check(conf)
        if (brokers := settings["bootstrap"]) and not is_scheme(brokers) and not is_registered(brokers):
            parse_bootstrap(brokers, "produce.bootstrap")
        for each in ("mapper", "callback"):
            if settings[each] is not None:
                load(f"produce.{each}", settings[each])
        make_partitioner(settings["partitioner"], Random(), "produce.partitioner")
    except DownspoutError as error:
        yield Finding(True, name, error.message, error.cure or "`downspout settings produce`")
    if settings["mode"] == "fire_and_forget" or settings["acks"] == "0":
        what = f"produce.mode = {settings['mode']} and produce.acks = {settings['acks']}: records may be lost"
        yield Finding(False, name, what, "mode=asynchronous and acks=all, if that matters")
