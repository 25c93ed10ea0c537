"""Faults for requests to a bucket in tests of other engines, and how their processes reach the bucket."""

from __future__ import annotations

import random
import threading
from pathlib import Path


class Faults:
    """Answers some requests by 503, and loses the answers of some others."""

    def __init__(self) -> None:
        self._rng, self._lock = random.Random(7), threading.Lock()

    def __call__(self, line: str) -> str | None:
        with self._lock:
            return self._rng.choices(["", "slow", "lose"], [90, 6, 4])[0] or None


def options_of(endpoint: str, folder: Path) -> list[str]:
    """Return ``parquet.storage_options`` with which any process of this machine reaches a server of the tests."""
    (folder / "secret").write_text("test", encoding="utf-8")
    secret = f"file:{folder / 'secret'}"
    return [f"endpoint={endpoint}", "region=us-east-1", f"access_key_id={secret}", f"secret_access_key={secret}"]
