"""The client against the real service in this process: accounts, refusals, lists and errors."""

import asyncio
import re
import sys
import uuid
from datetime import UTC
from pathlib import Path

import pandas as pd
import pytest

from epsilon_ledger import (
    AccountClosedError,
    AmbiguousPathError,
    ApprovalRequiredError,
    AuthenticationError,
    BudgetExceededError,
    InvalidRequestError,
    LedgerClient,
    Limit,
    Link,
    ModelOrigin,
    NameTakenError,
    NotFoundError,
    PermissionDeniedError,
    Population,
    RunOrigin,
    RunStateConflictError,
    UnsupportedEventError,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger._wire.frames import data_frame
from tests.sdk.fake_ledger import open_budget
from tests.sdk.simulation import LedgerWire
from tests.sdk.wire import URL

STEP = poisson_sampled(0.01, gaussian(1.1))


@pytest.fixture
def budget(admin: LedgerClient) -> str:
    return open_budget(admin, 1.0)


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
        assert run.epsilon == last.epsilon <= 1.0
        assert 0.9 < run.used == last.used <= 1.0
        assert (run.steps_remaining, run.binding_account_path) == (0, budget)
        with pytest.raises(BudgetExceededError) as caught:
            run.authorize(3)
    refusal = caught.value
    assert (refusal.first_step, refusal.count, refusal.max_steps_that_fit) == (expected, 3, 0)
    assert (refusal.binding_account_path, refusal.dry_run, refusal.steps_needed) == (budget, False, 3)
    assert refusal.epsilon == last.epsilon
    assert refusal.used == refusal.used_including_reserved == last.used <= 1.0 < refusal.used_requested
    assert refusal.limit == Limit(1.0, 1e-5)
    assert str(refusal).endswith(f"See {run.url}")
    assert (run.status, run.state.end_reason, run.state.steps_remaining) == ("completed", "budget_exhausted", None)
    assert admin.get_run(run.id).state == run.state
    history = trainer.get_run_history(run.id)
    assert [point.decision for point in history.points] == ["admitted", "admitted", "refused"]
    assert (history.decisions, history.points[1].next_step, history.points[2].count) == (3, expected, 3)
    assert history.points[0].events == ({"event": STEP, "count": expected - 1},)
    spent = admin.get_budget(run.state.budget)
    assert (spent.path, spent.weights_frozen, spent.epsilon) == (budget, True, admin.get_run(run.id).epsilon)
    assert spent.used == last.used
    population = admin.get_population(run.state.population)
    assert population.epsilon == spent.epsilon
    assert 0.0 < population.used < spent.used


def test_alternatives_of_refusal_fit_and_can_be_requested(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget, event=STEP, expected_steps=100_000)
    assert run.expected_steps == 100_000
    run.authorize()
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(90_000)
    refusal = caught.value
    assert refusal.steps_needed == 99_999
    assert refusal.more_noise is not None
    assert refusal.more_noise.noise_multiplier is not None
    assert run.preview(99_999, event=poisson_sampled(0.01, gaussian(refusal.more_noise.noise_multiplier))).dry_run
    assert run.preview(refusal.max_steps_that_fit).dry_run
    with pytest.raises(BudgetExceededError):
        run.preview(refusal.max_steps_that_fit + 1)
    assert refusal.higher_limit is not None
    assert refusal.higher_limit.limits
    assert [each.account for each in run.request_limit("All epochs.")] == [
        each.account for each in refusal.higher_limit.limits
    ]
    for raised in refusal.higher_limit.limits:
        [asked] = run.request_limit("All epochs.", Limit(raised.epsilon, raised.delta), account=raised.account)
        assert (asked.account, asked.status, asked.reason) == (raised.account, "open", "All epochs.")
    run.expected_steps = 70_000  # its loop is shorter than was planned
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(50_000)
    assert caught.value.steps_needed == 69_999


def test_errors_of_service_have_their_classes(
    wire: LedgerWire, admin: LedgerClient, trainer: LedgerClient, budget: str
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
        admin.create_budget("team", parent=budget.split("/", maxsplit=1)[0], limit=Limit(1.0, 1e-5))
    with pytest.raises(NotFoundError):
        trainer.create_run("model", budget="nowhere/at-all")
    with pytest.raises(PermissionDeniedError):
        trainer.create_budget("mine", parent=budget, limit=Limit(1.0, 1e-5))
    with wire.client("admin", "clinic") as other, pytest.raises(NotFoundError):
        other.get_run(run.id)
    with LedgerClient(URL, "key_unknown.nothing", transport=wire) as stranger, pytest.raises(AuthenticationError):
        stranger.get_run(run.id)
    ends = {"limit": {"epsilon": 1.0, "delta": 1e-5}, "closes_at": "2020-04-01T00:00:00Z"}
    assert wire.ledger.post("/v1/budgets", {"name": "q1", "parent": budget} | ends).status_code == 201
    with pytest.raises(AccountClosedError, match="account_closed") as refused:
        trainer.create_run("late", budget=f"{budget}/q1")
    facts = (refused.value.account_path, refused.value.opens_at, refused.value.closes_at)
    assert facts == (f"{budget}/q1", None, "2020-04-01T00:00:00+00:00")


# Ids and paths: each names one thing, or the error says which ones it names.


def test_no_name_can_be_mistaken_for_id(admin: LedgerClient, budget: str) -> None:
    limit = Limit(1.0, 1e-6)
    for name in ("pop_x", "bud_x", "run_x"):
        with pytest.raises(InvalidRequestError, match="must not look like an id"):
            admin.create_budget(name, parent=budget, limit=limit)
        with pytest.raises(InvalidRequestError, match="must not look like an id"):
            admin.create_population(name, privacy_unit="u", neighboring_relation="replace_one", limit=limit)
        with pytest.raises(NotFoundError, match=f"the id '{name}'"):
            admin.get_population(name)


def test_paths_are_quoted_and_work_wherever_id_does(admin: LedgerClient, trainer: LedgerClient, budget: str) -> None:
    made = admin.create_budget("icu team é?&#", parent=budget, limit=Limit(1.0, 1e-5))
    run = trainer.create_run("a+b %", budget=made.path, event=STEP, limit=Limit(0.5, 1e-6))
    run.authorize()
    path = f"{budget}/icu team é?&#/a+b %"
    assert run.state.path == path
    assert trainer.get_run(path).id == run.id
    assert admin.get_forecast(path) == admin.get_forecast(run.id)
    assert admin.get_alert_settings(made.path) == admin.get_alert_settings(made.id)
    assert trainer.get_run_history(path).run == run.id
    assert [decision.run for decision in admin.list_decisions(run=path)] == [run.id]
    assert [found.id for found in trainer.list_runs(path=path)] == [run.id]


NOWHERE = [
    ("get_population", "nowhere", "no population at the path 'nowhere'"),
    ("get_budget", "nowhere/team", "no budget at the path 'nowhere/team'"),
    ("get_run", "nowhere/team/model", "no run at the path 'nowhere/team/model'"),
    ("get_limit", "nowhere", "no population at the path 'nowhere'"),
    ("get_limit", "nowhere/team", "no run at the path 'nowhere/team'"),
    ("get_run", "model", "GET /v1/runs"),
]


def test_path_that_leads_nowhere_is_named(admin: LedgerClient) -> None:
    for method, reference, message in NOWHERE:
        with pytest.raises(NotFoundError, match=message):
            getattr(admin, method)(reference)
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


def test_archived_account_is_found_where_no_other_is(wire: LedgerWire, admin: LedgerClient, budget: str) -> None:
    population = budget.partition("/")[0]
    run = admin.create_run("model", budget=budget, event=STEP)
    with pytest.raises(Exception, match="account_state_conflict"):
        admin.archive_account(population)
    run.complete()
    assert admin.archive_account(population).kind == "population"
    assert not list(admin.list_populations(path=population))
    assert admin.get_population(population).archived_at is not None
    assert admin.get_run(f"{budget}/model").status == "completed"
    with pytest.raises(ApprovalRequiredError, match=f"Follow-up. Until .*, {population} stays archived") as proposed:
        admin.unarchive_account(population, reason="Follow-up")
    with wire.client("privacy_officer") as officer:
        officer.approve_proposal(proposed.value.proposal)
    admin.archive_account(run.id)
    again = admin.create_run("model", budget=budget, event=STEP)
    assert admin.get_run(f"{budget}/model").id == again.id
    with pytest.raises(RunStateConflictError):
        admin.get_run(run.id).authorize()


# Data frames: a row for each item, a column for each field, whatever is missing in it.


def test_fields_of_fields_are_columns_and_timestamps_are_times(admin: LedgerClient) -> None:
    linked = admin.create_population(
        f"linked-{uuid.uuid4().hex[:8]}",
        privacy_unit="patient",
        neighboring_relation="replace_one",
        limit=Limit(3.0, 1e-5),
        links=[Link("Study", "https://study.example")],
    )
    admin.archive_account(linked.id)
    frame = data_frame([linked, admin.get_population(linked.id)], Population)
    assert list(frame.columns[:3]) == ["id", "name", "path"]
    assert list(frame["limit.epsilon"]) == [3.0, 3.0]
    assert (frame["epsilon"].dtype, frame["weights_frozen"].dtype) == (float, bool)
    for each in (frame, data_frame([], Population)):
        assert str(each["created_at"].dtype).endswith("UTC]")
    assert frame["created_at"][0] == pd.Timestamp(linked.created_at)
    assert frame["archived_at"].isna().tolist() == [True, False]
    assert frame["plan.steps"].isna().all()
    assert frame["links"][1] == linked.links
    assert "limit" not in frame


def test_lists_and_histories_become_frames(
    wire: LedgerWire, admin: LedgerClient, trainer: LedgerClient, budget: str
) -> None:
    run = trainer.create_run("model", budget=budget, event=STEP)
    spent = [run.authorize().epsilon for _ in range(3)]
    decisions = trainer.list_decisions(run=run.id, page_size=2).to_pandas()
    assert decisions["epsilon"].tolist() == spent[::-1]
    assert decisions["created_at"].is_monotonic_decreasing
    history = trainer.get_run_history(run.id).to_pandas()
    assert (history["epsilon"].tolist(), history["next_step"].tolist()) == (spent, [1, 2, 3])
    assert admin.get_account_history(budget).to_pandas()["epsilon"].iloc[-1] == admin.get_budget(budget).epsilon
    events = admin.list_audit_events(subject=run.state.budget).to_pandas()
    assert events["action"].tolist() == ["budget.created"]
    runs = trainer.list_runs(budget=budget)
    assert next(runs).id == run.id
    assert len(runs.to_pandas()) == 0

    async def main() -> None:
        async with wire.async_client() as ledger:
            assert (await ledger.list_decisions(run=run.id, page_size=2).to_pandas()).equals(decisions)

    asyncio.run(main())


def test_error_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install \"epsilon-ledger-client\[pandas\]\""):
        data_frame([], Population)


def test_example_of_package_page_trains_until_it_is_refused(
    wire: LedgerWire, admin: LedgerClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = Limit(3.0, 1e-5)
    admin.create_population("mimic", privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=limit)
    admin.create_budget("icu-team", parent="mimic", limit=Limit(0.9, 1e-5))
    monkeypatch.setattr("epsilon_ledger._client.open_transport", lambda: wire)
    monkeypatch.setenv("EPSILON_LEDGER_URL", URL)
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", wire.ledger.keys["hospital", "trainer"])
    readme = Path(__file__).parents[2] / "sdk" / "README.md"
    _, example, *_ = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    released: list[None] = []
    exec(example, {"trained": lambda: False, "train_one_noisy_step": lambda: released.append(None)})  # noqa: S102
    refusal, summary = capsys.readouterr().out.splitlines()
    assert "mimic/icu-team has used 99." in refusal
    assert released
    assert summary.startswith(f"{len(released)} steps, epsilon 0.")


def test_lineage_from_a_checkpoint(trainer: LedgerClient, budget: str) -> None:
    with trainer.create_run("base", budget=budget, event=STEP, starts_from=[]) as base:
        base.authorize()
        checkpoint = base.state_dict()
    outside = ModelOrigin("gpt2", "5a" * 32)
    tuned = trainer.create_run("tuned", budget=budget, event=STEP, starts_from=[checkpoint, outside])
    assert (base.starts_from, tuned.starts_from) == ((), (RunOrigin(base.id), outside))
    assert trainer.get_run(tuned.id).starts_from == tuned.starts_from
    resumed = trainer.resume_run(tuned.state_dict())
    assert resumed.starts_from == tuned.starts_from, "going on with a run is no lineage"
    assert trainer.create_run("silent", budget=budget).starts_from is None
    with pytest.raises(NotFoundError, match="run_19aa5b3c4d7b0c1"):
        trainer.create_run("lost", budget=budget, starts_from=["run_19aa5b3c4d7b0c1"])
