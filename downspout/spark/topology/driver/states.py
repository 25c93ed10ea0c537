"""The states of a topology: the driver applies each micro-batch to them, exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from downspout.batches.core.values import ForeignValueError
from downspout.batches.stores import BatchStoreError, Key
from downspout.errors import ComponentError
from downspout.spark.topology.micro_batches import attempt_of
from downspout.spark.topology.plan import Plan
from downspout.spark.topology.stages.stage_run import whole_topology


class States:
    """The StateBolts of a query.

    The number of a micro-batch means something only with its checkpoint. So a state belongs to the query: one that has
    another checkpoint is refused, and its batch 0 is not taken for one that is applied already.
    """

    def __init__(self, plan: Plan, query: str) -> None:
        owned = {name: {**plan.confs[name], "batch.id": f"query {query}"} for name in plan.states}
        self._names, self._plan = plan.states, replace(plan, confs={**plan.confs, **owned})

    def check(self) -> None:
        """Open each state once, and raise what is wrong with it."""
        for name in self._names:
            with self._opened(name):
                pass

    def apply(self, number: int, held: Mapping[str, Sequence[Mapping[Key, Any]]]) -> dict[str, Mapping[str, float]]:
        """Apply a micro-batch: of each state, what its tasks hold. Return each state's own metrics.

        Raises:
            BatchStoreError: a database does not answer, or is locked.
            ComponentError: a state cannot be changed by this batch, however often it comes.
        """
        reports: dict[str, Mapping[str, float]] = {}
        for name in self._names:
            # Each key is in one task alone, by the grouping.
            batch = {key: value for part in held.get(name, ()) for key, value in part.items()}
            try:
                with self._opened(name) as bolt:  # in this thread: SQLite's connections are of one
                    bolt.apply_attempt(attempt_of(number), batch)
                    reports[name] = dict(bolt.report())
            except (BatchStoreError, ForeignValueError) as error:
                if isinstance(error, BatchStoreError) and error.passes:
                    raise
                raise ComponentError(
                    f"{name}: batch {number}: {error}",
                    cure="the checkpoint that the state was written with; or another state.name, which begins anew",
                ) from error
        return reports

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        task = whole_topology(self._plan)[name, 0]
        task.build()
        try:
            yield task.instance
        finally:
            task.instance.close()
