"""DP-FTRL with jax-privacy's banded matrix factorisation: one charge, and repeated steps repeat their noise."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from jax_privacy.batch_selection import PartitionType, pad_to_multiple_of
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig, DPExecutionPlan

from epsilon_ledger import LedgerClient, Limit, TrainingCharge
from epsilon_ledger.dp_accounting import from_dp_accounting

# jax-privacy 2.0 calls what the newest optax renames.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")

ITERATIONS, BANDS, SAMPLED, NOISE, DELTA = 6, 2, 0.5, 8.0, 1e-5
FEATURES = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
LABELS = FEATURES.sum(axis=1)


@cache
def plan_of(relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE, **how: Any) -> DPExecutionPlan:  # noqa: ANN401 - passed on
    """DP-BandMF as a job configures it; adding a record leaves the others in their groups."""
    return BandMFExecutionPlanConfig(
        strategy=np.array([1.0, 0.5]),
        iterations=ITERATIONS,
        epsilon=None,
        delta=None,
        noise_multiplier=NOISE,
        sampling_prob=SAMPLED,
        partition_type=PartitionType.INDEPENDENT,
        accountant=dp_accounting.pld.PLDAccountant(relation),
        noise_seed=how.get("noise_seed", 7),
    ).plan


def loss(weights: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    features, labels = batch
    return jnp.mean((features @ weights - labels) ** 2)


@cache
def gradient_of(plan: DPExecutionPlan) -> Callable[..., Any]:
    found: Callable[..., Any] = jax.jit(plan.clipped_grad(loss, batch_argnums=1))
    return found


@dataclass
class Job:
    """A process that trains: its model, noise and sampler are functions of the step."""

    plan: DPExecutionPlan
    weights: Any = field(default_factory=lambda: jnp.zeros(3))
    noise: Any = None
    released: list[Any] = field(default_factory=list)

    def train(self, charge: TrainingCharge, steps: int) -> None:
        transform = self.plan.noise_addition_transform
        if self.noise is None:
            self.noise = transform.init(self.weights)
        gradient = gradient_of(self.plan)
        for indices in islice(self.batches(), charge.step, charge.step + steps):
            charge.authorize()
            batch = pad_to_multiple_of(indices, len(FEATURES))
            clipped = gradient(self.weights, (FEATURES[batch], LABELS[batch]), is_padding_example=batch < 0)
            noisy, self.noise = transform.update(clipped, self.noise)
            self.released.append(np.asarray(noisy))
            self.weights = self.weights - 0.02 * noisy

    def batches(self) -> Iterator[Any]:
        found: Iterator[Any] = self.plan.batch_selection_strategy.batch_iterator(len(FEATURES), rng=3)
        return found

    def stopped(self) -> "Job":
        """Another process, from a checkpoint of this one."""
        return Job(self.plan, self.weights, self.noise)


def budget(admin: LedgerClient, relation: Any = "add_or_remove_one", epsilon: float = 8.0) -> str:  # noqa: ANN401 - passed on
    name = f"people-{secrets.token_hex(4)}"
    admin.create_population(name, privacy_unit="record", neighboring_relation=relation, limit=Limit(epsilon, DELTA))
    return name


@pytest.mark.parametrize("relation", [NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL])
def test_ledger_and_dp_accounting_agree_on_whole_training(admin: LedgerClient, relation: NeighboringRelation) -> None:
    event = plan_of(relation).dp_event
    translated = from_dp_accounting(event)
    found = admin.compute_epsilon(
        [{"event": translated, "count": 1}], delta=DELTA, neighboring_relation=relation.name.lower()
    )
    pessimistic = dp_accounting.pld.PLDAccountant(relation)
    pessimistic.compose(event)
    theirs = pessimistic.get_epsilon(DELTA)
    assert found.required_epsilon == pytest.approx(theirs, rel=0.03)
    assert found.epsilon >= theirs * 0.999
    orders = dp_accounting.rdp.RdpAccountant(range(2, 257), NeighboringRelation.ADD_OR_REMOVE_ONE)
    orders.compose(event)
    assert found.epsilon == pytest.approx(orders.get_epsilon(DELTA), rel=0.02)
    # Each record is in half of the rounds at most: that is what the groups of the bands buy.
    assert translated == {
        "type": "self_composed",
        "count": ITERATIONS // BANDS,
        "event": {
            "type": "poisson_sampled",
            "sampling_probability": SAMPLED,
            "event": {"type": "gaussian", "noise_multiplier": NOISE},
        },
    }


def test_repeated_steps_after_restart_repeat_their_noise_and_are_not_charged(admin: LedgerClient) -> None:
    event = from_dp_accounting(plan_of().dp_event)
    run = admin.create_run("restarted", budget=budget(admin))
    first = Job(plan_of())
    charge = run.charge_training(event, steps=ITERATIONS, reproducible=True)
    first.train(charge, 2)
    kept, second = charge.state_dict(), first.stopped()
    first.train(charge, 2)  # and is killed
    other = admin.resume_run(run.state_dict())
    again = other.charge_training(event, steps=ITERATIONS, resume=kept, reproducible=True)
    second.train(again, ITERATIONS - 2)
    for released, repeated in zip(first.released[2:], second.released, strict=False):
        assert released.tobytes() == repeated.tobytes()
    assert (other.next_step, again.remaining) == (1, 0)
    other.complete()
