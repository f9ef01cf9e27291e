"""Ids and paths: each names one thing, or the error says which ones it names."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from epsilon_ledger import (
    AmbiguousPathError,
    ApprovalRequiredError,
    AsyncLedgerClient,
    InvalidRequestError,
    LedgerClient,
    Limit,
    NotFoundError,
    Population,
    RunState,
    RunStateConflictError,
    gaussian,
    poisson_sampled,
)
from tests.conftest import LiveServer

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
def test_no_name_can_be_mistaken_for_an_id(admin: LedgerClient, population: Population, prefix: str) -> None:
    limit = Limit(1.0, 1e-6)
    with pytest.raises(InvalidRequestError, match="must not look like an id"):
        admin.create_budget(f"{prefix}x", parent=population.id, limit=limit)
    with pytest.raises(InvalidRequestError, match="must not look like an id"):
        admin.create_population(f"{prefix}x", privacy_unit="u", neighboring_relation="replace_one", limit=limit)
    with pytest.raises(NotFoundError, match=f"the id '{prefix}x'"):
        admin.get_population(f"{prefix}x")


def test_paths_are_quoted_and_work_wherever_an_id_does(admin: LedgerClient, trainer: LedgerClient, budget: str) -> None:
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
def test_a_path_that_leads_nowhere_is_named(admin: LedgerClient, method: str, reference: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        getattr(admin, method)(reference)


@pytest.mark.parametrize("method", ["get_population", "get_budget", "get_run", "get_limit"])
def test_an_empty_reference_or_another_type_is_refused_unsent(admin: LedgerClient, method: str) -> None:
    with pytest.raises(ValueError, match="id or a path, and is empty"):
        getattr(admin, method)("")
    with pytest.raises(TypeError, match="id or a path, not 7"):
        getattr(admin, method)(7)


def test_a_run_of_a_population_is_at_a_path_of_its_own(trainer: LedgerClient, population: Population) -> None:
    run = trainer.create_run("survey", budget=population.path, event=STEP, limit=Limit(0.5, 1e-6))
    assert (run.state.path, run.state.budget) == (f"{population.path}/survey", population.id)
    assert trainer.get_run(f"{population.path}/survey").id == run.id
    assert trainer.get_limit(f"{population.path}/survey").account == run.id
    assert [found.id for found in trainer.list_runs(budget=population.id)] == [run.id]


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
    assert [found.number for found in trainer.list_runs(path=f"{budget}/model", sort="created_at")] == [1, 2]


def test_an_archived_account_is_found_where_no_other_is(
    live_server: LiveServer, admin: LedgerClient, population: Population, budget: str
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
    with LedgerClient(live_server.url, live_server.key("privacy_officer")) as officer:
        officer.approve_proposal(proposed.value.proposal)
    admin.archive_account(run.id)
    again = admin.create_run("model", budget=budget, event=STEP)
    assert admin.get_run(f"{budget}/model").id == again.id
    with pytest.raises(RunStateConflictError):
        admin.get_run(run.id).authorize()


@pytest.fixture
def kept(admin: LedgerClient, trainer: LedgerClient, budget: str) -> list[RunState]:
    made = []
    for number, owner in enumerate(("ada", "ada", "bob")):
        run = trainer.create_run(
            f"run-{number}", budget=budget, event=STEP, owner=owner, labels={"seed": str(number)}, description="Ünïcode"
        )
        made.append(run.state)
    admin.get_run(made[0].id).complete()
    return made


def test_the_filters_of_the_api_narrow_lists(trainer: LedgerClient, budget: str, kept: list[RunState]) -> None:
    def names(**filters: object) -> list[str]:
        return [run.name for run in trainer.list_runs(within=budget, **filters)]  # type: ignore[arg-type] # any filter

    population = budget.partition("/")[0]
    assert names() == names(population=population) == names(page_size=1) == ["run-2", "run-1", "run-0"]
    assert names(owner="ada") == ["run-1", "run-0"]
    assert names(labels={"seed": "1"}) == ["run-1"]
    assert names(labels={"seed": None}, sort="name") == ["run-0", "run-1", "run-2"]
    assert names(status=["completed", "aborted"]) == names(status="completed") == ["run-0"]
    assert names(q="RUN-2") == ["run-2"]
    assert names(archived=True) == []
    assert names(created_after=kept[1].created_at) == ["run-2", "run-1"]
    assert names(created_before=kept[1].created_at.astimezone(UTC) + timedelta(0)) == ["run-0"]
    assert names(updated_after=datetime(2100, 1, 1, tzinfo=UTC)) == []
    with pytest.raises(TypeError, match="created_after must be a datetime"):
        trainer.list_runs(created_after="yesterday")  # type: ignore[arg-type]


def test_the_awaited_client_looks_up_alike(live_server: LiveServer, budget: str, kept: list[RunState]) -> None:
    async def main() -> None:
        async with AsyncLedgerClient(live_server.url, live_server.key("trainer")) as ledger:
            assert (await ledger.get_budget(budget)).path == budget
            assert (await ledger.get_run(f"{budget}/run-1")).id == kept[1].id
            with pytest.raises(NotFoundError):
                await ledger.get_run(f"{budget}/run-9")
            assert [run.name async for run in ledger.list_runs(budget=budget, page_size=2)] == [
                "run-2",
                "run-1",
                "run-0",
            ]
            assert (await anext(ledger.list_runs(q=kept[0].id))).id == kept[0].id

    asyncio.run(main())
