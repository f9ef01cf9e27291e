"""Clients of Flower that add noise of their own; run by `test_flower` where Flower can be imported."""

# ruff: noqa: ANN401 - what the framework gives and takes has no types here

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from epsilon_ledger import ModelOrigin, gaussian
from epsilon_ledger.flower import LedgerMod
from tests.frameworks.flower_grid import LocalGrid, arrays, shifted_by
from tests.frameworks.test_flower_strategies import ledger_client, open_budget

EPSILON, DELTA, NORM = 8.0, 1e-5, 2.0
DEVIATION = 1.0 * np.sqrt(2 * np.log(1.25 / DELTA)) / EPSILON
Z = float(DEVIATION / NORM)
"""Of Flower's noise for sensitivity 1, which is over the norm that it clips to."""


LOCAL_DP = LocalDpMod(clipping_norm=NORM, sensitivity=1.0, epsilon=EPSILON, delta=DELTA)


def client_app(budget: str, app: Any = None, **options: Any) -> ClientApp:
    found = ClientApp(mods=[LedgerMod(LOCAL_DP, budget, **options)])
    answer = app or shifted_by(lambda _: 0.5, {"num-examples": 37, "loss": 0.25})
    found.train()(answer)
    found.evaluate()(answer)
    return found


def ask(grid: LocalGrid, node: int = 1, kind: str = MessageType.TRAIN, size: int = 4) -> Message:
    """Send one message."""
    content = RecordDict({"arrays": arrays(np.zeros(size)), "config": ConfigRecord()})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=node, message_type=kind)])
    return reply


def test_noisy_reply_is_charged_before_it_leaves() -> None:
    origin = ModelOrigin("resnet", "5a" * 32)
    grid = LocalGrid(client_app(open_budget("replace_one", "client"), starts_from=[origin]), 2)
    first = ask(grid, size=20_000)
    (vector,) = first.content["arrays"].to_numpy_ndarrays()
    assert abs(np.std(vector) / DEVIATION - 1) < 0.03
    # Clipped: 0.5 in each coordinate has a norm of 71.
    assert abs(np.mean(vector)) < 0.1
    # Neither the loss nor the number of examples leaves.
    assert list(first.content) == ["arrays", "metrics"]
    assert first.content["metrics"] == MetricRecord({"num-examples": 1})
    ask(grid)
    ask(grid, node=2)
    runs = [ledger_client().get_run(str(grid.contexts[node].state["epsilon-ledger"]["run"])) for node in (1, 2)]
    assert [run.next_step for run in runs] == [2, 1]
    assert [run.starts_from for run in runs] == [(origin,)] * 2


def test_change_of_reply_by_neighbour_is_charged() -> None:
    for relation, unit, z in (
        ("replace_one", "client", Z),
        ("replace_special", "device", Z),
        ("replace_one", "record", Z),
        ("add_or_remove_one", "record", Z / 2),
    ):
        budget = open_budget(relation, unit)
        grid = LocalGrid(client_app(budget, unit="record" if unit == "record" else None), 1)
        ask(grid)
        run = ledger_client().get_run(str(grid.contexts[1].state["epsilon-ledger"]["run"]))
        expected = ledger_client().create_run("alone", budget=open_budget(relation, unit))
        expected.authorize(event=gaussian(z))
        assert run.epsilon == expected.epsilon, (relation, unit)


def test_reply_that_is_not_charged_stays() -> None:
    refused = ask(LocalGrid(client_app(open_budget("replace_one", "client", epsilon=0.5)), 1))
    assert refused.error.reason.startswith("budget_exceeded")
    shows = ask(LocalGrid(client_app(open_budget("add_or_remove_one", "client")), 1))
    assert "shows that its client takes part" in shows.error.reason
    grid = LocalGrid(client_app(open_budget("replace_one", "client")), 1)
    assert "nothing but training" in ask(grid, kind=MessageType.EVALUATE).error.reason
    assert "epsilon-ledger" not in grid.contexts[1].state


def test_reason_of_app_for_its_failure_stays() -> None:
    def failing(message: Message, context: Context) -> Message:
        del context
        return Message(Error(code=1, reason="patient 17 has no age"), reply_to=message)

    def raising(message: Message, context: Context) -> Message:
        del message, context
        raise ValueError("patient 17 has no age")

    def another(message: Message, context: Context) -> Message:
        del context
        return Message(RecordDict({"arrays": arrays(np.ones(17))}), reply_to=message)

    for app in (failing, raising, another):
        reply = ask(LocalGrid(client_app(open_budget("replace_one", "client"), app), 1))
        assert reply.has_error()
        assert "17" not in reply.error.reason


def test_mod_without_noise_is_refused() -> None:
    for epsilon, delta, sensitivity in (
        (0.0, 1e-5, 1.0),
        (1.0, 0.0, 1.0),
        (1.0, 1e-5, 0.0),
        (1.0, 1.25, 1.0),
        (np.inf, 1e-5, 1.0),
    ):
        with pytest.raises(ValueError, match="no noise"):
            LedgerMod(LocalDpMod(1.0, sensitivity, epsilon, delta), "phones")
    with pytest.raises(ValueError, match="clipping_norm is inf"):
        LedgerMod(LocalDpMod(np.inf, 1.0, 1.0, 1e-5), "phones")
