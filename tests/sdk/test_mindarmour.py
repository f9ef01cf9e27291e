"""Trainings under MindArmour's names: what is charged, and what is warned of."""

from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from epsilon_ledger import BudgetExceededError, adaptive_clipping, composed, gaussian, poisson_sampled
from epsilon_ledger.mindarmour import (
    SGD,
    AdaClippingWithGaussianRandom,
    ClipMechanismsFactory,
    DPModel,
    DPOptimizerClassFactory,
    Momentum,
    NoiseAdaGaussianRandom,
    NoiseGaussianRandom,
    NoiseMechanismsFactory,
    PrivacyWarning,
)
from tests.sdk.fake_ledger import FakeRun

Floats: TypeAlias = NDArray[np.float64]

N, BATCH, STEPS = 64, 8, 8


class Line:
    """A linear model whose loss is half the squared error."""

    def __init__(self, dtype: type[Any] = np.float64) -> None:
        self.weight, self.bias = np.zeros(3, dtype), np.zeros(1, dtype)

    def trainable_params(self) -> list[Floats]:
        return [self.weight, self.bias]

    def gradients(self, data: Floats, label: Floats) -> list[Floats]:
        error = data @ self.weight + self.bias - label
        return [(data * error[:, np.newaxis]).mean(axis=0), error.mean(keepdims=True)]


def data(records: int = N) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(records, 3))
    return x, x @ np.array([1.0, -2.0, 0.5])


def build(run: FakeRun, network: Line | None = None, **terms: Any) -> DPModel:  # noqa: ANN401 - passed on
    network = network or Line()
    arguments: dict[str, Any] = {
        "micro_batches": BATCH,
        "noise_mech": NoiseMechanismsFactory.create("Gaussian", 1.0, 1.5),
        "optimizer": SGD(network.trainable_params(), 0.1),
        "network": network,
        "batch_size": BATCH,
        "run": run,
    }
    return DPModel(**arguments | terms)


def private(policy: str, network: Line, **terms: Any) -> Any:  # noqa: ANN401 - passed on
    factory = DPOptimizerClassFactory(micro_batches=BATCH)
    factory.set_mechanisms("Gaussian", norm_bound=1.0, initial_noise_multiplier=1.5)
    return factory.create(policy)(params=network.trainable_params(), **terms)


SAMPLED = poisson_sampled(BATCH / N, gaussian(1.5))


@pytest.mark.parametrize(
    ("policy", "terms"),
    [
        ("sgd", {"learning_rate": 0.1}),
        ("Momentum", {"learning_rate": 0.02, "momentum": 0.9}),
        ("Adam", {"learning_rate": 0.05}),
    ],
)
def test_example_of_mindarmour_trains_and_is_charged(fake_run: FakeRun, policy: str, terms: dict[str, float]) -> None:
    network = Line()
    model = build(fake_run, network, noise_mech=None, optimizer=private(policy, network, **terms))
    x, y = data()
    start = float(np.mean(y**2))
    model.train(12, (x, y))
    assert fake_run.asked == [SAMPLED] * 12 * STEPS
    assert fake_run.expected_steps == 12 * STEPS
    assert np.mean((x @ network.weight + network.bias - y) ** 2) < 0.7 * start


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_refusal_ends_training_and_nothing_has_moved(kind: type[Any]) -> None:
    run, network = FakeRun(capacity=5), Line(kind)
    seen: list[list[Floats]] = []
    listener = SimpleNamespace(
        step_end=lambda context: seen.append(
            [part.copy() for part in context.original_args().network.trainable_params()]
        )
    )
    model = build(run, network)
    model.train(3, data(), callbacks=listener)
    assert isinstance(model.refusal, BudgetExceededError)
    assert len(seen) == 5
    assert all(map(np.array_equal, seen[-1], network.trainable_params()))
    assert network.weight.dtype == kind


def test_callback_that_requests_stop_ends_training(fake_run: FakeRun) -> None:
    listener = SimpleNamespace(step_end=lambda context: context.request_stop() if len(fake_run.asked) == 3 else None)
    build(fake_run).train(2, data(), callbacks=[listener])
    assert fake_run.asked == [SAMPLED] * 3


def test_noise_decays_as_mindarmours_and_goes_on_after_restart() -> None:
    run = FakeRun()
    for _ in range(2):
        mech = NoiseMechanismsFactory.create("AdaGaussian", 1.0, 1.5, noise_decay_rate=0.05, decay_policy="Exp")
        build(run, noise_mech=mech).train(1, data())
    assert run.asked == [poisson_sampled(BATCH / N, gaussian(1.5 * np.exp(-0.05 * step))) for step in range(2 * STEPS)]


def test_adaptive_clipping_is_charged_and_noise_follows_norm(fake_run: FakeRun) -> None:
    clip = ClipMechanismsFactory.create("Gaussian", "Geometric", 0.5, 0.5, 0.4)
    model = build(fake_run, clip_mech=clip)
    model.train(1, data())
    step = poisson_sampled(BATCH / N, adaptive_clipping(gradient_noise_multiplier=1.5, count_noise_stddev=0.4 * BATCH))
    assert fake_run.asked == [step] * STEPS
    state: Any = model.state_dict()
    assert state["noise"]["clipping_norm"] != 1.0
    again = build(fake_run, clip_mech=clip)
    again.load_state_dict(state)
    again.train(1, data())
    assert fake_run.asked == [step] * 2 * STEPS


def test_default_clipping_at_batch_32_is_warned_of(fake_run: FakeRun) -> None:
    terms: dict[str, Any] = {"micro_batches": 32, "batch_size": 32, "noise_mech": NoiseGaussianRandom()}
    with pytest.warns(PrivacyWarning, match=r"noise multiplier 1 counts as 0\.539.* Give fraction_stddev=0\.048,"):
        build(fake_run, clip_mech=ClipMechanismsFactory.create("Gaussian"), **terms).train(1, data())
    step = poisson_sampled(0.5, adaptive_clipping(gradient_noise_multiplier=1.0, count_noise_stddev=0.32))
    assert fake_run.asked == [step] * 2
    # The distance in units of the noise: a record moves the sum by 1 and the count by 1/2.
    assert 1 / np.hypot(1, 1 / 0.64) == pytest.approx(0.539, abs=5e-4)


def test_dangerous_terms_are_warned_of_and_charged_as_they_are(fake_run: FakeRun) -> None:
    with pytest.warns(
        PrivacyWarning, match=r"noise multiplier 1\.5 protects and costs as 0\.75 would\. Give micro_bat"
    ):
        build(fake_run, micro_batches=2).train(1, data())
    with pytest.warns(PrivacyWarning) as caught:
        build(fake_run, micro_batches=2, clip_mech=AdaClippingWithGaussianRandom()).train(1, data())
    assert "noise multiplier 0.75 counts as 0.02." in str(caught[1].message)
    with pytest.warns(PrivacyWarning, match=r"noise multiplier is 0\.75, not 1\.5"):
        build(fake_run, norm_bound=2.0).train(1, data())
    both = composed([gaussian(1.5, clipped="microbatch"), gaussian(2 * 0.02, clipped="microbatch")])
    events = [gaussian(1.5, clipped="microbatch"), both, gaussian(0.75)]
    assert fake_run.asked == [poisson_sampled(BATCH / N, event) for event in events for _ in range(STEPS)]


def test_seed_is_warned_of() -> None:
    with pytest.warns(PrivacyWarning, match="predictable") as caught:
        first = NoiseMechanismsFactory.create("Gaussian", 1.0, 1.5, 7).mechanism(1.0, "example")
    assert caught[0].filename == __file__
    assert not first.secure
    assert NoiseGaussianRandom().mechanism(1.0, "example").secure


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"micro_batches": None}, "without clipping and noise"),
    ({"micro_batches": 3}, "must divide the batch size"),
    ({"optimizer": None}, "not None or its class"),
    ({"optimizer": Momentum}, "not None or its class"),
    ({"noise_mech": None}, "Give either noise_mech, or"),
    ({"batch_size": None}, "How many records has a batch"),
    ({"batch_size": N + 1, "micro_batches": N + 1}, f"A batch has {N + 1} of {N} records, but at most all"),
    ({"public_size": 0}, "public_size must be at least 1, not 0"),
    ({"loss_fn": print}, "computes its own loss"),
]


def test_misfitting_arguments_are_refused(fake_run: FakeRun) -> None:
    for wrong, message in MISFITS:
        with pytest.raises(ValueError, match=message):
            build(fake_run, **wrong).train(1, data())
    assert fake_run.asked == []


@pytest.mark.parametrize("terms", [{}, {"public_size": 60}])
def test_number_of_records_shows_in_neither_steps_nor_rate_nor_divisor(terms: dict[str, int]) -> None:
    size = 1_000 if terms else 60
    for records in (59, 60):
        run, network = FakeRun(population_size=size), Line()
        noise = NoiseGaussianRandom(1.0, 1e-3)
        build(run, network, noise_mech=noise, batch_size=20, micro_batches=20, **terms).train(1, data(records))
        assert run.asked == [poisson_sampled(20 / 60, gaussian(1e-3))] * 3
        # Of these records, each has a gradient of 1 for the bias.
        ones = np.zeros((records, 3)), np.full(records, -1.0)
        network = Line()
        build(run, network, noise_mech=noise, batch_size=60, micro_batches=60, **terms).train(1, ones)
        assert network.bias == pytest.approx(-0.1 * records / 60, abs=1e-4)
    with pytest.raises(ValueError, match=r"the number of records is private.*public_size="):
        build(FakeRun(population_size=None)).train(1, data())


def test_sample_of_failed_step_is_not_discarded_for_other_records(fake_run: FakeRun) -> None:
    model = build(fake_run, optimizer=SGD([np.zeros(2)], 0.1), public_size=N)
    with pytest.raises(ValueError, match="shapes"):
        model.train(1, data())
    with pytest.raises(ValueError, match="had drawn a sample, which was not charged"):
        model.train(1, data(N - 1))
    assert fake_run.asked == []


def test_noise_has_one_place_and_clipping_does_not_go_with_adaptive_noise(fake_run: FakeRun) -> None:
    network = Line()
    with pytest.raises(ValueError, match="Give either noise_mech, or"):
        build(fake_run, network, optimizer=private("sgd", network))
    with pytest.raises(ValueError, match="made for 8 micro_batches, but the model for 4"):
        build(fake_run, network, noise_mech=None, micro_batches=4, optimizer=private("sgd", network))
    with pytest.raises(ValueError, match="clip_mech must be None"):
        build(fake_run, noise_mech=NoiseAdaGaussianRandom(), clip_mech=AdaClippingWithGaussianRandom())
    factory = DPOptimizerClassFactory()
    with pytest.raises(NameError, match="'SGD', 'Momentum' or 'Adam'"):
        factory.create("RMSProp")
    with pytest.raises(ValueError, match="Which noise"):
        factory.create("Momentum")
    with pytest.raises(TypeError, match="must be a run of the ledger"):
        DPModel(BATCH, 1.0, NoiseGaussianRandom(), None, SGD([np.zeros(2)]), network=network, run=None)  # type: ignore[arg-type] # refused
    with pytest.raises(ValueError, match="computes its own loss"):
        DPModel(BATCH, 1.0, NoiseGaussianRandom(), None, SGD([np.zeros(2)]), network=object(), run=fake_run)
    with pytest.raises(ValueError, match="shapes"):
        build(fake_run, optimizer=SGD([np.zeros(2)], 0.1)).train(1, data())
    assert fake_run.asked == []


def test_mechanism_is_charged_when_it_is_called(fake_run: FakeRun) -> None:
    noise = NoiseAdaGaussianRandom(0.5, 2.0, 0, 0.1, "Time", run=fake_run)
    total = [np.array([0.2, 0.9]), np.array([[0.1]])]
    first, second = noise(total, sampling_probability=0.25), noise.construct(np.zeros(3))
    assert [part.shape for part in first] == [(2,), (1, 1)]
    assert second.shape == (3,)
    assert fake_run.asked == [poisson_sampled(0.25, gaussian(2.0)), gaussian(2.0 / 1.1)]
    many = NoiseGaussianRandom(0.5, 2.0, run=fake_run)(np.full(20_000, 3.0))
    assert many.std() == pytest.approx(1.0, abs=0.05)
    with pytest.raises(ValueError, match="no run to charge"):
        NoiseGaussianRandom()(np.zeros(2))
    fake_run.ledger.capacity = len(fake_run.asked)
    with pytest.raises(BudgetExceededError):
        noise(total)


@pytest.mark.parametrize(("policy", "norm"), [("Linear", 1 - 0.5 * 0.25), ("Geometric", np.exp(-0.5 * 0.25))])
def test_count_is_charged_when_mechanism_is_called(fake_run: FakeRun, policy: Any, norm: float) -> None:  # noqa: ANN401 - a name
    clip = ClipMechanismsFactory.create("Gaussian", policy, 0.5, 0.5, 1e-4, run=fake_run, summands=32)
    assert clip(0.75, 1.0, sampling_probability=0.1) == pytest.approx(norm, abs=1e-3)
    assert fake_run.asked == [poisson_sampled(0.1, gaussian(32e-4))]
    with pytest.raises(ValueError, match="Whose count"):
        ClipMechanismsFactory.create("Gaussian")(0.5, 1.0)
