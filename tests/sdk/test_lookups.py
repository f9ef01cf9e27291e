"""Ids and paths: each names one thing, or the error says which ones it names."""

import uuid
from datetime import UTC

import pytest

from epsilon_ledger import (
    AmbiguousPathError,
    ApprovalRequiredError,
    InvalidRequestError,
    LedgerClient,
    Limit,
    NotFoundError,
    Population,
    RunStateConflictError,
    gaussian,
    poisson_sampled,
)
from tests.sdk.simulation import Wire

STEP = poisson_sampled(0.01, gaussian(1.1))


@pytest.fixture
def population(admin: LedgerClient) -> Population:
    made = admin.create_population(
        f"mimic-{uuid.uuid4().hex[:8]}",
        privacy_unit="patient",
        neighboring_relation="add_or_remove_one",
        limit=Limit(3.0, 1e-5),
    )
    admin.create_budget("icu team é?&#", parent=made.path, limit=Limit(1.0, 1e-5))
    return made


@pytest.fixture
def budget(admin: LedgerClient, population: Population) -> str:
    return next(admin.list_budgets(parent=population.id)).path


@pytest.mark.parametrize("prefix", ["pop_", "bud_", "run_"])
def test_no_name_can_be_mistaken_for_id(admin: LedgerClient, population: Population, prefix: str) -> None:
    limit = Limit(1.0, 1e-6)
    with pytest.raises(InvalidRequestError, match="must not look like an id"):
        admin.create_budget(f"{prefix}x", parent=population.id, limit=limit)
    with pytest.raises(InvalidRequestError, match="must not look like an id"):
        admin.create_population(f"{prefix}x", privacy_unit="u", neighboring_relation="replace_one", limit=limit)
    with pytest.raises(NotFoundError, match=f"the id '{prefix}x'"):
        admin.get_population(f"{prefix}x")


def test_paths_are_quoted_and_work_wherever_id_does(admin: LedgerClient, trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("a+b %", budget=budget, event=STEP, limit=Limit(0.5, 1e-6))
    run.authorize()
    path = f"{budget}/a+b %"
    assert run.state.path == path
    assert trainer.get_run(path).id == run.id
    assert admin.get_forecast(path) == admin.get_forecast(run.id)
    assert admin.get_alert_settings(budget) == admin.get_alert_settings(admin.get_budget(budget).id)
    assert trainer.get_run_history(path).run == run.id
    assert [decision.run for decision in admin.list_decisions(run=path)] == [run.id]
    assert [found.id for found in trainer.list_runs(path=path)] == [run.id]


@pytest.mark.parametrize(
    ("method", "reference", "message"),
    [
        ("get_population", "nowhere", "no population at the path 'nowhere'"),
        ("get_budget", "nowhere/team", "no budget at the path 'nowhere/team'"),
        ("get_run", "nowhere/team/model", "no run at the path 'nowhere/team/model'"),
        ("get_limit", "nowhere", "no population at the path 'nowhere'"),
        ("get_limit", "nowhere/team", "no run at the path 'nowhere/team'"),
        ("get_run", "model", "GET /v1/runs"),
    ],
)
def test_path_that_leads_nowhere_is_named(admin: LedgerClient, method: str, reference: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        getattr(admin, method)(reference)


@pytest.mark.parametrize("method", ["get_population", "get_budget", "get_run", "get_limit"])
def test_empty_reference_or_another_type_is_refused_unsent(admin: LedgerClient, method: str) -> None:
    with pytest.raises(ValueError, match="id or a path, and is empty"):
        getattr(admin, method)("")
    with pytest.raises(TypeError, match="id or a path, not 7"):
        getattr(admin, method)(7)


def test_several_runs_at_one_path_are_listed_with_their_times(trainer: LedgerClient, budget: str) -> None:
    runs = [trainer.create_run("model", budget=budget, event=STEP) for _ in range(2)]
    with pytest.raises(AmbiguousPathError) as caught:
        trainer.get_run(f"{budget}/model")
    assert caught.value.ids == (runs[1].id, runs[0].id)
    for run in runs:
        moment = run.state.created_at.astimezone(UTC)
        assert f"{run.id} (active, created {moment:%Y-%m-%d %H:%M:%S} UTC)" in str(caught.value)
    assert "list_runs(path=" in str(caught.value)
    for refused in (trainer.get_run_history, trainer.update_run, trainer.get_forecast):
        with pytest.raises(AmbiguousPathError):
            refused(f"{budget}/model")
    with pytest.raises(TypeError, match="created_after must be a datetime"):
        trainer.list_runs(created_after="yesterday")  # type: ignore[arg-type]
    assert [found.number for found in trainer.list_runs(path=f"{budget}/model", sort="created_at")] == [1, 2]


def test_archived_account_is_found_where_no_other_is(
    wire: Wire, admin: LedgerClient, population: Population, budget: str
) -> None:
    run = admin.create_run("model", budget=budget, event=STEP)
    with pytest.raises(Exception, match="account_state_conflict"):
        admin.archive_account(population.path)
    run.complete()
    assert admin.archive_account(population.path).kind == "population"
    assert not list(admin.list_populations(path=population.path))
    assert admin.get_population(population.path).archived_at is not None
    assert admin.get_run(f"{budget}/model").status == "completed"
    with pytest.raises(ApprovalRequiredError) as proposed:
        admin.unarchive_account(population.path)
    with wire.client("privacy_officer") as officer:
        officer.approve_proposal(proposed.value.proposal)
    admin.archive_account(run.id)
    again = admin.create_run("model", budget=budget, event=STEP)
    assert admin.get_run(f"{budget}/model").id == again.id
    with pytest.raises(RunStateConflictError):
        admin.get_run(run.id).authorize()
