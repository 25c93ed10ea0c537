from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.testing import FakeKafka, MemoryBatches


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka("batches") as kafka:
        kafka.create_topic("lines", 3)
        yield kafka


@pytest.fixture
def memory() -> Iterator[MemoryBatches]:
    with MemoryBatches("test") as memory:
        yield memory
