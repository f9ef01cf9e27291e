"""The noise of Optax and of jax-privacy: what is read is what the framework adds."""
# ruff: noqa: ANN401 - arrays and trees

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
from dp_accounting.rdp import RdpAccountant
from jax_privacy import noise_addition
from jax_privacy.batch_selection import PartitionType
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from jax_privacy.matrix_factorization import streaming_matrix

from epsilon_ledger import EventCount, LedgerClient, gaussian, poisson_sampled, self_composed
from epsilon_ledger.dp_accounting import from_dp_accounting
from epsilon_ledger.jax import UnsupportedTrainingError, authorized, secret_key
from tests.frameworks.jax_trainings import CLIP, GRAD, N, loss, privatizer
from tests.sdk.fake_ledger import FakeRun


def plan(**changed: Any) -> Any:
    given = {"strategy": [1.0], "iterations": 10, "epsilon": None, "delta": None, "noise_multiplier": 1.1}
    given |= {"sampling_prob": 0.1, "noise_seed": 2**31} | changed
    return BandMFExecutionPlanConfig(**given | {"strategy": np.array(given["strategy"])}).plan


def deviation(transformation: optax.GradientTransformation, gradient: Any) -> float:
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
def test_noise_of_jax_privacy_is_read(clipping: dict[str, Any], norm: float) -> None:
    grad = jax_privacy.clipped_grad(loss, **clipping)
    stddev = 0.7 * grad.sensitivity()
    noise = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=secret_key())
    assert deviation(noise, {"w": jnp.zeros(20_000)}) == pytest.approx(0.7 * norm, rel=0.03)
    for private in (noise, optax.chain(optax.chain(noise), optax.adam(0.1))):
        step = authorized(lambda: None, FakeRun(), noise=private, clipped_grad=grad, batches=1.0)
        next(step.batch_iterator(N))
        assert step.event == poisson_sampled(1.0, gaussian(stddev / norm))


def test_noise_of_optax_is_read() -> None:
    plain = optax.contrib.differentially_private_aggregate(CLIP, 0.7, key=secret_key())
    assert deviation(plain, {"w": jnp.zeros((8, 20_000))}) == pytest.approx(0.7 * CLIP / 8, rel=0.03)
    with pytest.warns(DeprecationWarning, match="seed"):
        whole = optax.contrib.dpsgd(0.1, jnp.asarray(CLIP), 0.7, seed=1, momentum=0.9)
    for noise in (plain, whole, optax.chain(plain, optax.adam(0.1))):
        step = authorized(lambda: None, FakeRun(), noise=noise, batches=0.5)
        next(step.batch_iterator(N))
        assert step.event is not None
        inner: Any = step.event
        assert inner["event"]["noise_multiplier"] == pytest.approx(0.7, rel=1e-6)


@pytest.mark.parametrize(
    ("relation", "multiplier"), [(NeighboringRelation.REPLACE_SPECIAL, 1.1), (NeighboringRelation.REPLACE_ONE, 2.2)]
)
def test_noise_of_execution_plan_is_read(run: FakeRun, relation: NeighboringRelation, multiplier: float) -> None:
    made = plan(strategy=[0.5], accountant=PLDAccountant(relation), normalize_by=16.0)
    assert deviation(made.noise_addition_transform, {"w": jnp.zeros(20_000)}) == pytest.approx(
        multiplier / 16, rel=0.03
    )
    step = authorized(lambda: None, run, noise=made)
    next(step.batch_iterator(N))
    assert run.expected_steps == 10
    # The ledger doubles the sensitivity under replace_one by itself.
    assert step.event == poisson_sampled(0.1, gaussian(multiplier))


def test_plan_that_cannot_be_charged_by_steps_is_refused(run: FakeRun) -> None:
    turned_away: list[tuple[dict[str, Any], str]] = [
        ({"strategy": [1.0, 0.5]}, "at once.* but not with column_normalize=True"),
        ({"num_examples": N, "truncated_batch_size": 8}, "at once"),
        # jax-privacy scales the noise by the norm of the strategy, and its matrix without it.
        (
            {"strategy": [0.5], "column_normalize": True},
            r"says that the noise multiplier is 1\.1, but its noise is 0\.55",
        ),
    ]
    for changed, reason in turned_away:
        with pytest.raises(UnsupportedTrainingError, match=reason):
            authorized(lambda: None, run, noise=plan(**changed))
    with pytest.raises(ValueError, match="give the plan alone"):
        authorized(lambda: None, run, noise=plan(), batches=0.1)


def test_unknown_noise_is_refused(run: FakeRun) -> None:
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
            authorized(lambda: None, run, noise=noise, clipped_grad=clipped, batches=0.5)
    unclipped = jax_privacy.clipping.BoundedSensitivityCallable(loss, 1.0, has_aux=False)
    with pytest.raises(UnsupportedTrainingError, match="How clipped_grad clips"):
        authorized(lambda: None, FakeRun(), noise=private, clipped_grad=unclipped, batches=0.5)


@pytest.mark.parametrize("relation", [NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL])
def test_whole_training_with_banded_matrix_costs_what_dp_accounting_says(
    admin: LedgerClient, relation: NeighboringRelation
) -> None:
    """Adding a record leaves the others in their groups."""
    how: dict[str, Any] = {"partition_type": PartitionType.INDEPENDENT, "accountant": PLDAccountant(relation)}
    event = plan(strategy=[1.0, 0.5], iterations=6, noise_multiplier=8.0, sampling_prob=0.5, **how).dp_event
    # Each record is in half of the rounds at most: that is what the groups of the two bands buy.
    translated = from_dp_accounting(event)
    assert translated == self_composed(poisson_sampled(0.5, gaussian(8.0)), 3)
    charge = [EventCount(event=translated, count=1)]
    found = admin.compute_epsilon(charge, delta=1e-5, neighboring_relation=relation.name.lower())
    theirs = PLDAccountant(relation).compose(event).get_epsilon(1e-5)
    assert found.limit_needed.with_plan == pytest.approx(theirs, rel=0.03)
    assert found.epsilon == pytest.approx(theirs, rel=1e-3)
    orders = RdpAccountant(range(2, 257), NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)
    by_orders = {each.name: each.epsilon for each in found.comparisons}["rdp"]
    assert by_orders == pytest.approx(orders.get_epsilon(1e-5), rel=0.02)
