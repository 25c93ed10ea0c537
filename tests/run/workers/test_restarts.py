"""Which deaths of a worker are mended by another life, and how often."""

from __future__ import annotations

import pytest

from downspout import errors
from downspout.run import ERRORS_MAX, STEADY_S
from downspout.run.supervisor import BACKOFF_S, Restarts, WorkerDeath

AGAIN, FINAL = True, False
FATES = {
    "BrokerError": AGAIN,
    "SilentBrokersError": AGAIN,
    "ComponentError": AGAIN,
    "DownspoutError": AGAIN,
    "ConfigError": FINAL,
    "TopologyError": FINAL,
    "MissingExtraError": FINAL,
    "TakenOverError": FINAL,
    "UnreadableError": FINAL,
    "RecordError": FINAL,
    "UnavailableError": FINAL,
    "DataLossError": FINAL,
    "SinkError": FINAL,
    "StoreAwayError": FINAL,
    "StormError": FINAL,
    "SparkError": FINAL,
    "RunsAlready": FINAL,
}


def of_ours() -> dict[str, type[errors.DownspoutError]]:
    found = vars(errors).items()
    return {name: cls for name, cls in found if isinstance(cls, type) and issubclass(cls, errors.DownspoutError)}


def test_each_error_has_a_fate() -> None:
    """No class of error is without a decision whether a worker that ends with it is started again."""
    decided = {name: Restarts(5).wait_s(WorkerDeath(1, cls("no")), 1.0) is not None for name, cls in of_ours().items()}
    assert decided == FATES


@pytest.mark.parametrize(
    ("death", "most"),
    [
        (WorkerDeath(-9), 7),
        (WorkerDeath(143, drained=True), 7),
        (WorkerDeath(4, errors.BrokerError("no broker")), 7),
        (WorkerDeath(8, errors.ComponentError("it raised")), ERRORS_MAX),
        (WorkerDeath(1), ERRORS_MAX),
    ],
    ids=str,
)
def test_deaths_in_a_row_are_limited(death: WorkerDeath, most: int) -> None:
    """Who dies at once is started again a limited number of times; who would say the same again, a few times only."""
    restarts = Restarts(7)
    waits = [restarts.wait_s(death, lived_s=1.0) for _ in range(most + 1)]
    assert [wait is None for wait in waits] == [False] * most + [True]


def test_the_wait_doubles_up_to_a_limit() -> None:
    """The first restart comes at once, within a static member's session; later ones come ever later, to a limit."""
    restarts = Restarts(8)
    waits = [restarts.wait_s(WorkerDeath(-9), lived_s=1.0) for _ in range(8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert waits[0] == BACKOFF_S[0]


def test_a_long_life_clears_the_count() -> None:
    """Deaths far apart are each the first: a worker that dies every day is started again for ever."""
    restarts = Restarts(1)
    assert [restarts.wait_s(WorkerDeath(-9), lived_s=STEADY_S) for _ in range(5)] == [0.5] * 5
    assert restarts.wait_s(WorkerDeath(-9), lived_s=STEADY_S - 1) is None


def test_no_restarts_at_all_can_be_had() -> None:
    """A limit of 0 ends the run at the first death."""
    assert Restarts(0).wait_s(WorkerDeath(-9), lived_s=3600.0) is None


@pytest.mark.parametrize(
    ("death", "cls", "text"),
    [
        (
            WorkerDeath(2, errors.ConfigError("a is not a number", cure="1")),
            errors.ConfigError,
            "a is not a number. Try: 1",
        ),
        (
            WorkerDeath(4, errors.BrokerError("no broker", cure="start it")),
            errors.BrokerError,
            "worker 3, 2 times in a row: no broker. Try: start it",
        ),
        (WorkerDeath(-9), errors.ComponentError, "worker 3 was killed by signal 9 (SIGKILL), 2 times in a row. Try: "),
        (WorkerDeath(-35), errors.ComponentError, "worker 3 was killed by signal 35"),
    ],
)
def test_the_last_straw_names_worker_and_cause(death: WorkerDeath, cls: type[Exception], text: str) -> None:
    """The error that ends the run is of the class of the worker's; one that all workers have names none of them."""
    restarts = Restarts(1)
    for _ in range(2):
        assert restarts.wait_s(death, 1.0) is None or not death.is_final
    error = restarts.final_error(death, 3)
    assert type(error) is cls
    assert str(error).startswith(text)
