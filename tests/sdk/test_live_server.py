"""The client against a real server process."""

import re
import threading
import uuid
from datetime import UTC, datetime
from pathlib import Path

import httpx2
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
    Run,
    RunStateConflictError,
    SequenceConflictError,
    StepsAlreadyTakenError,
    UnsupportedEventError,
    gaussian,
    poisson_sampled,
)
from tests.conftest import LiveServer

STEP = poisson_sampled(0.01, gaussian(1.1))


class LosingTransport(httpx2.HTTPTransport):
    """Delivers every request, and loses the first `losses` replies to steps."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if self.losses and request.url.path.endswith("/steps"):
            self.losses -= 1
            response.read()
            raise httpx2.ReadTimeout("lost on the way back", request=request)
        return response


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


def test_from_the_first_step_to_the_refusal(admin: LedgerClient, trainer: LedgerClient, budget: str) -> None:
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


def test_what_a_refusal_says_would_fit_does_fit(trainer: LedgerClient, budget: str) -> None:
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


def test_a_block_that_a_refusal_leaves_ends_with_its_budget_exhausted(trainer: LedgerClient, budget: str) -> None:
    with (
        pytest.raises(BudgetExceededError),
        trainer.create_run("model", budget=budget, event=STEP) as run,
    ):
        run.authorize(10**6)
    assert (run.status, run.state.end_reason, run.state.steps_remaining) == ("completed", "budget_exhausted", None)
    assert run.state.ended_at is not None
    gone = trainer.create_run("model", budget=budget, event=STEP)
    gone.abort(reason="lost")
    assert (gone.status, gone.state.end_reason) == ("aborted", "lost")


def test_a_trainer_requests_the_limit_that_a_refusal_names(trainer: LedgerClient, budget: str) -> None:
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


def test_several_events_at_once(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget)
    events = [EventCount(event=STEP, count=2), EventCount(event=gaussian(50.0), count=1)]
    assert run.authorize(events=events).count == 3
    assert run.next_step == 3
    assert trainer.get_run_history(run.id).points[0].events == tuple(events)


def test_a_lost_reply_charges_once(live_server: LiveServer, budget: str) -> None:
    with LedgerClient(live_server.url, live_server.key("trainer"), transport=LosingTransport(2)) as client:
        run = client.create_run("model", budget=budget, event=STEP)
        assert run.authorize(5).next_step == 5
        assert run.authorize().first_step == 5
        assert [point.count for point in client.get_run_history(run.id).points] == [5, 1]


def test_a_refusal_whose_reply_is_lost_is_recorded_once(live_server: LiveServer, budget: str) -> None:
    with LedgerClient(live_server.url, live_server.key("trainer"), transport=LosingTransport(1)) as client:
        run = client.create_run("model", budget=budget, event=gaussian(0.01))
        with pytest.raises(BudgetExceededError):
            run.authorize()
        assert client.get_run_history(run.id).decisions == 1


def test_an_infinite_loss_is_refused_in_words(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget, event=STEP)
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(10**9, event=gaussian(0.001))
    assert caught.value.epsilon_requested > 1e6
    assert "practically used up" in str(caught.value)


def test_a_server_that_dies_and_comes_back_is_waited_for(live_server: LiveServer, budget: str) -> None:
    # However slowly this machine starts a server: the time decides, not the number of tries.
    with LedgerClient(live_server.url, live_server.key("trainer"), max_attempts=1_000) as client:
        run = client.create_run("model", budget=budget, event=STEP)
        run.authorize()
        live_server.kill()
        back = threading.Timer(0.3, live_server.start)
        back.start()
        try:
            assert run.authorize().first_step == 1
        finally:
            back.join()
        assert client.get_run_history(run.id).decisions == 2


def test_two_processes_cannot_release_the_same_steps(trainer: LedgerClient, budget: str) -> None:
    restarted = trainer.create_run("model", budget=budget, event=STEP)
    zombie = trainer.get_run(restarted.id)
    restarted.authorize(2)
    with pytest.raises(StepsAlreadyTakenError):
        zombie.authorize(2)
    with pytest.raises(StepsAlreadyTakenError):
        zombie.preview(2)
    with pytest.raises(SequenceConflictError):
        zombie.authorize(1)
    assert trainer.get_run(restarted.id).authorize().first_step == 2


def test_states(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget, event=STEP)
    run.pause()
    with pytest.raises(RunStateConflictError) as caught:
        run.authorize()
    assert (caught.value.run_status, run.status) == ("paused", "paused")
    run.resume()
    run.authorize()
    run.abort()
    with pytest.raises(RunStateConflictError):
        run.complete()
    assert trainer.get_run(run.id).status == "aborted"


def test_who_may_not_is_told_so(live_server: LiveServer, trainer: LedgerClient, budget: str) -> None:
    with pytest.raises(PermissionDeniedError):
        trainer.create_budget("mine", parent=budget, limit=Limit(1.0, 1e-5))
    with LedgerClient(live_server.url, live_server.key("viewer")) as viewer:
        with pytest.raises(PermissionDeniedError):
            viewer.create_run("model", budget=budget)
        run = trainer.create_run("model", budget=budget, event=STEP)
        assert viewer.get_run(run.id).state == run.state
    with LedgerClient(live_server.url, "key_unknown.nothing") as nobody, pytest.raises(AuthenticationError):
        nobody.get_run(run.id)
    with (
        LedgerClient(live_server.url, live_server.key("admin", "clinic")) as other,
        pytest.raises(NotFoundError),
    ):
        other.get_run(run.id)


def test_what_is_wrong_is_named(admin: LedgerClient, trainer: LedgerClient, budget: str) -> None:
    run: Run = trainer.create_run("model", budget=budget)
    with pytest.raises(InvalidRequestError):
        run.authorize()
    with pytest.raises(InvalidRequestError, match="noise_multiplier"):
        run.authorize(event={"type": "gaussian", "noise_multiplier": 0.0})
    with pytest.raises(InvalidRequestError, match="count"):
        run.authorize(10**9 + 1, event=STEP)
    with pytest.raises(UnsupportedEventError):
        run.authorize(event={"type": "shuffled"})
    with pytest.raises(InvalidRequestError) as delta:
        admin.create_budget("loose", parent=budget, limit=Limit(1.0, 1e-3))
    assert delta.value.code == "delta_too_large"
    with pytest.raises(NameTakenError):
        admin.create_budget("icu-team", parent=budget.split("/", maxsplit=1)[0], limit=Limit(1.0, 1e-5))
    with pytest.raises(NotFoundError):
        trainer.create_run("model", budget="nowhere/at-all")
    assert run.authorize(event=STEP).first_step == 0


def test_a_plan_admits_more_and_says_what_is_used_of_it(admin: LedgerClient, trainer: LedgerClient) -> None:
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


def test_the_example_in_the_readme_trains_until_it_is_refused(
    live_server: LiveServer, admin: LedgerClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_population(
        "mimic", privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=Limit(3.0, 1e-5)
    )
    admin.create_budget("icu-team", parent="mimic", limit=Limit(0.9, 1e-5))
    monkeypatch.setenv("EPSILON_LEDGER_URL", live_server.url)
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", live_server.key("trainer"))
    readme = Path(__file__).parents[2] / "sdk" / "README.md"
    _, example, *_ = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    released: list[None] = []
    exec(example, {"trained": lambda: False, "train_one_noisy_step": lambda: released.append(None)})  # noqa: S102
    refusal, summary = capsys.readouterr().out.splitlines()
    assert "mimic/icu-team has spent epsilon" in refusal
    assert released
    assert summary.startswith(f"{len(released)} steps, epsilon 0.")


def test_planning(trainer: LedgerClient) -> None:
    found = trainer.compute_epsilon([EventCount(event=STEP, count=1_000)], delta=1e-5)
    more = trainer.compute_epsilon([EventCount(event=STEP, count=2_000)], delta=1e-5)
    assert 0.0 < found.epsilon < more.epsilon
    assert found.optimal_order is not None
    assert found.delta == 1e-5


def test_a_run_on_two_budgets_charges_both(live_server: LiveServer, admin: LedgerClient, trainer: LedgerClient) -> None:
    budgets = [open_budget(admin, epsilon=epsilon) for epsilon in (1.0, 0.9)]
    with trainer.create_run("both", budgets=budgets, event=STEP) as run:
        run.authorize()
    with live_server.client("viewer") as office:
        read = office.get(f"/v1/runs/{run.id}").json()
    found = [admin.get_budget(budget) for budget in read["budgets"]]
    assert [budget.path for budget in found] == budgets
    assert (read["budget"], read["epsilon_limit"]) == (found[0].id, 1.0)
    assert all(budget.epsilon > 0 for budget in found)


def test_a_window_that_has_closed_is_an_exception_of_its_own(live_server: LiveServer, trainer: LedgerClient) -> None:
    with live_server.client("admin") as office:
        limit = {"epsilon": 1.0, "delta": 1e-5}
        unit = {"privacy_unit": "user", "neighboring_relation": "replace_one"}
        name = f"past-{uuid.uuid4().hex[:8]}"
        assert office.post("/v1/populations", json={"name": name, "limit": limit, **unit}).status_code == 201
        closed = {"name": "q1", "parent": name, "limit": limit, "closes_at": "2020-04-01T00:00:00Z"}
        assert office.post("/v1/budgets", json=closed).status_code == 201
    with pytest.raises(BudgetClosedError, match="budget_closed") as refused:
        trainer.create_run("late", budget=f"{name}/q1")
    assert (refused.value.account_path, refused.value.opens_at) == (f"{name}/q1", None)
    assert refused.value.closes_at == "2020-04-01T00:00:00+00:00"


def test_parts_and_blocks_are_opened_from_python(admin: LedgerClient, trainer: LedgerClient) -> None:
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
