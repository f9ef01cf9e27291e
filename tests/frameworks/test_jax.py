"""Real training steps of JAX that the ledger admits or refuses."""
# ruff: noqa: ANN401 - arrays and trees

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.batch_selection import pad_to_multiple_of
from optax.contrib import differentially_private_aggregate as dp_aggregate

from epsilon_ledger import BudgetExceededError, ChargeExceededError, LedgerClient, gaussian, self_composed
from epsilon_ledger.jax import UnsupportedTrainingError, authorized, secret_key
from tests.frameworks.jax_trainings import (
    DATA,
    DONATED,
    GRAD,
    POISSON,
    PROBABILITY,
    SIZE,
    STEP,
    N,
    Private,
    plain,
    privatizer,
)
from tests.sdk.fake_ledger import FakeRun, open_budget

OWN = gaussian(9.0)


def test_every_step_asks_for_what_jax_privacy_does(run: FakeRun) -> None:
    training = Private()
    step = training.authorized(run)
    training.train(step, step.batch_iterator(N))
    assert run.asked == [STEP] * POISSON.iterations
    assert np.asarray(training.state[0]["w"]).all()


def test_run_expects_iterations_of_batches(admin: LedgerClient) -> None:
    run = admin.create_run("jax", budget=open_budget(admin, 100.0))
    training = Private()
    step = training.authorized(run)
    training.train(step, step.batch_iterator(N))
    assert run.expected_steps == run.next_step == POISSON.iterations


def test_refusal_leaves_donated_arguments_and_batch(run: FakeRun) -> None:
    run.ledger.capacity = 3
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
    run.ledger.capacity = 4
    training.take(step, refused)
    assert run.asked == [STEP] * 4


def test_training_ends_at_its_budget_with_grants(admin: LedgerClient) -> None:
    training = Private()
    with admin.create_run("jax", budget=open_budget(admin, 6.0), prefetch=50) as run:
        step = training.authorized(run, batches=PROBABILITY)
        with pytest.raises(BudgetExceededError):
            training.train(step, step.batch_iterator(N))
        taken = run.step
    assert taken is not None
    assert int(training.state[1][0].count) == taken > 5
    # A resumed run goes on with a key of its own, and not with the samples of a seed.
    resumed = admin.create_run("again", budget=open_budget(admin, 6.0))
    resumed.authorize(event=STEP)
    training = Private()
    fresh = training.authorized(resumed)
    training.take(fresh, next(fresh.batch_iterator(N)))
    assert resumed.next_step == 2


def test_schedule_of_run_is_charged_by_its_own_word() -> None:
    run = FakeRun(event=STEP)
    step = authorized(jax.jit(lambda x: x + 1), run)
    assert int(step(jnp.zeros((), int))) == 1
    given = authorized(jax.jit(lambda x: x + 1), run, event=OWN)
    assert int(given(x=jnp.zeros((), int))) == 1
    assert run.asked == [STEP, OWN]


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


def test_traced_step_is_turned_away(run: FakeRun) -> None:
    step = authorized(lambda x: x * 2.0, run, event=STEP)
    for trace in TRACES.values():
        with pytest.raises(UnsupportedTrainingError, match="being traced"):
            trace(step, jnp.ones(3))
    assert run.asked == []
    with jax.disable_jit():
        assert float(jax.jit(step)(jnp.ones(3))[0]) == 2.0
    assert run.asked == [STEP]


def test_scan_over_steps_is_charged_for_all_of_them(run: FakeRun) -> None:
    run.ledger.capacity = 9
    training = Private()

    def several(state: Any, x: Any, is_padding: Any) -> Any:
        return jax.lax.scan(lambda carry, batch: (plain(*carry, *batch), None), state, (x, is_padding))[0]

    scanned = training.authorized(run, jax.jit(several), batches=PROBABILITY, steps_per_call=4)
    drawn = (pad_to_multiple_of(indices, SIZE) for indices in scanned.batch_iterator(N))
    for _ in range(2):
        indices = np.stack([next(drawn) for _ in range(4)])
        training.state = scanned(training.state, DATA[indices], indices < 0)
    assert [body["count"] for body in run.ledger.bodies] == [4, 4]
    next(drawn)
    with pytest.raises(UnsupportedTrainingError, match="takes 4 batch"):
        scanned(training.state, DATA[indices], indices < 0)
    for _ in range(3):
        next(drawn)
    with pytest.raises(BudgetExceededError):
        scanned(training.state, DATA[indices], indices < 0)
    with pytest.raises(UnsupportedTrainingError, match=r"4 batch\(es\) were drawn and not stepped"):
        next(drawn)


def test_scan_that_is_charged_as_one_step_is_stopped(run: FakeRun) -> None:
    """The key of the noise shows how often a call added it."""
    training = Private()

    def scan(state: Any, *batch: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (plain(*carry, *batch), None), state, length=20)[0]

    def loop(state: Any, count: Any, *batch: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carry: plain(*carry, *batch), state)

    padding = np.zeros(N, bool)
    scanned = training.authorized(run, jax.jit(scan), batches=1.0)
    next(scanned.batch_iterator(N))
    with pytest.raises(UnsupportedTrainingError, match=r"took 20 noisy steps.*Give steps_per_call=20"):
        scanned(training.state, DATA, padding)
    looped = training.authorized(run, jax.jit(loop), batches=1.0)
    for taken, batch in enumerate(looped.batch_iterator(N)):
        training.state = looped(training.state, 1 + 6 * (taken == 1), DATA[np.sort(batch)], padding)
        if taken == 1:
            break
    # What was released without a charge is charged, and nothing more is.
    for _ in range(2):
        with pytest.raises(UnsupportedTrainingError, match="took 7 noisy steps"):
            next(looped.batch_iterator(N))
    assert [body["count"] for body in run.ledger.bodies] == [1, 1, 1, 6]


def test_call_of_too_many_steps_is_found_while_training_goes_on(run: FakeRun) -> None:
    training = Private()

    def loop(state: Any, count: Any, *batch: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carry: plain(*carry, *batch), state)

    looped = training.authorized(run, jax.jit(loop), batches=1.0)
    batches = looped.batch_iterator(N)

    def train() -> None:
        for taken in range(48):
            batch = DATA[np.sort(next(batches))]
            training.state = looped(training.state, 1 + 2 * (taken == 5), batch, np.zeros(N, bool))

    with pytest.raises(UnsupportedTrainingError, match="took 3 noisy steps"):
        train()
    assert run.ledger.bodies[-1]["count"] == 2


def test_charge_of_whole_training_counts_its_steps(admin: LedgerClient) -> None:
    run = admin.create_run("whole", budget=open_budget(admin, 6.0))
    charge = run.charge_training(self_composed(STEP, 4), steps=4)
    single = authorized(jax.jit(lambda x: x + 1), charge)
    double = authorized(jax.jit(lambda x: x + 2), charge, steps_per_call=2)
    assert int(double(single(jnp.zeros((), int)))) == 3
    assert (charge.step, charge.remaining, run.next_step) == (3, 1, 1)
    with pytest.raises(ChargeExceededError, match="2 further steps"):
        double(jnp.zeros((), int))
    with pytest.raises(UnsupportedTrainingError, match="being traced"):
        jax.jit(single)(jnp.zeros((), int))
    with pytest.raises(ValueError, match="without batches"):
        next(single.batch_iterator(N))
    for given in ({"event": STEP}, {"noise": privatizer(0), "clipped_grad": GRAD, "batches": 0.5}):
        with pytest.raises(ValueError, match="covers the noise and the batches"):
            authorized(DONATED, charge, **given)
    assert (charge.step, run.next_step) == (3, 1)


def test_wrong_arguments_are_named(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    noise: dict[str, Any] = {"noise": privatizer(0), "clipped_grad": GRAD}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"steps_per_call": 0}, ValueError, "at least 1"),
        ({"clipped_grad": GRAD}, ValueError, "go with noise"),
        (noise | {"event": STEP}, ValueError, "Give noise or event"),
        ({"noise": "gaussian", "batches": 0.5}, TypeError, "noise must be a transformation"),
        *(
            ({"event": STEP, "steps_per_call": steps}, TypeError, "steps_per_call must be a whole number")
            for steps in (1.5, True, "2")
        ),
        *(
            ({"noise": dp_aggregate(norm, 2.0, key=secret_key()), "batches": 0.5}, ValueError, "clipping norm must be")
            for norm in (0.0, -1.0, np.inf, np.nan)
        ),
    ]
    for how, error, reason in wrong:
        with pytest.raises(error, match=reason):
            authorized(DONATED, run, **how)
    for other in (None, run, "run_1"):
        with pytest.raises(TypeError, match=r"step is .*, but it must be a function"):
            authorized(other, run, event=STEP)  # type: ignore[arg-type] # what it refuses
    with pytest.raises(ValueError, match="made without batches"):
        next(authorized(DONATED, run, event=STEP).batch_iterator(N))
    for batches in (np.float32(0.5), POISSON):
        step = authorized(DONATED, run, **noise, batches=batches)
        for records in (1.5, np.nan, "64", None):
            with pytest.raises(TypeError, match="num_examples must be a whole number"):
                next(step.batch_iterator(records))
        with pytest.raises(ValueError, match="num_examples must be at least 1"):
            next(step.batch_iterator(-1))
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UnsupportedTrainingError, match="process 0 of 2"):
        authorized(DONATED, run, event=STEP)
    assert run.asked == []
