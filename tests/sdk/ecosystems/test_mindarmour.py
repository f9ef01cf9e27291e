"""MindArmour's names over our mechanisms: their signatures and errors, what is charged, and what is warned of."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from epsilon_ledger import (
    BudgetExceededError,
    Event,
    LedgerClient,
    adaptive_clipping,
    composed,
    gaussian,
    mindarmour,
    poisson_sampled,
)
from epsilon_ledger.mindarmour import (
    SGD,
    AdaClippingWithGaussianRandom,
    Adam,
    ClipMechanismsFactory,
    DPModel,
    DPOptimizerClassFactory,
    Momentum,
    NoiseAdaGaussianRandom,
    NoiseGaussianRandom,
    NoiseMechanismsFactory,
    PrivacyMonitorFactory,
    PrivacyWarning,
    RDPMonitor,
    ZCDPMonitor,
)
from tests.sdk.ecosystems.conftest import FakeRun, open_budget

Floats: TypeAlias = NDArray[np.float64]
Parameters: TypeAlias = dict[str, object]

N, BATCH, STEPS = 64, 8, 8
SAMPLED = poisson_sampled(BATCH / N, gaussian(1.5))
REQUIRED = inspect.Parameter.empty
NOISE: Parameters = {"norm_bound": 1.0, "initial_noise_multiplier": 1.0, "seed": 0}
CLIPPING: Parameters = {
    "decay_policy": "Linear",
    "learning_rate": 0.001,
    "target_unclipped_quantile": 0.9,
    "fraction_stddev": 0.01,
    "seed": 0,
}
RECORDS: Parameters = {"num_samples": REQUIRED, "batch_size": REQUIRED, "initial_noise_multiplier": 1.5}
PRINTING: Parameters = {
    "noise_decay_mode": "Time",
    "noise_decay_rate": 6e-4,
    "per_print_times": 50,
    "dataset_sink_mode": False,
}
RDP: Parameters = {"max_eps": 10.0, "target_delta": 1e-3, "max_delta": None, "target_eps": None, "orders": None}
ZCDP: Parameters = {"max_eps": 10.0, "target_delta": 1e-3}
MODEL: Parameters = {"micro_batches": 2, "norm_bound": 1.0, "noise_mech": None, "clip_mech": None}
SIGNATURES: dict[str, Parameters] = {
    "NoiseGaussianRandom": NOISE | {"decay_policy": None},
    "NoiseAdaGaussianRandom": NOISE | {"noise_decay_rate": 6e-6, "decay_policy": "Exp"},
    "AdaClippingWithGaussianRandom": CLIPPING,
    "NoiseMechanismsFactory.create": {"mech_name": REQUIRED} | NOISE | {"noise_decay_rate": 6e-6, "decay_policy": None},
    "ClipMechanismsFactory.create": {"mech_name": REQUIRED} | CLIPPING,
    "PrivacyMonitorFactory.create": {"policy": REQUIRED, "args": REQUIRED, "kwargs": REQUIRED},
    "RDPMonitor": RECORDS | RDP | PRINTING,
    "ZCDPMonitor": RECORDS | ZCDP | PRINTING,
    "RDPMonitor.max_epoch_suggest": {"self": REQUIRED},
    "RDPMonitor.step_end": {"self": REQUIRED, "run_context": REQUIRED},
    "DPOptimizerClassFactory": {"micro_batches": 2},
    "DPOptimizerClassFactory.set_mechanisms": {
        "self": REQUIRED,
        "policy": REQUIRED,
        "args": REQUIRED,
        "kwargs": REQUIRED,
    },
    "DPOptimizerClassFactory.create": {"self": REQUIRED, "policy": REQUIRED},
    "DPModel": MODEL,
}
"""Of MindArmour 2.0.0, in its order. DPModel's optimizer is by default the class Momentum, which neither can use."""


def parameters(module: object, name: str) -> Parameters:
    """Return the parameters that can be given by position, and those that collect others, with their defaults."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(found).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY
        and parameter.name != "optimizer"
        and not (name == "DPModel" and parameter.name == "kwargs")
    }


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_mindarmours(name: str) -> None:
    assert list(parameters(mindarmour, name).items()) == list(SIGNATURES[name].items())


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_the_installed_mindarmour(name: str) -> None:
    theirs = pytest.importorskip("mindarmour.privacy.diff_privacy")
    assert list(parameters(theirs, name).items()) == list(SIGNATURES[name].items())


MISTAKES: list[tuple[str, tuple[object, ...], dict[str, object], type[Exception]]] = [
    ("NoiseMechanismsFactory.create", ("gauss",), {}, NameError),
    ("NoiseMechanismsFactory.create", ("gaussian",), {}, NameError),
    ("NoiseMechanismsFactory.create", ("Gaussian",), {"decay_policy": "Exp"}, ValueError),
    ("NoiseMechanismsFactory.create", ("AdaGaussian",), {}, NameError),
    ("NoiseMechanismsFactory.create", ("AdaGaussian",), {"decay_policy": "exp"}, NameError),
    ("NoiseMechanismsFactory.create", ("Gaussian", "1.0"), {}, TypeError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 0.0), {}, ValueError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 1.0, 0.0), {}, ValueError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 1.0, 1.0, -1), {}, ValueError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 1.0, 1.0, 0.5), {}, TypeError),
    ("NoiseGaussianRandom", ("Gaussian",), {}, TypeError),
    ("NoiseAdaGaussianRandom", (1.0, 1.0, 0, 1.0), {}, ValueError),
    ("NoiseAdaGaussianRandom", (1.0, 1.0, 0, 0.0), {}, ValueError),
    ("ClipMechanismsFactory.create", ("AdaGaussian",), {}, NameError),
    ("ClipMechanismsFactory.create", ("Gaussian", "linear"), {}, ValueError),
    ("ClipMechanismsFactory.create", ("Gaussian", "Linear", 0.0), {}, ValueError),
    ("PrivacyMonitorFactory.create", ("RDP",), {}, ValueError),
    ("PrivacyMonitorFactory.create", ("rdp", "rdp", 100, 10), {}, TypeError),
    ("RDPMonitor", ("rdp", 100), {}, TypeError),
    ("RDPMonitor", (100, 100), {}, ValueError),
    ("RDPMonitor", (100, 0), {}, ValueError),
    ("RDPMonitor", (100, 10, 0.0), {}, ValueError),
    ("RDPMonitor", (100, 10), {"target_delta": None}, ValueError),
    ("RDPMonitor", (100, 10), {"target_eps": 1.0}, ValueError),
    ("RDPMonitor", (100, 10), {"orders": [1.0]}, ValueError),
    ("RDPMonitor", (100, 10), {"noise_decay_mode": "time"}, ValueError),
    ("RDPMonitor", (100, 10), {"noise_decay_rate": 1.5}, ValueError),
    ("RDPMonitor", (100, 10), {"per_print_times": 0}, ValueError),
    ("RDPMonitor", (100, 10), {"dataset_sink_mode": "no"}, TypeError),
    ("ZCDPMonitor", (100, 10), {"max_eps": 0.0}, ValueError),
    ("DPOptimizerClassFactory", ("Momentum",), {}, TypeError),
    ("DPOptimizerClassFactory", (0,), {}, ValueError),
]


def call(module: object, name: str, *args: object, **kwargs: object) -> object:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found(*args, **kwargs)


@pytest.mark.parametrize(("name", "args", "kwargs", "error"), MISTAKES)
def test_a_wrong_argument_fails_at_once(
    name: str, args: tuple[object, ...], kwargs: dict[str, object], error: type[Exception], fake_run: FakeRun
) -> None:
    own = {"run": fake_run} if "Monitor" in name else {}
    with pytest.raises(error) as caught:
        call(mindarmour, name, *args, **kwargs, **own)
    assert type(caught.value) is error


@pytest.mark.parametrize(("name", "args", "kwargs", "error"), MISTAKES)
def test_it_fails_as_in_the_installed_mindarmour(
    name: str, args: tuple[object, ...], kwargs: dict[str, object], error: type[Exception]
) -> None:
    theirs = pytest.importorskip("mindarmour.privacy.diff_privacy")
    with pytest.raises(error):
        call(theirs, name, *args, **kwargs)


class Line:
    """A linear model whose loss is half the squared error."""

    def __init__(self, dtype: type[Any] = np.float64) -> None:
        self.weight, self.bias = np.zeros(3, dtype), np.zeros(1, dtype)

    def trainable_params(self) -> list[Floats]:
        return [self.weight, self.bias]

    def gradients(self, data: Floats, label: Floats) -> list[Floats]:
        error = data @ self.weight + self.bias - label
        return [(data * error[:, np.newaxis]).mean(axis=0), error.mean(keepdims=True)]


def data() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(N, 3))
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


@pytest.mark.parametrize(
    ("policy", "terms"),
    [
        ("sgd", {"learning_rate": 0.1}),
        ("Momentum", {"learning_rate": 0.02, "momentum": 0.9}),
        ("Adam", {"learning_rate": 0.05}),
    ],
)
def test_an_example_of_mindarmour_trains_and_is_charged(
    fake_run: FakeRun, policy: str, terms: dict[str, float]
) -> None:
    network = Line()
    model = build(fake_run, network, noise_mech=None, optimizer=private(policy, network, **terms))
    x, y = data()
    start = float(np.mean(y**2))
    model.train(12, (x, y))
    assert fake_run.asked == [SAMPLED] * 12 * STEPS
    assert fake_run.expected_steps == 12 * STEPS
    assert np.mean((x @ network.weight + network.bias - y) ** 2) < 0.7 * start


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_refusal_ends_the_training_and_nothing_has_moved(kind: type[Any]) -> None:
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


def test_a_callback_can_end_the_training_and_sees_no_loss(fake_run: FakeRun) -> None:
    names: set[str] = set()

    def step_end(context: Any) -> None:  # noqa: ANN401 - a RunContext
        names.update(vars(context.original_args()))
        if context.original_args().cur_step_num == 3:
            context.request_stop()

    build(fake_run).train(2, data(), callbacks=[SimpleNamespace(step_end=step_end)])
    assert len(fake_run.asked) == 3
    assert names == {"cur_step_num", "cur_epoch_num", "batch_num", "epoch_num", "network", "optimizer"}


def test_noise_decays_as_mindarmours_and_goes_on_after_a_restart() -> None:
    mech = {"mech_name": "AdaGaussian", "noise_decay_rate": 0.05, "decay_policy": "Exp"}
    run = FakeRun()
    build(run, noise_mech=NoiseMechanismsFactory.create(**mech, initial_noise_multiplier=1.5)).train(1, data())
    restarted = build(run, noise_mech=NoiseMechanismsFactory.create(**mech, initial_noise_multiplier=1.5))
    restarted.train(1, data())
    assert run.asked == [poisson_sampled(BATCH / N, gaussian(1.5 * np.exp(-0.05 * step))) for step in range(2 * STEPS)]


def test_adaptive_clipping_is_charged_and_the_noise_follows_the_norm(fake_run: FakeRun) -> None:
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


def test_the_default_clipping_at_batch_32_is_warned_of(fake_run: FakeRun, admin: LedgerClient) -> None:
    terms: dict[str, Any] = {"micro_batches": 32, "batch_size": 32}
    noise = NoiseMechanismsFactory.create("Gaussian")
    with pytest.warns(PrivacyWarning, match=r"noise multiplier 1 counts as 0\.539.* Give fraction_stddev=0\.048,"):
        build(fake_run, noise_mech=noise, clip_mech=ClipMechanismsFactory.create("Gaussian"), **terms).train(1, data())
    step = poisson_sampled(0.5, adaptive_clipping(gradient_noise_multiplier=1.0, count_noise_stddev=0.32))
    assert fake_run.asked == [step] * 2

    def epsilon(noise_multiplier: float, event: Event) -> tuple[float, float]:
        accountant = RdpAccountant()
        sampled = dp_accounting.PoissonSampledDpEvent(32 / 60_000, dp_accounting.GaussianDpEvent(noise_multiplier))
        accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, 100))
        found = admin.compute_epsilon([{"event": event, "count": 100}], delta=1e-5).epsilon
        return round(found, 2), round(float(accountant.get_epsilon(1e-5)), 2)

    together = 1 / np.hypot(1, 1 / 0.64)
    assert together == pytest.approx(0.539, abs=5e-4)
    alone = epsilon(1.0, poisson_sampled(32 / 60_000, gaussian(1.0)))
    both = epsilon(
        together,
        poisson_sampled(32 / 60_000, adaptive_clipping(gradient_noise_multiplier=1.0, count_noise_stddev=0.32)),
    )
    # After 100 steps on 60,000 records; by the ledger and by dp_accounting, whose fractional orders are loose.
    assert (alone, both) == ((0.56, 0.56), (2.57, 2.57))


def test_enough_noise_on_the_count_is_not_warned_of(fake_run: FakeRun) -> None:
    clip = AdaClippingWithGaussianRandom(fraction_stddev=0.049)
    noise = NoiseMechanismsFactory.create("Gaussian")
    build(fake_run, noise_mech=noise, clip_mech=clip, micro_batches=32, batch_size=32).train(1, data())
    assert len(fake_run.asked) == 2


def test_means_of_micro_batches_are_warned_of_and_cost_as_half_the_noise(fake_run: FakeRun) -> None:
    with pytest.warns(
        PrivacyWarning, match=r"noise multiplier 1\.5 protects and costs as 0\.75 would\. Give micro_bat"
    ):
        build(fake_run, micro_batches=2).train(1, data())
    assert fake_run.asked == [poisson_sampled(BATCH / N, gaussian(1.5, clipped="microbatch"))] * STEPS
    fake_run.asked.clear()
    with pytest.warns(PrivacyWarning) as caught:
        build(fake_run, micro_batches=2, clip_mech=AdaClippingWithGaussianRandom()).train(1, data())
    assert "noise multiplier 0.75 counts as 0.02." in str(caught[1].message)
    both = composed([gaussian(1.5, clipped="microbatch"), gaussian(2 * 0.02, clipped="microbatch")])
    assert fake_run.asked == [poisson_sampled(BATCH / N, both)] * STEPS


def test_other_batches_in_a_second_training_are_charged_as_what_they_are(fake_run: FakeRun) -> None:
    model = build(fake_run, batch_size=None, micro_batches=4)
    model._batch_size = 4
    model.train(1, data())
    assert fake_run.asked[-1] == poisson_sampled(4 / N, gaussian(1.5))
    model._batch_size = BATCH
    with pytest.warns(PrivacyWarning, match="means of 2 gradients"):
        model.train(1, data())
    assert fake_run.asked[-1] == poisson_sampled(BATCH / N, gaussian(1.5, clipped="microbatch"))


def test_noise_for_another_norm_is_warned_of_and_charged_as_it_is(fake_run: FakeRun) -> None:
    with pytest.warns(PrivacyWarning, match=r"noise multiplier is 0\.75, not 1\.5"):
        build(fake_run, norm_bound=2.0).train(1, data())
    assert fake_run.asked == [poisson_sampled(BATCH / N, gaussian(0.75))] * STEPS


def test_a_seed_is_warned_of() -> None:
    with pytest.warns(PrivacyWarning, match="predictable") as caught:
        first = NoiseMechanismsFactory.create("Gaussian", 1.0, 1.5, 7).mechanism(1.0, "example")
    assert caught[0].filename == __file__
    assert not first.secure
    assert NoiseGaussianRandom().mechanism(1.0, "example").secure


def test_monitors_warn_of_their_defaults(fake_run: FakeRun) -> None:
    with pytest.warns(PrivacyWarning) as caught:
        RDPMonitor(60_000, 32, run=fake_run.as_run)
    said = [str(warning.message) for warning in caught]
    assert len(said) == 2
    assert "target_delta=0.001 is 1/num_samples, 1.7e-05, or more" in said[0]
    assert "noise_decay_rate=6e-4 are this monitor's defaults" in said[1]
    with pytest.warns(PrivacyWarning, match="zCDP does not shrink with sampling"):
        ZCDPMonitor(N, BATCH, 1.5, 10.0, 1e-5, None, run=fake_run.as_run)
    monitor = RDPMonitor(N, BATCH, 1.0, 10.0, 1e-5, noise_decay_mode=None, run=fake_run.as_run, write=print)
    with pytest.warns(PrivacyWarning, match=r"expects noise \(1\.0, None, None\).*adds \(1\.5, None, None\)"):
        build(fake_run).train(1, data(), callbacks=[monitor])


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"micro_batches": None}, "without clipping and noise"),
    ({"micro_batches": 3}, "must divide the batch size"),
    ({"optimizer": None}, "not None or its class"),
    ({"optimizer": Momentum}, "not None or its class"),
    ({"noise_mech": None}, "Give either noise_mech, or"),
    ({"batch_size": None}, "How many records has a batch"),
    ({"batch_size": N + 1, "micro_batches": N + 1}, "from 1 to all records"),
    ({"loss_fn": print}, "computes its own loss"),
]


@pytest.mark.parametrize(("wrong", "message"), MISFITS)
def test_what_does_not_fit_together_is_refused(fake_run: FakeRun, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(fake_run, **wrong).train(1, data())
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
        DPModel(BATCH, 1.0, NoiseGaussianRandom(), None, SGD([np.zeros(2)]), network=object(), run=fake_run.as_run)
    with pytest.raises(ValueError, match="shapes"):
        build(fake_run, optimizer=SGD([np.zeros(2)], 0.1)).train(1, data())
    assert fake_run.asked == []


def test_a_mechanism_is_charged_when_it_is_called(fake_run: FakeRun) -> None:
    noise = NoiseAdaGaussianRandom(0.5, 2.0, 0, 0.1, "Time", run=fake_run.as_run)
    total = [np.array([0.2, 0.9]), np.array([[0.1]])]
    first, second = noise(total, sampling_probability=0.25), noise.construct(np.zeros(3))
    assert [part.shape for part in first] == [(2,), (1, 1)]
    assert second.shape == (3,)
    assert fake_run.asked == [poisson_sampled(0.25, gaussian(2.0)), gaussian(2.0 / 1.1)]
    many = NoiseGaussianRandom(0.5, 2.0, run=fake_run.as_run)(np.full(20_000, 3.0))
    assert many.std() == pytest.approx(1.0, abs=0.05)
    with pytest.raises(ValueError, match="no run to charge"):
        NoiseGaussianRandom()(np.zeros(2))
    fake_run.capacity = len(fake_run.asked)
    with pytest.raises(BudgetExceededError):
        noise(total)


@pytest.mark.parametrize(("policy", "step"), [("Linear", 1 - 0.5 * 0.25), ("Geometric", np.exp(-0.5 * 0.25))])
def test_a_count_is_charged_when_it_is_called(fake_run: FakeRun, policy: Any, step: float) -> None:  # noqa: ANN401 - a name
    clip = ClipMechanismsFactory.create("Gaussian", policy, 0.5, 0.5, 1e-4, run=fake_run.as_run, summands=32)
    assert clip(0.75, 1.0, sampling_probability=0.1) == pytest.approx(step, abs=1e-3)
    assert fake_run.asked == [poisson_sampled(0.1, gaussian(32e-4))]
    with pytest.raises(ValueError, match="Whose count"):
        ClipMechanismsFactory.create("Gaussian")(0.5, 1.0)


@pytest.fixture
def steps_of_an_epoch() -> list[Any]:
    return [
        SimpleNamespace(
            original_args=lambda step=step: SimpleNamespace(cur_step_num=step, cur_epoch_num=1, batch_num=20)
        )
        for step in range(1, 21)
    ]


def monitored(admin: LedgerClient, **terms: Any) -> tuple[RDPMonitor, list[str]]:  # noqa: ANN401 - passed on
    lines: list[str] = []
    arguments = {"target_delta": 1e-5, "noise_decay_mode": None, "ledger": admin, "write": lines.append} | terms
    return PrivacyMonitorFactory.create("rdp", 1_000, 50, **arguments), lines  # type: ignore[return-value] # of 'rdp'


def test_the_suggested_epochs_are_the_last_that_fit(admin: LedgerClient) -> None:
    def cost(epochs: int) -> float:
        events = [{"event": poisson_sampled(0.05, gaussian(1.5)), "count": 20 * epochs}]
        return admin.compute_epsilon(events, delta=1e-5).epsilon  # type: ignore[arg-type] # one event

    monitor, _ = monitored(admin, max_eps=2.5)
    most = monitor.max_epoch_suggest()
    assert most > 3
    assert cost(most) <= 2.5 < cost(most + 1)


def test_a_maximum_of_delta_at_an_epsilon(admin: LedgerClient) -> None:
    def cost(epochs: int) -> float:
        events = [{"event": poisson_sampled(0.05, gaussian(1.5)), "count": 20 * epochs}]
        return admin.compute_delta(events, epsilon=3.0).delta  # type: ignore[arg-type] # one event

    monitor, lines = monitored(
        admin, target_delta=None, target_eps=3.0, max_delta=1e-4, orders=[2, 8.5], per_print_times=1
    )
    most = monitor.max_epoch_suggest()
    assert most > 3
    assert cost(most) <= 1e-4 < cost(most + 1)
    context = SimpleNamespace(original_args=lambda: SimpleNamespace(cur_step_num=20, cur_epoch_num=1, batch_num=20))
    monitor.step_end(context)
    assert lines == [f"epoch: 1 step: 20, delta is {cost(1):g}, eps is 3"]


@pytest.mark.parametrize(("sink", "printed"), [(False, [8, 16]), (True, [20])])
def test_lines_are_printed_every_so_many_steps(
    admin: LedgerClient, steps_of_an_epoch: list[Any], *, sink: bool, printed: list[int]
) -> None:
    monitor, lines = monitored(admin, per_print_times=8, dataset_sink_mode=sink, noise_decay_mode="Exp")
    for context in steps_of_an_epoch:
        monitor.step_end(context)
    assert [line.split(",")[0] for line in lines] == [f"epoch: 1 step: {step}" for step in printed]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"max_eps": None}, "Give max_eps with target_delta"),
        ({"target_delta": None, "target_eps": 1.0}, "Give max_delta with target_eps"),
    ],
)
def test_without_a_limit_nothing_is_suggested(admin: LedgerClient, terms: dict[str, Any], message: str) -> None:
    monitor, _ = monitored(admin, **terms)
    with pytest.raises(ValueError, match=message):
        monitor.max_epoch_suggest()


def test_a_monitor_needs_someone_who_computes() -> None:
    with pytest.raises(ValueError, match="Who computes"):
        RDPMonitor(1_000, 50)


def test_a_job_with_a_run_is_stopped_where_its_monitor_said(admin: LedgerClient) -> None:
    with admin.create_run("model", budget=open_budget(admin, 4.0)) as run:
        lines: list[str] = []
        terms: dict[str, Any] = {"noise_decay_mode": None, "per_print_times": STEPS, "run": run, "write": lines.append}
        monitor = RDPMonitor(N, BATCH, 1.5, 4.0, 1e-5, **terms)
        epochs = monitor.max_epoch_suggest()
        assert epochs > 1
        model = build(run, network=Line())  # type: ignore[arg-type] # a real run
        model.train(epochs + 2, data(), callbacks=[monitor])
        assert model.refusal is not None
        assert epochs * STEPS * 0.8 < run.next_step < (epochs + 2) * STEPS
        assert lines[0].startswith(f"epoch: 1 step: {STEPS}, delta is 1e-05, eps is ")


def test_adam_moves_as_published() -> None:
    param = np.array([1.0])
    optimizer = Adam([param], learning_rate=0.1)
    first: Callable[[list[Floats]], None] = optimizer
    first([np.array([0.5])])
    assert param[0] == pytest.approx(0.9, abs=1e-6)
    first([np.array([-0.5])])
    m, v = (0.9 * 0.1 * 0.5 - 0.1 * 0.5) / (1 - 0.81), (0.999 * 0.001 * 0.25 + 0.001 * 0.25) / (1 - 0.999**2)
    assert param[0] == pytest.approx(0.9 - 0.1 * m / np.sqrt(v), abs=1e-6)
