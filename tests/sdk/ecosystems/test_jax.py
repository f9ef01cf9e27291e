"""Real training steps of JAX, with the noise of Optax and of jax-privacy, that the ledger admits or refuses."""

# ruff: noqa: ANN401 - arrays and trees

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from jax_privacy import noise_addition
from jax_privacy.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    UserSelectionStrategy,
    pad_to_multiple_of,
)
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from jax_privacy.matrix_factorization import streaming_matrix

from epsilon_ledger import (
    AsyncLedgerClient,
    BudgetExceededError,
    LedgerClient,
    LedgerUnavailableError,
    Run,
    gaussian,
    poisson_sampled,
    sampled_without_replacement,
)
from epsilon_ledger.jax import UnsupportedTrainingError, authorized, secret_key
from tests.conftest import LiveServer
from tests.sdk.ecosystems.conftest import OWN, CountingRun, open_budget

pytestmark = [
    # jax-privacy 2.0 calls it.
    pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning"),
]

N, CLIP, NOISE, PROBABILITY = 64, 1.5, 2.0, 0.25
SIZE = 48
"""No sample of the tests exceeds it: 32 more than the mean of 16, nine standard deviations."""
DATA = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
STEP = poisson_sampled(PROBABILITY, gaussian(NOISE))
POISSON = CyclicPoissonSampling(sampling_prob=PROBABILITY, iterations=8)


@pytest.fixture
def run() -> CountingRun:
    return CountingRun()


def loss(params: Any, x: Any) -> Any:
    return jnp.sum(x @ params["w"]) ** 2


GRAD = jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=N * PROBABILITY)
OPTIMIZER = optax.adam(0.1)


def privatizer(key: Any) -> Any:
    return noise_addition.gaussian_privatizer(stddev=NOISE * GRAD.sensitivity(), prng_key=key)


def plain(params: Any, opt_state: Any, noise_state: Any, x: Any, is_padding: Any) -> Any:
    """Take a step, as jax-privacy's documentation writes it."""
    clipped = GRAD(params, x, is_padding_example=is_padding)
    noisy, noise_state = privatizer(0).update(clipped, noise_state)
    updates, opt_state = OPTIMIZER.update(noisy, opt_state)
    return optax.apply_updates(params, updates), opt_state, noise_state


KEPT, DONATED = jax.jit(plain), jax.jit(plain, donate_argnums=(0, 1, 2))


@dataclass
class Private:
    """A training with jax-privacy."""

    key: Any = field(default_factory=secret_key)

    def __post_init__(self) -> None:
        self.privatizer = privatizer(self.key)
        params = {"w": jnp.zeros(4)}
        self.state = (params, OPTIMIZER.init(params), self.privatizer.init(params))

    def authorized(self, run: Any, step: Any = DONATED, **how: Any) -> Any:
        given = {"noise": self.privatizer, "clipped_grad": GRAD, "batches": POISSON} | how
        return authorized(step, run, **given)

    def train(self, step: Callable[..., Any], batches: Iterator[Any]) -> None:
        for indices in batches:
            self.take(step, indices)

    def take(self, step: Callable[..., Any], indices: Any) -> None:
        padded = pad_to_multiple_of(indices, SIZE)
        self.state = step(*self.state, DATA[padded], padded < 0)


def test_every_step_asks_for_what_jax_privacy_does(run: CountingRun) -> None:
    training = Private()
    step = training.authorized(run)
    training.train(step, step.batch_iterator(N))
    assert run.asked == [STEP] * POISSON.iterations
    assert np.asarray(training.state[0]["w"]).all()


def test_a_refusal_leaves_donated_arguments_and_the_batch(run: CountingRun) -> None:
    run.capacity = 3
    training = Private()
    step = training.authorized(run)
    batches = step.batch_iterator(N)
    for _ in range(3):
        training.take(step, next(batches))
    before = jax.tree.map(np.array, training.state[0])
    refused = next(batches)
    with pytest.raises(BudgetExceededError):
        training.take(step, refused)
    assert jax.tree.all(jax.tree.map(np.array_equal, before, training.state[0]))
    run.capacity = 4
    training.take(step, refused)
    assert run.asked == [STEP] * 4


def test_a_training_ends_at_its_budget_with_grants(live_server: LiveServer) -> None:
    training = Private()
    with LedgerClient(live_server.url, live_server.key("admin")) as client:
        budget = open_budget(client, 6.0)
        with client.create_run("jax", budget=budget, authorize_every=50) as run:
            step = training.authorized(run, batches=PROBABILITY)
            with pytest.raises(BudgetExceededError):
                training.train(step, step.batch_iterator(N))
            taken = run.step
        assert taken is not None
        assert taken > 5
        assert int(training.state[1][0].count) == taken
        # A resumed run goes on with a key of its own, and not with the samples of a seed.
        resumed = client.create_run("again", budget=open_budget(client, 6.0))
        resumed.authorize(event=STEP)
        training = Private()
        fresh = training.authorized(resumed)
        training.take(fresh, next(fresh.batch_iterator(N)))
        assert resumed.next_step == 2
        resumed.complete()


def test_a_schedule_of_the_run_is_charged_by_its_own_word(run: CountingRun) -> None:
    step = authorized(jax.jit(lambda x: x + 1), run.as_run)
    assert int(step(jnp.zeros((), int))) == 1
    given = authorized(jax.jit(lambda x: x + 1), run.as_run, event=STEP)
    assert int(given(x=jnp.zeros((), int))) == 1
    assert run.asked == [OWN, STEP]


TRACES: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda step, x: jax.jit(step)(x),
    "closed over": lambda step, x: jax.jit(lambda: step(x))(),
    "scan": lambda step, x: jax.lax.scan(lambda c, _: (step(c), None), x, length=3),
    "cond": lambda step, x: jax.lax.cond(True, lambda: step(x), lambda: x),  # noqa: FBT003 - JAX's signature
    "vmap": lambda step, x: jax.vmap(step)(x),
    "grad": lambda step, x: jax.grad(lambda y: step(y).sum())(x),
    "pmap": lambda step, x: jax.pmap(step)(x[None]),
    "eval_shape": jax.eval_shape,
    "lower": lambda step, x: jax.jit(step).lower(x),
}


@pytest.mark.parametrize("trace", TRACES)
def test_a_traced_step_is_turned_away(run: CountingRun, trace: str) -> None:
    step = authorized(lambda x: x * 2.0, run.as_run, event=STEP)
    with pytest.raises(UnsupportedTrainingError, match="being traced"):
        TRACES[trace](step, jnp.ones(3))
    assert run.asked == []
    with jax.disable_jit():
        assert float(jax.jit(step)(jnp.ones(3))[0]) == 2.0
    assert run.asked == [STEP]


def test_compiled_and_mapped_steps_ask_once_a_call(run: CountingRun) -> None:
    compiled = jax.jit(lambda x: x * 2.0).lower(jnp.ones(3)).compile()
    assert float(authorized(compiled, run.as_run, event=STEP)(jnp.ones(3))[0]) == 2.0
    mapped = jax.pmap(lambda x: x + jax.lax.psum(1.0, "i"), axis_name="i")
    assert float(authorized(mapped, run.as_run, event=STEP)(jnp.ones((1, 3)))[0, 0]) == 2.0
    assert run.asked == [STEP] * 2


def test_a_scan_over_steps_is_charged_for_all_of_them(run: CountingRun) -> None:
    run.capacity = 9
    training = Private()

    def several(state: Any, x: Any, is_padding: Any) -> Any:
        return jax.lax.scan(lambda carry, batch: (plain(*carry, *batch), None), state, (x, is_padding))[0]

    scanned = training.authorized(run, jax.jit(several), batches=PROBABILITY, steps_per_call=4)
    drawn = (pad_to_multiple_of(indices, SIZE) for indices in scanned.batch_iterator(N))
    for _ in range(2):
        indices = np.stack([next(drawn) for _ in range(4)])
        training.state = scanned(training.state, DATA[indices], indices < 0)
    assert run.counts == [4, 4]
    next(drawn)
    with pytest.raises(UnsupportedTrainingError, match="takes 4 batch"):
        scanned(training.state, DATA[indices], indices < 0)
    for _ in range(3):
        next(drawn)
    with pytest.raises(BudgetExceededError):
        scanned(training.state, DATA[indices], indices < 0)


def test_a_batch_is_stepped_once(run: CountingRun) -> None:
    training = Private()
    step = training.authorized(run)
    with pytest.raises(UnsupportedTrainingError, match="takes 1 batch"):
        training.take(step, np.arange(16))
    for indices in step.batch_iterator(N):
        training.take(step, indices)
        with pytest.raises(UnsupportedTrainingError, match="takes 1 batch"):
            training.take(step, indices)
        break
    # What the first iteration left behind covers nothing.
    left, again = step.batch_iterator(N), step.batch_iterator(N)
    next(left)
    indices = next(again)
    training.take(step, indices)
    with pytest.raises(UnsupportedTrainingError, match="takes 1 batch"):
        training.take(step, indices)
    assert len(run.asked) == 2


def test_batches_drawn_ahead_are_stepped_in_their_turn(run: CountingRun) -> None:
    training = Private()
    step = training.authorized(run)
    training.train(step, iter(list(step.batch_iterator(N))))
    assert run.asked == [STEP] * POISSON.iterations


class TestNoise:
    """What is read is what the framework adds."""

    def deviation(self, transformation: optax.GradientTransformation, gradient: Any) -> float:
        """Measure the noise on a gradient of zero."""
        params = {"w": jnp.zeros(20_000)}
        noisy, _ = transformation.update(gradient, transformation.init(params), params)
        return float(jnp.std(noisy["w"]))

    @pytest.mark.parametrize(
        ("clipping", "norm"),
        [
            ({"l2_clip_norm": CLIP}, CLIP),
            ({"l2_clip_norm": CLIP, "normalize_by": 16.0}, CLIP / 16),
            ({"l2_clip_norm": CLIP, "rescale_to_unit_norm": True, "keep_batch_dim": False}, 1.0),
            ({"l2_clip_norm": CLIP, "has_aux": True, "return_grad_norms": True, "microbatch_size": 4}, CLIP),
        ],
    )
    @pytest.mark.parametrize("chained", [False, True])
    def test_of_jax_privacy(self, run: CountingRun, clipping: dict[str, Any], norm: float, *, chained: bool) -> None:
        grad = jax_privacy.clipped_grad(loss, **clipping)
        stddev = 0.7 * grad.sensitivity()
        noise = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=secret_key())
        assert self.deviation(noise, {"w": jnp.zeros(20_000)}) == pytest.approx(0.7 * norm, rel=0.03)
        if chained:
            noise = optax.chain(optax.chain(noise), optax.adam(0.1))
        step = authorized(lambda: None, run.as_run, noise=noise, clipped_grad=grad, batches=1.0)
        next(step.batch_iterator(N))
        assert step.event == poisson_sampled(1.0, gaussian(stddev / norm))

    def test_of_optax(self, run: CountingRun) -> None:
        plain = optax.contrib.differentially_private_aggregate(CLIP, 0.7, key=secret_key())
        assert self.deviation(plain, {"w": jnp.zeros((8, 20_000))}) == pytest.approx(0.7 * CLIP / 8, rel=0.03)
        with pytest.warns(DeprecationWarning, match="seed"):
            whole = optax.contrib.dpsgd(0.1, jnp.asarray(CLIP), 0.7, seed=1, momentum=0.9)
        for noise in (plain, whole, optax.chain(plain, optax.adam(0.1))):
            step = authorized(lambda: None, run.as_run, noise=noise, batches=0.5)
            next(step.batch_iterator(N))
            assert step.event is not None
            inner: Any = step.event
            assert inner["event"]["noise_multiplier"] == pytest.approx(0.7, rel=1e-6)

    @pytest.mark.parametrize(
        ("relation", "multiplier"),
        [(NeighboringRelation.REPLACE_SPECIAL, 1.1), (NeighboringRelation.REPLACE_ONE, 2.2)],
    )
    def test_of_an_execution_plan(self, run: CountingRun, relation: NeighboringRelation, multiplier: float) -> None:
        plan = self.plan(strategy=[0.5], accountant=PLDAccountant(relation), normalize_by=16.0)
        assert self.deviation(plan.noise_addition_transform, {"w": jnp.zeros(20_000)}) == pytest.approx(
            multiplier / 16, rel=0.03
        )
        step = authorized(lambda: None, run.as_run, noise=plan)
        assert len(list(step.batch_iterator(N))) == 10
        # The ledger doubles the sensitivity under replace_one by itself.
        assert step.event == poisson_sampled(0.1, gaussian(multiplier))

    def test_of_a_plan_that_cannot_be_charged_by_steps(self, run: CountingRun) -> None:
        turned_away: list[tuple[dict[str, Any], str]] = [
            ({"strategy": [1.0, 0.5]}, "at once"),
            ({"num_examples": N, "truncated_batch_size": 8}, "at once"),
            # jax-privacy scales the noise by the norm of the strategy, and its matrix without it.
            (
                {"strategy": [0.5], "column_normalize": True},
                r"says that the noise multiplier is 1\.1, but its noise is 0\.55",
            ),
        ]
        for changed, reason in turned_away:
            with pytest.raises(UnsupportedTrainingError, match=reason):
                authorized(lambda: None, run.as_run, noise=self.plan(**changed))
        with pytest.raises(ValueError, match="give the plan alone"):
            authorized(lambda: None, run.as_run, noise=self.plan(), batches=0.1)

    def plan(self, **changed: Any) -> Any:
        given = {"strategy": [1.0], "iterations": 10, "epsilon": None, "delta": None, "noise_multiplier": 1.1}
        given |= {"sampling_prob": 0.1, "noise_seed": 2**31} | changed
        return BandMFExecutionPlanConfig(**given | {"strategy": np.array(given["strategy"])}).plan

    def test_that_is_unknown_is_turned_away(self, run: CountingRun) -> None:
        aggregate = partial(optax.contrib.differentially_private_aggregate, key=secret_key())
        private = privatizer(0)
        correlated = noise_addition.matrix_factorization_privatizer(streaming_matrix.prefix_sum(), stddev=1.0)
        dense = noise_addition.matrix_factorization_privatizer(jnp.eye(4), stddev=1.0)
        injected = optax.inject_hyperparams(aggregate, static_args=("key",))(l2_norm_clip=1.0, noise_multiplier=1.0)
        turned_away: list[tuple[Any, Any, str]] = [
            (optax.sgd(0.1), None, "not known here"),
            (optax.chain(optax.clip(1.0), aggregate(1.0, 1.0)), None, "not known here"),
            (optax.MultiSteps(aggregate(1.0, 1.0), 2).gradient_transformation(), None, "not known here"),
            (injected, None, "not known here"),
            (dense, GRAD, "not known here"),
            (aggregate(1.0, 1.0), GRAD, "clips by itself"),
            (aggregate(np.ones(2), 1.0), None, "no number"),
            (correlated, GRAD, "correlated"),
            (private, None, "give clipped_grad"),
            (private, jax.grad(loss), "give clipped_grad"),
            (private, jax_privacy.clipped_grad(loss, l2_clip_norm=1.0, nan_safe=False), "NaN"),
        ]
        for noise, clipped, reason in turned_away:
            with pytest.raises(UnsupportedTrainingError, match=reason):
                authorized(lambda: None, run.as_run, noise=noise, clipped_grad=clipped, batches=0.5)
        unclipped = jax_privacy.clipping.BoundedSensitivityCallable(loss, 1.0, has_aux=False)
        with pytest.raises(UnsupportedTrainingError, match="How clipped_grad clips"):
            authorized(lambda: None, run.as_run, noise=private, clipped_grad=unclipped, batches=0.5)


class TestBatches:
    """What the selection of batches makes of a step."""

    def test_without_replacement_and_by_user(self, run: CountingRun) -> None:
        step = Private().authorized(run, batches=FixedBatchSampling(batch_size=16, iterations=2))
        assert len(next(step.batch_iterator(N))) == 16
        assert step.event == sampled_without_replacement(N, 16, gaussian(NOISE))
        users = np.repeat(np.arange(8), 8)
        step = Private().authorized(run, batches=UserSelectionStrategy(POISSON, 2))
        assert next(step.batch_iterator(users)).ndim in (1, 2)
        assert step.event == STEP
        step = Private().authorized(run, batches=UserSelectionStrategy(FixedBatchSampling(4, 2)))
        assert len(next(step.batch_iterator(users))) == 4
        assert step.event == sampled_without_replacement(8, 4, gaussian(NOISE))

    def test_that_cannot_be_charged_by_steps(self, run: CountingRun) -> None:
        turned_away: list[tuple[Any, str]] = [
            (CyclicPoissonSampling(0.5, 8, cycle_length=4), "cycle_length=4"),
            (CyclicPoissonSampling(0.5, 8, truncated_batch_size=16), "cut to a size"),
            (FixedBatchSampling(16, 8, replace=True), "twice"),
            (BallsInBinsSampling(8, 4), "every n-th batch"),
            (BMinSepSampling(0.5, 8, 2), "depends on those before"),
            (UserSelectionStrategy(BallsInBinsSampling(8, 4)), "every n-th batch"),
            (iter([np.arange(16)]), "not known here"),
            (None, "How are records drawn"),
        ]
        for batches, reason in turned_away:
            with pytest.raises(UnsupportedTrainingError, match=reason):
                Private().authorized(run, batches=batches)
        for probability in (0.0, 1.5):
            with pytest.raises(ValueError, match="probability in"):
                Private().authorized(run, batches=probability)

    def test_of_a_seed_are_not_drawn_again(self, run: CountingRun) -> None:
        training = Private()
        step = training.authorized(run)
        first = [batch.tolist() for batch in step.batch_iterator(N, rng=7)]
        generator = np.random.default_rng(7)
        training.take(step, next(step.batch_iterator(N, rng=generator)))
        for rng in (7, np.random.default_rng(7)):
            with pytest.raises(UnsupportedTrainingError, match="draw their batches again"):
                next(step.batch_iterator(N, rng=rng))
        for other in (None, generator, np.random.default_rng()):
            assert [batch.tolist() for batch in step.batch_iterator(N, rng=other)] != first

    def test_are_poisson_samples_of_all_records(self, run: CountingRun) -> None:
        step = Private().authorized(run, batches=PROBABILITY)
        batches = step.batch_iterator(N, rng=3)
        drawn = [next(batches) for _ in range(400)]
        assert all(len(set(batch.tolist())) == len(batch) for batch in drawn)
        counts = np.bincount(np.concatenate(drawn), minlength=N)
        # Six standard deviations of a binomial count.
        assert np.abs(counts - 400 * PROBABILITY).max() < 6 * (400 * PROBABILITY * (1 - PROBABILITY)) ** 0.5
        sizes = np.array([len(batch) for batch in drawn])
        assert abs(sizes.var() - N * PROBABILITY * (1 - PROBABILITY)) < 6


class TestKeys:
    """No noise is added twice."""

    def test_a_state_that_is_not_handed_on(self, run: CountingRun) -> None:
        training = Private()
        step = training.authorized(run, KEPT)
        batches = step.batch_iterator(N)
        first = training.state
        training.take(step, next(batches))
        params, opt_state, _ = training.state
        training.state = (params, opt_state, first[2])
        with pytest.raises(UnsupportedTrainingError, match="PRNG key of the step before"):
            training.take(step, next(batches))
        assert len(run.asked) == 1

    def test_a_question_may_be_repeated(self, run: CountingRun, monkeypatch: pytest.MonkeyPatch) -> None:
        def unavailable(*_: object, **__: object) -> None:
            raise LedgerUnavailableError("no answer")

        training = Private()
        step = training.authorized(run)
        indices = next(step.batch_iterator(N))
        with monkeypatch.context() as away:
            away.setattr(run, "authorize", unavailable)
            with pytest.raises(LedgerUnavailableError):
                training.take(step, indices)
        training.take(step, indices)
        assert run.asked == [STEP]

    def test_a_seed_that_another_process_may_have_used(self, run: CountingRun) -> None:
        run.asked = [STEP]
        for key in (0, jax.random.key(42)):
            training = Private(key)
            step = training.authorized(run)
            with pytest.raises(UnsupportedTrainingError, match="begins with the seed"):
                training.take(step, next(step.batch_iterator(N)))
        assert run.asked == [STEP]
        training = Private()
        step = training.authorized(run)
        training.train(step, step.batch_iterator(N))
        assert len(run.asked) == 1 + POISSON.iterations

    def test_secret_keys_differ(self) -> None:
        words = [tuple(jax.random.key_data(secret_key()).tolist()) for _ in range(3)]
        assert len(set(words)) == 3
        assert all(word[0] for word in words)


def aggregate_step() -> tuple[Any, Any, Any]:
    """Make a step with Optax alone, whose padding has no gradient."""
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(CLIP, NOISE, key=secret_key()), optax.sgd(0.1)
    )

    def step(params: Any, state: Any, x: Any, weight: Any) -> Any:
        one = jax.grad(lambda params, x, weight: weight * loss(params, x[None]))
        grads = jax.vmap(one, in_axes=(None, 0, 0))(params, x, weight)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.ones(4)}
    return optimizer, jax.jit(step), (params, optimizer.init(params))


def test_optax_steps_padded_samples_only(run: CountingRun) -> None:
    optimizer, plain, state = aggregate_step()
    step: Any = authorized(plain, run.as_run, noise=optimizer, batches=PROBABILITY)
    batches = step.batch_iterator(N)
    for _ in range(3):
        indices = next(batches)
        padded = np.pad(indices, (0, SIZE - len(indices)))
        state = step(*state, DATA[padded], (np.arange(SIZE) < len(indices)).astype(np.float32))
    assert run.asked == [STEP] * 3
    with pytest.raises(UnsupportedTrainingError, match="Optax divides the noise"):
        step(*state, DATA[next(batches)[:3]], np.ones(3, np.float32))
    next(batches), next(batches)
    step(*state, DATA[padded], np.ones(SIZE, np.float32))
    with pytest.raises(UnsupportedTrainingError, match="PRNG key of the step before"):
        step(*state, DATA[padded], np.ones(SIZE, np.float32))
    assert len(run.asked) == 4


def test_one_of_several_processes_is_turned_away(run: CountingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    assert authorized(DONATED, run.as_run, event=STEP).event == STEP
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UnsupportedTrainingError, match="process 0 of 2"):
        authorized(DONATED, run.as_run, event=STEP)


def test_arguments_that_do_not_fit_together(run: CountingRun) -> None:
    training = Private()
    for how, reason in [
        ({"steps_per_call": 0}, "at least 1"),
        ({"clipped_grad": GRAD}, "go with noise"),
        ({"noise": training.privatizer, "event": STEP}, "Give noise or event"),
    ]:
        with pytest.raises(ValueError, match=reason):
            authorized(DONATED, run.as_run, **how)
    with pytest.raises(ValueError, match="made without batches"):
        next(authorized(DONATED, run.as_run, event=STEP).batch_iterator(N))

    class Awaited:
        authorize = AsyncLedgerClient.__aenter__

    with pytest.raises(TypeError, match="AsyncRun"):
        authorized(DONATED, Awaited(), event=STEP)  # type: ignore[arg-type] # what it refuses


def test_the_run_learns_the_number_of_steps(live_server: LiveServer) -> None:
    training = Private()
    with LedgerClient(live_server.url, live_server.key("admin")) as client:
        run: Run = client.create_run("jax", budget=open_budget(client, 100.0))
        step = training.authorized(run)
        training.train(step, step.batch_iterator(N))
        assert (run.expected_steps, run.next_step) == (POISSON.iterations, POISSON.iterations)
        run.complete()
