"""The client against the real service in this process: accounts, refusals and errors as the service gives them."""

import uuid
from datetime import UTC, datetime

import pytest

from epsilon_ledger import (
    AuthenticationError,
    BudgetClosedError,
    BudgetExceededError,
    DataBlock,
    EventCount,
    InvalidRequestError,
    LedgerClient,
    Limit,
    NameTakenError,
    NotFoundError,
    ParallelComposition,
    PermissionDeniedError,
    PlannedEvents,
    UnsupportedEventError,
    gaussian,
    poisson_sampled,
)
from tests.sdk.fake_ledger import URL
from tests.sdk.simulation import Wire

STEP = poisson_sampled(0.01, gaussian(1.1))


@pytest.fixture
def budget(admin: LedgerClient) -> str:
    return open_budget(admin, epsilon=1.0)


def open_budget(admin: LedgerClient, *, epsilon: float, planned: PlannedEvents | None = None) -> str:
    population = admin.create_population(
        f"mimic-{uuid.uuid4().hex[:8]}",
        privacy_unit="patient record",
        neighboring_relation="add_or_remove_one",
        size=5_000,
        limit=Limit(3.0, 1e-5),
    )
    return admin.create_budget("icu-team", parent=population.path, limit=Limit(epsilon, 1e-5), planned=planned).path


def test_run_is_charged_step_by_step_until_its_budget_refuses(
    admin: LedgerClient, trainer: LedgerClient, budget: str
) -> None:
    with trainer.create_run("model", budget=budget, event=STEP) as run:
        expected = run.state.steps_remaining
        assert expected is not None
        assert run.preview(expected).dry_run
        assert run.authorize(expected - 1).steps_remaining == 1
        last = run.authorize()
        assert (last.next_step, last.steps_remaining, last.binding_account_path) == (expected, 0, budget)
        assert run.epsilon == last.epsilon <= last.epsilon_limit == 1.0
        with pytest.raises(BudgetExceededError) as caught:
            run.authorize(3)
    refusal = caught.value
    assert (refusal.first_step, refusal.count, refusal.max_count_that_fits) == (expected, 3, 0)
    assert (refusal.binding_account_path, refusal.dry_run) == (budget, False)
    assert refusal.epsilon <= 1.0 < refusal.epsilon_requested
    rdp = refusal.rdp
    assert rdp.spent + rdp.held + rdp.requested > rdp.limit
    assert refusal.steps_needed == 3
    assert refusal.higher_limit is not None
    assert refusal.higher_limit.limits is not None
    assert refusal.url == run.url
    assert str(refusal).endswith(f"See {run.url}")
    assert run.status == "completed"
    assert (run.state.end_reason, run.state.steps_remaining) == ("budget_exhausted", None)
    assert admin.get_run(run.id).state == run.state
    history = trainer.get_run_history(run.id)
    assert [point.decision for point in history.points] == ["admitted", "admitted", "refused"]
    assert (history.decisions, history.points[1].next_step, history.points[2].count) == (3, expected, 3)
    assert history.points[0].events == ({"event": STEP, "count": expected - 1},)
    spent = admin.get_budget(run.state.budget)
    assert (spent.path, spent.weights_frozen) == (budget, True)
    assert spent.epsilon == run.epsilon
    population = admin.get_population(run.state.population)
    assert (population.size, population.privacy_unit) == (5_000, "patient record")
    assert 0.0 < population.epsilon <= population.limit.epsilon


def test_alternatives_of_refusal_fit(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget, event=STEP)
    run.authorize()
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(10**6)
    assert caught.value.more_noise is not None
    noise = caught.value.more_noise.noise_multiplier
    assert noise is not None
    assert run.preview(10**6, event=poisson_sampled(0.01, gaussian(noise))).dry_run
    assert run.preview(caught.value.max_count_that_fits).dry_run
    with pytest.raises(BudgetExceededError):
        run.preview(caught.value.max_count_that_fits + 1)


def test_limit_that_refusal_names_can_be_requested(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget, event=STEP, expected_steps=100_000)
    assert run.expected_steps == 100_000
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(90_000)
    assert caught.value.steps_needed == 100_000
    assert caught.value.higher_limit is not None
    for raised in caught.value.higher_limit.limits or ():
        asked = run.request_limit("All epochs.", Limit(raised.epsilon, raised.delta), account=raised.account)
        assert (asked.account, asked.status, asked.reason) == (raised.account, "open", "All epochs.")
    run.expected_steps = 70_000  # its loop is shorter than was planned
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(50_000)
    assert caught.value.steps_needed == 70_000


def test_errors_of_service_have_their_classes(
    wire: Wire, admin: LedgerClient, trainer: LedgerClient, budget: str
) -> None:
    run = trainer.create_run("model", budget=budget)
    with pytest.raises(InvalidRequestError):
        run.authorize()
    with pytest.raises(InvalidRequestError, match="noise_multiplier"):
        run.authorize(event={"type": "gaussian", "noise_multiplier": 0.0})
    with pytest.raises(InvalidRequestError, match="count"):
        run.authorize(10**9 + 1, event=STEP)
    with pytest.raises(UnsupportedEventError):
        run.authorize(event={"type": "shuffled"})
    with pytest.raises(BudgetExceededError, match="practically used up"):
        run.authorize(10**9, event=gaussian(0.001))
    with pytest.raises(NameTakenError):
        admin.create_budget("icu-team", parent=budget.split("/", maxsplit=1)[0], limit=Limit(1.0, 1e-5))
    with pytest.raises(NotFoundError):
        trainer.create_run("model", budget="nowhere/at-all")
    with pytest.raises(PermissionDeniedError):
        trainer.create_budget("mine", parent=budget, limit=Limit(1.0, 1e-5))
    with wire.client("admin", "clinic") as other, pytest.raises(NotFoundError):
        other.get_run(run.id)
    with LedgerClient(URL, "key_unknown.nothing", transport=wire) as stranger, pytest.raises(AuthenticationError):
        stranger.get_run(run.id)
    closed = {
        "name": "q1",
        "parent": budget,
        "limit": {"epsilon": 1.0, "delta": 1e-5},
        "closes_at": "2020-04-01T00:00:00Z",
    }
    assert wire.ledger.post("/v1/budgets", closed).status_code == 201
    with pytest.raises(BudgetClosedError, match="budget_closed") as refused:
        trainer.create_run("late", budget=f"{budget}/q1")
    facts = (refused.value.account_path, refused.value.opens_at, refused.value.closes_at)
    assert facts == (f"{budget}/q1", None, "2020-04-01T00:00:00+00:00")


def test_events_of_one_request_are_charged_together(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget)
    events = [EventCount(event=STEP, count=2), EventCount(event=gaussian(50.0), count=1)]
    assert run.authorize(events=events).count == 3
    assert trainer.get_run_history(run.id).points[0].events == tuple(events)


def test_run_on_two_budgets_charges_both(wire: Wire, admin: LedgerClient, trainer: LedgerClient) -> None:
    budgets = [open_budget(admin, epsilon=epsilon) for epsilon in (1.0, 0.9)]
    with trainer.create_run("both", budgets=budgets, event=STEP) as run:
        run.authorize()
    found = [admin.get_budget(budget) for budget in wire.ledger.get(f"/v1/runs/{run.id}").json()["budgets"]]
    assert [budget.path for budget in found] == budgets
    assert all(budget.epsilon > 0 for budget in found)


def test_planned_budget_admits_more_and_shows_its_use(admin: LedgerClient, trainer: LedgerClient) -> None:
    plain = trainer.create_run("model", budget=open_budget(admin, epsilon=1.0), event=STEP)
    path = open_budget(admin, epsilon=1.0, planned=[(STEP, 5), STEP])
    planned = trainer.create_run("model", budget=path, event=STEP)
    assert plain.state.steps_remaining is not None
    assert planned.state.steps_remaining is not None
    assert plain.state.steps_remaining < planned.state.steps_remaining
    planned.authorize(7)
    budget = admin.get_budget(planned.state.budget)
    assert [(item["event"], item["count"]) for item in budget.planned] == [(STEP, 5), (STEP, None)]
    plan = budget.plan
    assert plan is not None
    assert (plan.state, plan.steps_used, plan.steps_left) == ("active", 7, plan.steps - 7)
    assert [(item.count, item.steps_used) for item in plan.items] == [(5, 5), (None, 2)]
    own = trainer.create_run("own", budget=path, event=STEP, limit=Limit(0.5, 1e-6))
    assert own.state.plan is not None
    assert own.state.plan.items[0].event == STEP
    assert (plain.state.plan, planned.state.plan) == (None, None)


def test_parts_and_blocks_are_created_and_charged(admin: LedgerClient, trainer: LedgerClient) -> None:
    name, limit = f"records-{uuid.uuid4().hex[:8]}", Limit(1.0, 1e-5)
    parts = ParallelComposition(
        "A record belongs to its month.", max_partitions_per_unit=2, replacement_assumption="stay_in_their_parts"
    )
    made = admin.create_population(
        name, privacy_unit="record", neighboring_relation="replace_one", limit=limit, composition=parts
    )
    assert (made.composition, made.max_partitions_per_unit) == ("parallel", 2)
    new_year, begin, end = (datetime(2026, month, 1, tzinfo=UTC) for month in (1, 5, 6))
    may = DataBlock(begin, end, "may")
    budget = admin.create_budget("may", parent=name, limit=limit, block=may, opens_at=new_year)
    assert (budget.block, budget.opens_at, budget.composition) == (may, new_year, "sequential")
    with trainer.create_run("model", budget=budget.path, event=gaussian(90.0)) as run:
        run.authorize()
    lifetime = admin.get_budget(budget.id).lifetime
    assert lifetime is not None
    assert (lifetime.population_path, lifetime.epsilon > 0, lifetime.epsilon_limit) == (name, True, 1.0)
