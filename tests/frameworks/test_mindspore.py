"""Trainings with MindSpore and MindArmour: each pass is charged before its first step, and a refused one is not taken.

MindSpore takes 800 MB: these tests run where it and MindArmour are installed.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import numpy as np
import pytest

from epsilon_ledger import AsyncRun, Event, LedgerClient, Limit, gaussian, poisson_sampled
from epsilon_ledger import mindarmour as ours
from epsilon_ledger._wire.events import GaussianEvent
from tests.sdk.fake_runs import FakeRun

mindspore = pytest.importorskip("mindspore")
theirs = pytest.importorskip("mindarmour.privacy.diff_privacy")

from mindarmour.privacy.diff_privacy.train import model as their_module  # noqa: E402 - where it is installed
from mindspore import dataset as ds  # noqa: E402 - as above
from mindspore import nn  # noqa: E402 - as above
from mindspore.train import Callback  # noqa: E402 - as above

from epsilon_ledger import mindspore as adapter  # noqa: E402 - as above

Theirs: TypeAlias = Any
"""An object of MindSpore or MindArmour."""

N, BATCH, STEPS = 32, 8, 4
CONTEXT = their_module.context.get_context


class Source:
    """Rows of random numbers; arrays, because MindSpore cannot make arrays of numpy 2's numbers."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.x = rng.normal(size=(N, 4)).astype(np.float32)

    def __len__(self) -> int:
        return N

    def __getitem__(self, place: int) -> tuple[Theirs, Theirs]:
        return self.x[place], np.array(self.x[place].sum() > 0, dtype=np.int32)


def rows(**how: object) -> Theirs:
    return ds.GeneratorDataset(Source(), ["x", "y"], **{"shuffle": True} | how)


def batches() -> Theirs:
    return rows().batch(BATCH, drop_remainder=True)


@pytest.fixture(autouse=True)
def _on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    # MindArmour trains on GPU and Ascend only; its operations run here as well.
    def get(name: str) -> Theirs:
        return "GPU" if name == "device_target" else CONTEXT(name)

    monkeypatch.setattr(their_module, "context", SimpleNamespace(get_context=get))


@pytest.fixture
def replacing() -> FakeRun:
    run = FakeRun()
    run.state.neighboring_relation = "replace_one"
    return run


def noise(name: str = "Gaussian", **terms: object) -> Theirs:
    return theirs.NoiseMechanismsFactory.create(name, **{"norm_bound": 1.0, "initial_noise_multiplier": 1.5} | terms)


def small_network() -> Theirs:
    return nn.Dense(4, 2)


def model(
    network: Theirs = None, *, noise_mech: Theirs = None, micro_batches: int | None = BATCH, **terms: object
) -> Theirs:
    network = network or small_network()
    arguments = {"optimizer": nn.Momentum(network.trainable_params(), 0.1, 0.9), "norm_bound": 1.0} | terms
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return theirs.DPModel(
        micro_batches=micro_batches, noise_mech=noise_mech or noise(), network=network, loss_fn=loss, **arguments
    )


class Counting(Callback):
    """Counts the steps that happened, and keeps the parameters after each."""

    def __init__(self, network: Theirs) -> None:
        super().__init__()
        self.network, self.after = network, [network.weight.asnumpy().copy()]

    def on_train_step_end(self, run_context: Theirs) -> None:  # noqa: ARG002 - MindSpore's
        self.after.append(self.network.weight.asnumpy().copy())


def test_each_pass_is_charged_once_before_its_first_step(replacing: FakeRun) -> None:
    network = small_network()
    counting, ledger = Counting(network), adapter.LedgerCallback(replacing.as_run)
    model(network).train(3, batches(), callbacks=[ledger, counting])
    assert replacing.asked == [gaussian(1.5)] * 3
    assert len(counting.after) == 1 + 3 * STEPS
    assert ledger.refusal is None
    assert replacing.expected_steps == 3


@pytest.mark.parametrize("mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE])
def test_a_refused_step_does_not_happen_and_the_training_ends_without_an_exception(mode: int) -> None:
    mindspore.set_context(mode=mode)
    run = FakeRun(capacity=2)
    run.state.neighboring_relation = "replace_one"
    network = small_network()
    counting, ledger = Counting(network), adapter.LedgerCallback(run.as_run)
    model(network).train(5, batches(), callbacks=[ledger, counting])
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert ledger.refusal is not None
    assert len(counting.after) == 1 + 2 * STEPS
    assert np.array_equal(network.weight.asnumpy(), counting.after[-1])


def test_a_run_that_must_be_awaited_is_turned_away() -> None:
    # Its authorize would return at once, and nothing would be charged.
    with pytest.raises(TypeError, match="cannot wait for an AsyncRun"):
        adapter.LedgerCallback(cast("Any", AsyncRun.__new__(AsyncRun)), event=gaussian(2.0))


def test_a_sink_is_charged_before_it(replacing: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a processor MindSpore trains step by step, whatever it is asked for: what follows is what it does elsewhere.
    ledger = adapter.LedgerCallback(replacing.as_run, event=gaussian(3.0))
    charged: list[int] = []
    monkeypatch.setattr(replacing, "authorize", lambda count, **_: charged.append(count))
    params = SimpleNamespace(cur_step_num=0)
    context = SimpleNamespace(original_args=lambda: params)
    ledger.on_train_begin(context)
    for _ in range(2):
        ledger.on_train_epoch_begin(context)
        params.cur_step_num += STEPS
        ledger.on_train_step_begin(context)
    assert charged == [STEPS, STEPS]


@pytest.mark.parametrize("policy", ["Time", "Step", "Exp"])
def test_a_pass_of_decaying_noise_costs_its_least(replacing: FakeRun, policy: str) -> None:
    seen: list[float] = []
    mech = noise("AdaGaussian", decay_policy=policy, noise_decay_rate=0.05)

    class Reading(Callback):
        def on_train_step_begin(self, run_context: Theirs) -> None:  # noqa: ARG002 - MindSpore's
            seen.append(float(mech._noise_multiplier.asnumpy()))

    model(noise_mech=mech).train(2, batches(), callbacks=[adapter.LedgerCallback(replacing.as_run), Reading()])
    least = [min(seen[:STEPS]), min(seen[STEPS:])]
    charged = [cast("GaussianEvent", event)["noise_multiplier"] for event in replacing.asked]
    assert all(0.99999 * real < paid <= real for real, paid in zip(least, charged, strict=True))


@pytest.mark.parametrize("through", ["model", "optimizer"])
def test_noise_is_read_where_it_is(replacing: FakeRun, through: str) -> None:
    network = small_network()
    terms: dict[str, Any] = {"noise_mech": noise(norm_bound=0.5)}
    built: Callable[..., Any] = model
    if through == "optimizer":
        factory = theirs.DPOptimizerClassFactory(micro_batches=BATCH)
        factory.set_mechanisms("Gaussian", norm_bound=0.5, initial_noise_multiplier=1.5)
        optimizer = factory.create("Momentum")(params=network.trainable_params(), learning_rate=0.1, momentum=0.9)
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        terms = {"micro_batches": BATCH, "norm_bound": 1.0, "network": network, "loss_fn": loss, "optimizer": optimizer}
        built = theirs.DPModel
        built(**terms).train(1, batches(), callbacks=[adapter.LedgerCallback(replacing.as_run)])
    else:
        built(network, **terms).train(1, batches(), callbacks=[adapter.LedgerCallback(replacing.as_run)])
    # Noise for a norm of a half on gradients of norm 1.
    assert replacing.asked == [gaussian(0.75)]


def test_means_of_micro_batches_cost_as_half_the_noise(replacing: FakeRun) -> None:
    model(micro_batches=2).train(1, batches(), callbacks=[adapter.LedgerCallback(replacing.as_run)])
    assert replacing.asked == [gaussian(1.5, clipped="microbatch")]


def test_a_seed_is_warned_of(replacing: FakeRun) -> None:
    with pytest.warns(ours.PrivacyWarning, match="predictable"):
        model(noise_mech=noise(seed=5)).train(1, batches(), callbacks=[adapter.LedgerCallback(replacing.as_run)])


def adaptive(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as below
    return model(clip_mech=theirs.ClipMechanismsFactory.create("Gaussian")), batches()


def repeated(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as below
    return model(), rows().repeat(2).batch(BATCH)


def drawn_with_replacement(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as below
    return model(), rows(shuffle=None, sampler=ds.RandomSampler(replacement=True, num_samples=N)).batch(BATCH)


def mixed(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as below
    return model(), rows().batch(BATCH, per_batch_map=lambda x, y, _: (x, y), input_columns=["x", "y"])


def filtered(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as below
    return model(), rows().filter(lambda x, y: bool(x[0] > -9), input_columns=["x", "y"]).batch(BATCH)  # noqa: ARG005


def of_another_relation(replacing: FakeRun) -> Theirs:
    replacing.state.neighboring_relation = "add_or_remove_one"
    return model(), batches()


def with_batch_statistics(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as the others
    return model(nn.SequentialCell(nn.Dense(4, 4), nn.BatchNorm1d(4), nn.Dense(4, 2))), batches()


def without_noise(replacing: FakeRun) -> Theirs:  # noqa: ARG001 - as the others
    network = small_network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return mindspore.train.Model(network, loss, nn.SGD(network.trainable_params(), 0.1)), batches()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (adaptive, "clipping norm moves and the noise does not"),
        (without_noise, "whose noise is not known"),
        (repeated, "RepeatDataset may hand on a record twice"),
        (drawn_with_replacement, "may draw a record several times"),
        (mixed, "without per_batch_map"),
        (filtered, "FilterDataset"),
        (of_another_relation, "must be replace_one"),
        (with_batch_statistics, "moving averages"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused_before_the_first_step(
    replacing: FakeRun, make: Callable[[FakeRun], Theirs], message: str
) -> None:
    training, data = make(replacing)
    before = [parameter.asnumpy().copy() for parameter in training._network.trainable_params()]
    with pytest.raises(adapter.UnsupportedTrainingError, match=message):
        training.train(1, data, callbacks=[adapter.LedgerCallback(replacing.as_run)])
    assert replacing.asked == []
    after = [parameter.asnumpy() for parameter in training._network.trainable_params()]
    assert all(map(np.array_equal, before, after))


def test_less_noise_within_a_pass_is_refused(replacing: FakeRun) -> None:
    mech = noise()

    class Weakening(Callback):
        def on_train_step_end(self, run_context: Theirs) -> None:  # noqa: ARG002 - MindSpore's
            mech._initial_noise_multiplier = mindspore.Tensor(0.5, mindspore.float32)

    network = small_network()
    counting = Counting(network)
    with pytest.raises(adapter.UnsupportedTrainingError, match="must not be changed within a pass"):
        model(network, noise_mech=mech).train(
            2, batches(), callbacks=[adapter.LedgerCallback(replacing.as_run), Weakening(), counting]
        )
    assert len(counting.after) == 2


def test_an_event_of_the_caller_is_charged_with_each_step() -> None:
    event: Event = poisson_sampled(0.1, gaussian(2.0))
    network = small_network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    training = mindspore.train.Model(network, loss, nn.SGD(network.trainable_params(), 0.1))
    ledger = adapter.LedgerCallback(FakeRun(capacity=5).as_run, event=event)
    counting = Counting(network)
    training.train(2, batches(), callbacks=[ledger, counting])
    assert ledger.run.asked == [event] * 5  # type: ignore[attr-defined] # a FakeRun
    assert len(counting.after) == 1 + 5


def test_a_cell_is_trained_by_our_model_on_poisson_samples(fake_run: FakeRun) -> None:
    network = small_network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    factory = ours.DPOptimizerClassFactory(micro_batches=BATCH)
    factory.set_mechanisms("Gaussian", norm_bound=1.0, initial_noise_multiplier=1.5)
    optimizer = factory.create("Momentum")(params=network.trainable_params(), learning_rate=0.1, momentum=0.9)
    fake_run.capacity = 6
    before = network.weight.asnumpy().copy()
    training = ours.DPModel(BATCH, 1.0, optimizer=optimizer, network=network, loss_fn=loss, run=fake_run.as_run)
    training.train(2, batches())
    assert fake_run.asked == [poisson_sampled(BATCH / N, gaussian(1.5))] * 6
    assert training.refusal is not None
    assert not np.array_equal(network.weight.asnumpy(), before)
    with pytest.raises(adapter.UnsupportedTrainingError, match="RepeatDataset"):
        training.train(1, rows().repeat(2).batch(BATCH))


def test_monitors_are_callbacks_of_mindspore(admin: LedgerClient) -> None:
    population = admin.create_population(
        f"shuffled-{mindspore.__version__}",
        privacy_unit="record",
        neighboring_relation="replace_one",
        limit=Limit(30.0, 1e-5),
    )
    lines: list[str] = []
    with admin.create_run("model", budget=population.path) as run:
        monitor = adapter.PrivacyMonitorFactory.create(
            "rdp",
            N,
            BATCH,
            1.5,
            target_delta=1e-5,
            noise_decay_mode=None,
            per_print_times=2,
            run=run,
            write=lines.append,
        )
        model().train(1, batches(), callbacks=[adapter.LedgerCallback(run), monitor])
        assert run.next_step == 1
        assert lines == [f"epoch: 1 step: {step}, delta is 1e-05, eps is {run.epsilon:.6g}" for step in (2, 4)]
