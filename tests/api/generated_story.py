"""A trainer's story in the names of a generated client, for `test_generated_client.py`, which makes `ledger_api`."""

from ledger_api import AuthenticatedClient
from ledger_api.api.budgets import create_budget
from ledger_api.api.decisions import list_decisions
from ledger_api.api.populations import create_population
from ledger_api.api.runs import authorize_steps, create_run, get_run_history
from ledger_api.models import (
    AuthorizeSteps,
    Budget,
    CreateBudget,
    CreatePopulation,
    CreateRun,
    Decision,
    DecisionOutcome,
    DecisionPage,
    GaussianEvent,
    LimitInput,
    NeighboringRelation,
    OnExceed,
    Plan,
    PlannedEventInput,
    PlanState,
    PoissonSampledEvent,
    Population,
    Problem,
    Run,
    RunHistory,
    StepAuthorization,
    StepMode,
)

BATCH = 10
EVENT = PoissonSampledEvent(
    type_="poisson_sampled",
    sampling_probability=0.1,
    event=GaussianEvent(type_="gaussian", noise_multiplier=1.1),
)


def tell(url: str, admin_key: str, trainer_key: str) -> None:
    """Train until the budget is exhausted, and read what was decided."""
    with (
        AuthenticatedClient(base_url=url, token=admin_key) as admin,
        AuthenticatedClient(base_url=url, token=trainer_key) as trainer,
    ):
        run = _prepare(admin)
        taken, problem = _train(trainer, run)
        assert (problem.status, problem.code) == (403, "budget_exceeded")
        assert problem.type_ == "urn:problem-type:epsilon-ledger:budget_exceeded"
        assert problem["binding_account_path"] == "mimic/team"
        assert problem["max_count_that_fits"] == 0
        _read_back(trainer, run, taken, problem)


def _prepare(admin: AuthenticatedClient) -> Run:
    population = create_population.sync(
        client=admin,
        body=CreatePopulation(
            name="mimic",
            privacy_unit="patient",
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            limit=LimitInput(epsilon=8.0, delta=1e-5),
        ),
    )
    assert isinstance(population, Population), population
    budget = create_budget.sync(
        client=admin,
        body=CreateBudget(
            name="team",
            parent=population.id,
            planned=[PlannedEventInput(event=EVENT)],
            limit=LimitInput(epsilon=2.0, delta=1e-5),
        ),
    )
    assert isinstance(budget, Budget), budget
    assert isinstance(budget.plan, Plan)
    assert (budget.plan.state, budget.plan.steps_left) == (PlanState.ACTIVE, budget.plan.steps)
    run = create_run.sync(
        client=admin, body=CreateRun(name="model", budget="mimic/team", event=EVENT), idempotency_key="model"
    )
    assert isinstance(run, Run), run
    assert run.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    return run


def _train(trainer: AuthenticatedClient, run: Run) -> tuple[int, Problem]:
    """Take batches of steps, the last one truncated to what fits, until there is a refusal."""
    taken = 0
    body = AuthorizeSteps(count=BATCH, mode=StepMode.AUTHORIZE, on_exceed=OnExceed.TRUNCATE)
    while True:
        answer = authorize_steps.sync(run.id, client=trainer, body=body)
        if isinstance(answer, Problem):
            return taken, answer
        assert isinstance(answer, StepAuthorization), answer
        assert (answer.first_step, answer.requested_count) == (taken, BATCH)
        taken += answer.count


def _read_back(trainer: AuthenticatedClient, run: Run, taken: int, problem: Problem) -> None:
    decisions: list[Decision] = []
    after = None
    while not decisions or after is not None:
        page = list_decisions.sync(client=trainer, run=run.id, limit=2, **({"after": after} if after else {}))
        assert isinstance(page, DecisionPage), page
        assert len(page.items) <= 2
        decisions += page.items
        after = page.next_
    refused, *admitted = decisions  # the newest first
    assert refused.decision is DecisionOutcome.REFUSED
    assert (refused.request_id, refused.refusal["detail"]) == (problem.request_id, problem.detail)
    assert {each.decision for each in admitted} == {DecisionOutcome.ADMITTED}
    assert sum(each.count for each in admitted) == taken
    history = get_run_history.sync(run.id, client=trainer)
    assert isinstance(history, RunHistory), history
    assert history.decisions == len(decisions)
    assert [point.position for point in history.points] == sorted(point.position for point in history.points)
