"""Faust (faust-streaming): an agent that takes up to 100,000 events, parses them with orjson and writes a file.

Faust commits what its agents have acknowledged, every few seconds and when it stops. At least once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import faust
import orjson
from flights_parquet import ROWS_PER_FILE, table_of, write_durably

bootstrap, topic, group, directory, records = sys.argv[1:]


async def main() -> None:
    """Run until all records are written and acknowledged."""
    with tempfile.TemporaryDirectory() as data:
        app = faust.App(
            group, broker=f"kafka://{bootstrap}", store="memory://", datadir=data, topic_partitions=4,
            topic_disable_leader=True, web_enabled=False, stream_wait_empty=False,
            consumer_auto_offset_reset="earliest",
        )  # fmt: skip
        done = asyncio.Event()

        @app.agent(app.topic(topic, value_serializer="raw", value_type=bytes))
        async def to_parquet(stream: faust.Stream) -> None:
            remaining, files = int(records), 0
            async for events in stream.take_events(ROWS_PER_FILE, within=1.0):
                rows = [orjson.loads(event.value) for event in events]
                places = [event.message.partition for event in events]
                write_durably(
                    table_of(rows, places, [event.message.offset for event in events]), directory, f"part-{files}"
                )
                files += 1
                remaining -= len(events)
                if not remaining:
                    asyncio.get_running_loop().call_later(0.5, done.set)  # acknowledged behind this iteration

        await app.start()
        await done.wait()
        await app.stop()


asyncio.run(main())
