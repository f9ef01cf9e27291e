"""Every operation for trainers and officers has a method, blocking and awaited, as docs/reference/client.md lists."""

import csv
import io
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final

import httpx2
import pytest

from app.persistence.database import Database
from epsilon_ledger import (
    AccountAllocation,
    AccountLimit,
    AccountPolicy,
    ApprovalRequiredError,
    AsyncLedgerClient,
    BlockSchedule,
    EventCount,
    InvalidRequestError,
    InvalidSignatureError,
    LedgerClient,
    Limit,
    Link,
    NotFoundError,
    ParallelComposition,
    PermissionDeniedError,
    PreconditionFailedError,
    Proposal,
    ProposalClosedError,
    ReceiverStateConflictError,
    Run,
    UnlockOverTime,
    Waiting,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger._run import plan_waits
from tests.conftest import LiveServer, signing_key
from tests.sdk.callers import ROOT, Calls, caller, operations
from tests.service.tampering import shift_curve, tampering

STEP: Final = poisson_sampled(0.01, gaussian(1.1))
ELSEWHERE: Final = {"Run.track", "Run.settle", "Run.charge_training", "Run.charge_epoch", "Run.track_epoch"}
"""Methods that call their operations in other tests."""
PAGE: Final = (ROOT / "docs" / "reference" / "client.md").read_text()
ROW: Final = re.compile(r"^\| (`[^|]+`) \| ([^|]+) \|$", re.MULTILINE)


def table() -> dict[str, set[str]]:
    """The operations of every method, as documented."""
    covered = PAGE.partition("## Methods")[2].partition("### Not covered")[0]
    return {row[1].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in ROW.finditer(covered)}


def left_out() -> set[str]:
    """The operations that the client leaves out, with a reason."""
    rows = ROW.findall(PAGE.partition("### Not covered")[2])
    assert all(reason.strip() for _, reason in rows)
    return {operation for named, _ in rows for operation in re.findall(r"`(\w+)`", named)}


def test_each_operation_is_covered_or_left_out_for_a_reason() -> None:
    covered = set[str]().union(*table().values())
    assert covered | left_out() == operations().keys()
    assert not covered & left_out()
    assert left_out() == {"getLiveness", "getReadiness", "getMetrics", "exchangeToken"}


def test_each_method_is_documented() -> None:
    public = {
        f"{prefix}{name}"
        for kind, prefix in ((LedgerClient, ""), (Run, "Run."))
        for base in kind.__mro__[:-1]
        for name, value in vars(base).items()
        if callable(value) and not name.startswith("_")
    }
    assert public - table().keys() == {"close", "Run.state_dict"}
    assert table().keys() <= public


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that signs."""
    private, _ = signing_key()
    made = LiveServer(tmp_path_factory.mktemp("server"), environment={"EPSILON_LEDGER_SIGNING_KEY_FILE": str(private)})
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_every_method_calls_its_operations(
    server: LiveServer,
    awaited: bool,  # noqa: FBT001 - a case
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_waits, "_FIRST_PAUSE", 0.2)
    calls = Calls()
    with (
        caller(server, "admin", calls, awaited=awaited) as admin,
        caller(server, "trainer", calls, awaited=awaited) as trainer,
        caller(server, "privacy_officer", calls, awaited=awaited) as officer,
    ):
        name = open_accounts(admin, officer)
        train(trainer, f"{name}/icu-team")
        with server.client("admin", "awaited" if awaited else "blocking") as office:
            share(trainer, admin, office, name)
        look(admin, name)
        plan(trainer)
        sweep(trainer, admin, name)
        govern(admin, officer, name)
        manage_keys(admin)
        alert(admin, name)
        audit(admin, name)
        quarantine(server, admin, name)
    documented = {method: called for method, called in table().items() if method not in ELSEWHERE}
    assert {method: calls.seen[method] & called for method, called in documented.items()} == documented
    # Besides those of the table, a path or a run's state may be looked up.
    looked_up = {"listPopulations", "listBudgets", "listRuns", "getRun"}
    extra = {method: called - table()[method] - looked_up for method, called in calls.seen.items()}
    assert not any(extra.values()), extra


def open_accounts(admin: LedgerClient, officer: LedgerClient) -> str:
    name = f"mimic-{uuid.uuid4().hex[:8]}"
    population = admin.create_population(
        name, privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=Limit(3.0, 1e-5)
    )
    assert admin.get_population(population.id) == population == next(admin.list_populations())
    assert admin.get_population(name) == population
    team = admin.create_budget("icu-team", parent=name, limit=Limit(1.0, 1e-5))
    other = admin.create_budget("er-team", parent=population.id, limit=Limit(1.0, 1e-5))
    assert [budget.path for budget in admin.list_budgets(parent=name, page_size=1)] == [other.path, team.path]
    assert admin.get_budget(team.path) == team == admin.get_budget(team.id)
    assert list(admin.list_budgets(path=team.path)) == [team]
    described = admin.update_population(name, owner="privacy office", labels={"ward": "icu"})
    assert (described.owner, described.labels) == ("privacy office", {"ward": "icu"})
    link = Link("Study", "https://study.example.org/1")
    assert admin.update_budget(team.path, display_name="ICU", links=[link]).links == (link,)
    assert admin.archive_account(other.path, reason="Unused.").archived_at is not None
    assert [budget.path for budget in admin.list_budgets(parent=name)] == [team.path]
    assert admin.get_budget(other.path).archived_at is not None
    with pytest.raises(ApprovalRequiredError) as proposed:
        admin.unarchive_account(other.path)
    assert officer.approve_proposal(proposed.value.proposal).kind == "unarchival"
    assert admin.get_budget(other.path).archived_at is None
    open_blocks(admin, name)
    return name


def open_blocks(admin: LedgerClient, name: str) -> None:
    disjoint = ParallelComposition("A record belongs to one quarter.")
    visits = admin.create_budget("visits", parent=name, limit=Limit(1.0, 1e-5), composition=disjoint)
    limit = Limit(1.0, 1e-5)
    made = admin.create_blocks(visits.path, "quarter", start=date(2026, 2, 14), count=2, limit=limit, prefix="visits-")
    assert [block.name for block in made] == ["visits-2026-Q1", "visits-2026-Q2"]
    assert [block.block and block.block.data_from for block in made] == [
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 4, 1, tzinfo=UTC),
    ]
    with pytest.raises(InvalidRequestError, match="overlaps"):
        admin.create_blocks(visits.id, "month", start=date(2026, 6, 1), count=3, limit=limit)
    assert list(admin.list_budgets(parent=visits.path)) == list(reversed(made))
    schedule_blocks(admin, visits.path)


def schedule_blocks(admin: LedgerClient, account: str) -> None:
    none = admin.get_block_schedule(account)
    assert (none.path, none.schedule, none.failure) == (account, None, None)
    schedule = BlockSchedule("quarter", date(2999, 2, 14), Limit(1.0, 1e-5), prefix="visits-")
    made = admin.replace_block_schedule(account, schedule, reason="Visits go on.", if_match=none)
    assert (made.schedule, made.next_opens_at) == (schedule, datetime(2999, 1, 1, tzinfo=UTC))
    assert made == admin.get_block_schedule(account)
    with pytest.raises(PreconditionFailedError):
        admin.remove_block_schedule(account, reason="Late.", if_match=none)
    admin.remove_block_schedule(account, reason="Visits end & no more.", if_match=made)
    with pytest.raises(NotFoundError, match="has no block schedule"):
        admin.remove_block_schedule(account, reason="Twice.")


def train(trainer: LedgerClient, budget: str) -> None:
    run = trainer.create_run("model", budget=budget, event=STEP)
    run.preview(2)
    run.authorize(2)
    run.report()
    run.pause()
    run.resume()
    run.reserve([EventCount(event=STEP, count=3)])
    run.renew()
    run.commit(1)
    planned = run.reserve([EventCount(event=STEP, count=3)])
    assert trainer.get_reservation(planned.id).status == "active"
    run.void()
    assert run.refresh().next_step == run.next_step == 4
    wanted = run.request_limit("All epochs.", Limit(1.5, 1e-5), account=budget)
    assert (wanted.kind, wanted.status, wanted.reason) == ("limit", "open", "All epochs.")
    assert trainer.reject_proposal(wanted.id).status == "withdrawn"
    assert trainer.get_run(run.id).state == run.state
    assert trainer.get_run(f"{budget}/model").id == run.id
    assert trainer.resume_run(run.state_dict()).attempt == 2
    taken_up = trainer.resume_run(f"{budget}/model")
    assert taken_up.attempt == 3
    assert trainer.update_run(run.id, labels={"team": "icu"}).labels["team"] == "icu"
    taken_up.complete()
    stopped = trainer.create_run("stopped", budget=budget, event=STEP)
    stopped.abort()
    assert [found.name for found in trainer.list_runs(budget=budget)] == ["stopped", "model"]
    [found] = trainer.list_runs(budget=budget, status="completed")
    assert found == taken_up.refresh()
    assert trainer.get_run_history(run.id).points[0].count == 2


def share(trainer: LedgerClient, admin: LedgerClient, office: httpx2.Client, name: str) -> None:
    """Share out a budget among plans, each of which fits alone."""
    path = admin.create_budget("shared", parent=name, limit=Limit(0.5, 1e-5)).path
    seen = admin.get_allocation(path)
    assert (seen.plans_only, seen.allocation) == (False, None)
    unlock: UnlockOverTime = {"type": "over_time", "over_seconds": 86_400, "parts": 1}
    shared = admin.replace_allocation(path, {"unlock": unlock}, reason="Two trainers.", if_match=seen)
    assert isinstance(shared, AccountAllocation)
    assert (shared.plans_only, shared.unlocked, shared.revision) == (True, 1.0, 1)
    with pytest.raises(PreconditionFailedError):
        admin.replace_allocation(path, None, reason="Too late.", if_match=seen)
    again = admin.replace_allocation(path, shared.allocation, reason="The same.", if_match=shared.etag)
    assert isinstance(again, AccountAllocation)
    assert (again, again.etag) == (shared, shared.etag)
    wait_in_turn(trainer, office, path)
    preview = trainer.preview_wait(path, [EventCount(event=gaussian(40.0), count=15)])
    assert (preview.fits, preview.waiting is not None and preview.waiting.position) == (False, 2)
    [entry] = admin.get_queue(path).items
    assert (entry.run_path, entry.reservation.waiting is not None) == (f"{path}/last", True)
    moved = admin.prioritize_reservation(entry.reservation.id, 5, reason="It is urgent.")
    assert (moved.status, moved.priority) == ("waiting", 5)
    assert admin.cancel_reservation(moved.id, reason="It is not.").status == "cancelled"
    removed = admin.replace_allocation(path, None, reason="Back to steps.")
    assert isinstance(removed, Proposal), "it would unlock the limit"
    assert (removed.kind, admin.reject_proposal(removed.id).status) == ("allocation", "withdrawn")


def wait_in_turn(trainer: LedgerClient, office: httpx2.Client, path: str) -> None:
    """Let one plan after the other wait for the budget, in each way; the last one waits on."""

    def end(run: Run) -> Callable[[Waiting], object]:
        answer = {"steps_executed": 0}
        return lambda _: office.post(f"/v1/runs/{run.id}/complete", json=answer).raise_for_status()

    def leave_waiting(run: str) -> str:
        until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        body = {"name": run, "budget": path, "plan": large, "wait_until": until}
        return str(office.post("/v1/runs", json=body).json()["id"])

    large, hour = [EventCount(event=gaussian(40.0), count=15)], timedelta(hours=1)
    first = trainer.create_run("first", budget=path, plan=large)
    second = trainer.create_run("second", budget=path, plan=large, wait=hour, on_wait=end(first))
    third = trainer.create_run("third", budget=path)
    assert third.reserve(large, wait=hour, on_wait=end(second)).status == "active"
    fourth = trainer.get_run(leave_waiting("fourth"))
    assert fourth.wait_for_plan(on_wait=end(third)).status == "active"
    leave_waiting("last")


def look(admin: LedgerClient, name: str) -> None:
    [run] = admin.list_runs(budget=f"{name}/icu-team", status="completed")
    [reported, *_] = admin.list_decisions(account=name, decision="reported")
    assert (reported.run, reported.run_path, reported.count) == (run.id, f"{name}/icu-team/model", 1)
    decisions = list(admin.list_decisions(run=run.id, page_size=2))
    assert [decision.position for decision in decisions] == [2, 1, 0]
    since = decisions[1].created_at
    assert list(admin.list_decisions(run=run.id, since=since)) == decisions[:2]
    exported = rows(admin.export_decisions(run=run.id))
    assert [int(row["position"]) for row in exported] == [2, 1, 0]
    assert [row["id"] for row in rows(admin.export_runs(budget=f"{name}/icu-team", status=["completed"]))] == [run.id]
    assert len(rows(admin.export_run_history(f"{name}/icu-team/model"))) == 3
    assert rows(admin.export_audit_events(subject=run.id, order="oldest"))[0]["action"] == "run.created"
    assert float(rows(admin.export_account_history(name))[-1]["epsilon"]) == admin.get_population(name).epsilon
    history = admin.get_account_history(f"{name}/icu-team")
    assert history.points[-1].epsilon == admin.get_budget(f"{name}/icu-team").epsilon
    assert [child.path for child in history.children] == [f"{name}/icu-team/model"]
    for svg in (
        admin.get_run_history_svg(run.id, theme="dark", width=400),
        admin.get_account_history_svg(f"{name}/icu-team", height=200),
    ):
        assert b"<svg" in svg[:100]
    for png in (admin.get_run_history_png(run.id), admin.get_account_history_png(f"{name}/icu-team")):
        assert png.startswith(b"\x89PNG")
    key = admin.get_signing_key()
    population = run.population
    for statement in (admin.get_run_statement(run.id), admin.get_population_statement(population)):
        assert statement.signature.key_id == key.key_id
        statement.verify(key.public_key)
        forged = type(statement)({**statement.payload, "type": "other"}, statement.signature)
        with pytest.raises(InvalidSignatureError, match=key.key_id):
            forged.verify(key.public_key)
    for page in (admin.get_run_statement_html(run.id), admin.get_population_statement_html(population)):
        assert page.decode().startswith("<!DOCTYPE html>")


def rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode("utf-8-sig"))))


def plan(trainer: LedgerClient) -> None:
    events = [EventCount(event=STEP, count=100)]
    assert trainer.compute_epsilon(events, delta=1e-5).epsilon > 0
    assert trainer.compute_delta(events, epsilon=1.0).delta < 1
    assert trainer.compute_epsilon_trajectory(events, delta=1e-5).steps == 100
    assert trainer.find_noise_multiplier(STEP, count=100, epsilon=1.0, delta=1e-5).reachable
    assert trainer.find_sampling_probability(STEP, count=100, epsilon=1.0, delta=1e-5).reachable
    assert trainer.find_max_steps(STEP, epsilon=1.0, delta=1e-5).steps > 0
    assert trainer.compute_laplace_cost(l1_sensitivity=2.0, scale=1.0).epsilon == 2.0


def sweep(trainer: LedgerClient, admin: LedgerClient, name: str) -> None:
    made = trainer.create_experiment("sweep", budget=f"{name}/icu-team")
    assert trainer.get_experiment(made.id).path == made.path
    assert [found.id for found in trainer.list_experiments(budget=f"{name}/icu-team")] == [made.id]
    with pytest.raises(PermissionDeniedError):
        trainer.replace_policy({"approval_above_epsilon": 0.001}, reason="No.", account=f"{name}/icu-team")
    admin.replace_policy({"approval_above_epsilon": 0.001}, reason="Sweeps are big.", account=f"{name}/er-team")
    events = [EventCount(event=gaussian(20.0), count=10)]
    waiting = trainer.create_experiment("large", budget=f"{name}/er-team", events=events, mean=2.0)
    assert (waiting.status, waiting.trials) == ("pending", None)
    [proposal] = admin.list_proposals(status="open", account=f"{name}/er-team")
    assert admin.approve_proposal(proposal.id).status == "approved"
    assert trainer.charge_experiment(waiting.id).trials is not None


def govern(admin: LedgerClient, officer: LedgerClient, name: str) -> None:
    path = f"{name}/icu-team"
    seen = admin.get_limit(path)
    lowered = admin.change_limit(path, Limit(0.9, 1e-5), reason="Enough.", if_match=seen)
    assert isinstance(lowered, AccountLimit)
    assert (lowered.revision, lowered.limit, lowered.etag) == (1, Limit(0.9, 1e-5), admin.get_limit(path).etag)
    with pytest.raises(PreconditionFailedError):
        admin.change_limit(path, Limit(0.8, 1e-5), reason="Too late.", if_match=seen)
    assert isinstance(admin.change_limit(path, Limit(0.85, 1e-5), reason="Less.", if_match=lowered), AccountLimit)
    raised = admin.change_limit(path, Limit(2.0, 1e-5), reason="The study goes on.")
    assert isinstance(raised, Proposal)
    with pytest.raises(PermissionDeniedError):
        admin.approve_proposal(raised.id)
    assert officer.get_proposal(raised.id) == raised
    approved = officer.approve_proposal(raised.id, reason="The board agrees.")
    assert (approved.status, approved.decision_reason) == ("approved", "The board agrees.")
    assert admin.get_limit(path).limit == Limit(2.0, 1e-5)
    with pytest.raises(ProposalClosedError):
        officer.reject_proposal(raised.id)
    again = admin.change_limit(path, Limit(2.5, 1e-5), reason="More.")
    assert isinstance(again, Proposal)
    assert officer.reject_proposal(again.id, reason="No.").status == "rejected"
    assert {proposal.id for proposal in officer.list_proposals(account=path)} >= {raised.id, again.id}
    policies(officer, path)


def policies(officer: LedgerClient, path: str) -> None:
    whole = officer.get_policy()
    changed = officer.replace_policy({**whole.policy, "max_delta": 1e-4}, reason="The board has met.", if_match=whole)
    assert isinstance(changed, AccountPolicy)
    assert (changed.account, changed.policy["max_delta"], changed.etag) == (None, 1e-4, officer.get_policy().etag)
    here = officer.get_policy(path)
    stricter = officer.replace_policy({**here.policy, "max_epsilon": 2.0}, reason="Here.", account=path, if_match=here)
    assert isinstance(stricter, AccountPolicy)
    assert (stricter.effective["max_epsilon"], stricter.effective["max_delta"]) == (2.0, 1e-4)
    with pytest.raises(PreconditionFailedError):
        officer.replace_policy({"max_epsilon": 1.0}, reason="Late.", account=path, if_match=here)
    looser = officer.replace_policy({}, reason="Free.", account=path, if_match=stricter)
    assert isinstance(looser, Proposal)
    assert looser.kind == "policy"
    assert officer.reject_proposal(looser.id).status == "withdrawn"


def manage_keys(admin: LedgerClient) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    made = admin.create_api_key("viewer", name="dashboard", expires_at=soon)
    assert (made.role, made.name, made.expires_at) == ("viewer", "dashboard", soon)
    assert made.key.startswith(f"{made.id}.")
    assert made.key not in repr(made)
    assert admin.get_api_key(made.id).revoked_at is None
    successor = admin.rotate_api_key(made.id, overlap_seconds=60)
    assert successor.key != made.key
    assert {key.id for key in admin.list_api_keys(page_size=1)} >= {made.id, successor.id}
    revoked = admin.revoke_api_key(made.id, reason="Lost.", include_successors=True)
    assert revoked.revoked_at is not None
    assert admin.get_api_key(successor.id).revoked_at is not None


def alert(admin: LedgerClient, name: str) -> None:
    path = f"{name}/icu-team"
    hook = admin.create_receiver(url="https://hooks.example.org/x", types=["account.threshold_reached"], account=path)
    assert hook.secret is not None
    assert hook.secret not in repr(hook)
    chat = admin.create_receiver("slack", url="https://hooks.slack.com/services/T0/B0/s3cr3t")
    assert (chat.kind, chat.addresses, chat.secret) == ("slack", (), None)
    assert "s3cr3t" not in str(admin.get_receiver(chat.id).url)
    admin.delete_receiver(chat.id)
    assert admin.rotate_receiver_secret(hook.id, overlap_seconds=60).secret != hook.secret
    assert admin.get_receiver(hook.id).types == ("account.threshold_reached",)
    assert next(admin.list_receivers()).id == hook.id
    set_to = admin.replace_alert_settings(path, thresholds=[0.001, 0.5], forecast_days=3)
    assert set_to == admin.get_alert_settings(path)
    assert (set_to.thresholds, set_to.forecast_days) == ((0.001, 0.5), 3)
    forecast = admin.get_forecast(path)
    assert 0 < forecast.utilisation < 1
    assert forecast.available == admin.get_budget(path).available
    # The sweep has left less of the population than of the raised limit.
    assert forecast.available.account_path == name
    alerts = list(admin.list_alerts(account=path, type="account.threshold_reached"))
    [reached] = [found for found in alerts if found.data["threshold"] == 0.001]
    assert reached.account == admin.get_budget(path).id
    sent = admin.send_test_event(hook.id)
    found = list(admin.list_deliveries(receiver=hook.id, page_size=1))
    assert {delivery.alert for delivery in found} == {sent.alert, reached.id}
    assert admin.retry_delivery(sent.id).status == "pending"
    assert admin.disable_receiver(hook.id).disabled_at is not None
    assert admin.enable_receiver(hook.id).disabled_at is None
    admin.disable_receiver(hook.id)
    with pytest.raises(ReceiverStateConflictError):
        admin.send_test_event(hook.id)


def audit(admin: LedgerClient, name: str) -> None:
    population = next(found for found in admin.list_populations() if found.name == name)
    [created] = admin.list_audit_events(action="population.created", subject=population.id)
    assert created.after is not None
    assert created.after["name"] == name
    assert next(admin.list_audit_events(order="oldest", action="population.*")).action == "population.created"
    assert not list(admin.list_audit_events(until=datetime(2020, 1, 1, tzinfo=UTC)))
    made = admin.create_checkpoint()
    made.verify(admin.get_signing_key().public_key)
    assert next(admin.list_checkpoints()) == made
    verified = admin.create_verification()
    assert verified.sound
    assert admin.get_verification(verified.id) == verified == next(admin.list_verifications())


def quarantine(server: LiveServer, admin: LedgerClient, name: str) -> None:
    database = Database(server.database_url)
    with tampering(database) as tx:
        shift_curve(tx, f"{name}/icu-team", 1)
    database.dispose()
    found = admin.create_verification()
    assert not found.sound
    assert found.discrepancies[0].account == admin.get_budget(f"{name}/icu-team").id
    assert {place.account for place in found.quarantined} >= {found.discrepancies[0].account}
    lifted = admin.lift_quarantine(f"{name}/icu-team", reason="It was restored.")
    assert (lifted.kind, lifted.status) == ("quarantine", "open")
    assert admin.reject_proposal(lifted.id).status == "withdrawn"


def test_the_awaited_client_has_a_method_for_each_of_the_table() -> None:
    assert {name for name in table() if "." not in name} <= set(dir(AsyncLedgerClient))
