"""Strategies of Flower: rounds are charged before they are aggregated; `test_flower` runs these tests."""

# ruff: noqa: ANN401 - what the framework gives and takes has no types here

import uuid
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    Strategy,
)
from flwr.supercore.privacy_accounting import PrivacyAccountant

from epsilon_ledger import (
    AttemptSupersededError,
    Event,
    LedgerClient,
    LedgerUnavailableError,
    Limit,
    Run,
    adaptive_clipping,
    gaussian,
    poisson_sampled,
    sampled_without_replacement,
    zcdp,
)
from epsilon_ledger.flower import LedgerResult, UnsupportedRoundError, charge_rounds
from tests.frameworks.flower_grid import LocalGrid, arrays, shifted_by

SMALL = 0.02
"""So little noise that it hides nothing: the mean of clipped updates can be read."""

START = arrays(np.zeros(3, np.float32), np.float32(0.0), np.array([7]))
"""A vector, a scalar, and an integer, which no noise protects."""


@cache
def ledger_client() -> LedgerClient:
    """The client of these tests, with address and key of the environment."""
    return LedgerClient()


def open_budget(relation: Any = "add_or_remove_one", unit: str = "client", epsilon: float = 1e4) -> str:
    name, limit = f"phones-{uuid.uuid4().hex[:8]}", Limit(epsilon, 1e-5)
    ledger_client().create_population(name, privacy_unit=unit, neighboring_relation=relation, limit=limit)
    return name


def open_run(*terms: Any, **named: Any) -> tuple[Run, list[Event]]:
    """Open a run in a population of its own, and list what it is asked for."""
    run, asked = ledger_client().create_run("flower", budget=open_budget(*terms, **named)), []
    authorize = run.authorize

    def noted(count: int = 1, *, event: Event | None = None) -> Any:
        assert event is not None
        asked.append(event)
        return authorize(count, event=event)

    run.authorize = noted  # type: ignore[method-assign, assignment]
    return run, asked


def fixed(inner: Strategy | None = None, *, z: float = SMALL, norm: float = 1.0, clients: int = 4) -> Strategy:
    """Wrap a strategy with Flower's wrapper with a fixed norm."""
    return DifferentialPrivacyServerSideFixedClipping(inner or FedAvg(), z, norm, clients)


def moved(strategy: Strategy, app: Any, clients: int = 4) -> list[np.ndarray]:
    """Return the arrays after a round."""
    result = strategy.start(LocalGrid(app, clients), START, num_rounds=1)
    return [np.asarray(array) for array in result.arrays.to_numpy_ndarrays()]


def test_round_is_charged_before_it_is_aggregated() -> None:
    run, asked = open_run()
    grid, charged = LocalGrid(shifted_by(lambda _: 0.25), 4), []
    result = charge_rounds(fixed(z=1.1), run).start(
        grid, START, num_rounds=3, evaluate_fn=lambda number, _: charged.append((number, len(asked)))
    )
    assert asked == [gaussian(1.1)] * 3
    assert charged == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert run.refresh().next_step == run.expected_steps == 3
    assert isinstance(result, LedgerResult)
    assert result.refusal is None
    # Neither the clients' losses nor their numbers of examples, and nobody was asked to evaluate.
    assert (result.train_metrics_clientapp, result.evaluate_metrics_clientapp) == ({}, {})
    assert [len(messages) for messages in grid.asked] == [4, 0, 4, 0, 4, 0]


def test_no_client_moves_mean_by_more_than_its_share() -> None:
    run, _ = open_run()

    def app(message: Message, context: Any) -> Message:
        far = context.node_id == 1
        return shifted_by(lambda _: 1e6 if far else 0.0, {"num-examples": 10**9 if far else 1})(message, context)

    vector, scalar, whole = moved(charge_rounds(fixed(), run), app)
    # Three coordinates and a scalar share the norm, and four clients the mean.
    assert np.allclose([*vector, scalar], 0.5 / 4, atol=0.03)
    assert whole.tolist() == [7]
    # The noise is as charged.
    strategy = charge_rounds(fixed(z=2.0, norm=0.5, clients=4), run)
    result = strategy.start(LocalGrid(shifted_by(lambda _: 0.0), 2), arrays(np.zeros(40_000)), num_rounds=1)
    (noise,) = result.arrays.to_numpy_ndarrays()
    assert abs(np.std(noise) / (2.0 * 0.5 / 4) - 1) < 0.03


def test_replies_that_are_missing_or_not_bounded_are_no_updates() -> None:
    run, _ = open_run()

    def app(message: Message, context: Any) -> Message:
        if context.node_id == 1:
            raise ValueError("out of memory")
        reply = shifted_by(lambda node: np.nan if node == 2 else np.inf if node == 3 else 0.2)(message, context)
        if context.node_id == 4:
            reply.content["arrays"] = arrays(np.ones(2))
        if context.node_id == 5:
            reply.content["more"] = arrays(np.ones(2))
        return reply

    vector, scalar, _ = moved(charge_rounds(fixed(clients=8), run), app, clients=8)
    assert np.allclose([*vector, scalar], 0.2 * 3 / 8, atol=0.03)


def test_change_by_neighbour_is_charged() -> None:
    one, cost = gaussian(1.0), gaussian(0.5)
    some = {"inner": FedAvg(fraction_train=0.5)}
    cases: list[tuple[str, Any, dict[str, Any], Event]] = [
        ("add_or_remove_one", "client", {}, one),
        ("add_or_remove_one", "client", some, cost),
        ("add_or_remove_one", "client", {"sampling_probability": 0.5}, poisson_sampled(0.5, one)),
        ("add_or_remove_one", "record", {}, cost),
        ("replace_one", "client", some, one),
        ("replace_one", "record", some, one),
        ("replace_one", "client", {"fixed_size": True}, sampled_without_replacement(8, 4, one)),
        ("replace_one", "record", {"fixed_size": True}, sampled_without_replacement(8, 4, one)),
        ("replace_special", "client", some, one),
        ("replace_special", "client", {"sampling_probability": 0.5}, poisson_sampled(0.5, one)),
        ("replace_special", "record", {}, cost),
    ]
    for relation, unit, how, charged in cases:
        run, asked = open_run(relation, "patient")
        options = {key: value for key, value in how.items() if key != "inner"}
        strategy = charge_rounds(fixed(how.get("inner"), z=1.0), run, unit=unit, **options)
        strategy.start(LocalGrid(shifted_by(lambda _: 0.1), 8), START, num_rounds=1)
        assert asked == [charged], (relation, unit, how)
        assert run.refresh().next_step == 1


@pytest.mark.parametrize("how", [{"sampling_probability": 0.5}, {"fixed_size": True}])
def test_samples_are_drawn_by_adapter(how: dict[str, Any]) -> None:
    run, _ = open_run("replace_one" if "fixed_size" in how else "add_or_remove_one")
    grid = LocalGrid(shifted_by(lambda _: 0.1), 40)
    charge_rounds(fixed(z=1.0, clients=20), run, **how).start(grid, START, num_rounds=4)
    samples = [frozenset(message.metadata.dst_node_id for message in asked) for asked in grid.asked[::2]]
    assert len(set(samples)) == 4
    for sample in samples:
        assert len(sample) == 20 if "fixed_size" in how else 0 < len(sample) < 40


def test_round_that_cannot_be_charged_is_refused() -> None:
    run, _ = open_run()
    once = run.next_step
    patients, _ = open_run(unit="patient")
    replacing, _ = open_run("replace_one")
    accountant = PrivacyAccountant.__new__(PrivacyAccountant)
    counted = fixed()
    counted.accountant = accountant

    class Own(DifferentialPrivacyServerSideFixedClipping):
        """May add noise in another way."""

    class Chooses(FedAvg):
        """May choose clients by their data."""

        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            return list(super().configure_train(*arguments))

    half: dict[str, Any] = {"sampling_probability": 0.5}
    refused: list[tuple[str, Strategy, Run, dict[str, Any]]] = [
        ("none of Flower's own wrappers", FedAvg(), run, {}),
        ("none of Flower's own wrappers", Own(FedAvg(), 1.0, 1.0, 2), run, {}),
        ("accountant", counted, run, {}),
        ("single updates", fixed(FedMedian()), run, {}),
        ("noise_multiplier", fixed(z=0.0), run, {}),
        ("not both", fixed(), run, half | {"fixed_size": True}),
        ("sampling_probability", fixed(), run, {"sampling_probability": 1.5}),
        ("proposes all clients", fixed(FedAvg(fraction_train=0.5)), run, half),
        ("proposes all clients", fixed(Chooses()), run, half),
        ("under replace_one only", fixed(), run, {"fixed_size": True}),
        ("fixed_size=True", fixed(), replacing, half),
        ("unit='client'", fixed(), patients, {}),
        ("a neighbour replaces an update", fixed(), patients, half | {"unit": "record"}),
    ]
    for match, strategy, charged, options in refused:
        with pytest.raises((UnsupportedRoundError, ValueError, TypeError), match=match):
            charge_rounds(strategy, charged, **options)
    assert run.next_step == once


def test_client_takes_part_once() -> None:
    class Twice(FedAvg):
        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            return [message for message in super().configure_train(*arguments) for _ in range(2)]

    run, asked = open_run()
    with pytest.raises(UnsupportedRoundError, match="twice"):
        moved(charge_rounds(fixed(Twice()), run), shifted_by(lambda _: 0.1))
    assert asked == []


def test_budget_ends_rounds_and_keeps_model() -> None:
    run, asked = open_run(epsilon=2.0)
    models: list[ArrayRecord] = []
    grid = LocalGrid(shifted_by(lambda _: 0.1), 4)
    result = charge_rounds(fixed(z=4.0), run).start(
        grid, START, num_rounds=500, evaluate_fn=lambda _, model: models.append(model)
    )
    assert result.refusal is not None
    assert result.refusal.code == "budget_exceeded"
    released = run.refresh().next_step
    assert 1 < released == len(asked) - 1 == len(models) - 1
    assert result.arrays is models[-1]
    # The refused round was the last one for which clients were asked.
    assert len(grid.asked) == 2 * released + 1


def test_nothing_is_released_without_answer() -> None:
    run, asked = open_run()
    strategy, models = charge_rounds(fixed(), run), list[ArrayRecord]()
    authorize = run.authorize

    def away(count: int = 1, *, event: Event | None = None) -> Any:
        if len(asked) == 2:
            raise LedgerUnavailableError("away")
        return authorize(count, event=event)

    run.authorize = away  # type: ignore[method-assign, assignment]
    how: dict[str, Any] = {"num_rounds": 3, "evaluate_fn": lambda _, model: models.append(model)}
    with pytest.raises(LedgerUnavailableError):
        strategy.start(LocalGrid(shifted_by(lambda _: 0.1), 4), START, **how)
    assert len(models) == 3
    assert strategy.result.arrays is models[-1]


def test_adaptive_norm_follows_quantile() -> None:
    run, asked = open_run()
    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), 0.1, 4, initial_clipping_norm=0.05, target_clipped_quantile=0.5, clipped_count_stddev=0.1
    )
    strategy = charge_rounds(wrapper, run)
    start = {"initial_arrays": arrays(np.zeros(1)), "num_rounds": 30}
    strategy.start(LocalGrid(shifted_by(lambda node: node / 10), 4), **start)
    assert asked[0] == adaptive_clipping(
        gradient_noise_multiplier=wrapper.noise_multiplier, count_noise_stddev=wrapper.clipped_count_stddev
    )
    # Updates of 0.1, 0.2, 0.3 and 0.4.
    assert 0.15 < wrapper.clipping_norm < 0.35


def test_metrics_of_evaluation_are_charged_if_clients_add_noise() -> None:
    run, asked = open_run()
    cost = zcdp(0.5)
    result = charge_rounds(fixed(z=1.0), run, evaluate_event=cost).start(
        LocalGrid(shifted_by(lambda _: 0.1), 4), START, num_rounds=2, evaluate_config=ConfigRecord()
    )
    assert asked == [gaussian(1.0), cost] * 2
    assert result.evaluate_metrics_clientapp[2] == MetricRecord({"loss": 0.5})
    assert run.expected_steps == 4


def test_restarted_server_continues_in_new_attempt() -> None:
    run, _ = open_run()
    app = shifted_by(lambda _: 0.1)
    first = charge_rounds(fixed(z=1.0), run)
    result = first.start(LocalGrid(app, 4), START, num_rounds=2)
    checkpoint = run.state_dict()
    second = ledger_client().resume_run(checkpoint)
    charge_rounds(fixed(z=1.0), second).start(LocalGrid(app, 4), result.arrays, num_rounds=2)
    assert (second.attempt, second.step) == (2, 4)
    with pytest.raises(AttemptSupersededError):
        first.start(LocalGrid(app, 4), result.arrays, num_rounds=1)
    assert first.result.arrays is result.arrays
