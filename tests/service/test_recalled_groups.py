"""Groups that PostgreSQL decides in one round trip: they commit only if the cached rows were still the same."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from app.ledger.errors import (
    AccountQuarantinedError,
    IdempotencyKeyReusedError,
    LedgerUnavailableError,
    RunStateConflictError,
    SequenceGapError,
)
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import balances, idempotent_responses, raw_rows
from app.persistence.tables import accounts
from app.service.charging import groups
from app.service.charging.requests import StepResult
from app.service.charging.saving import MOST_VALIDATED, LedgerCache
from app.service.verification import verify
from tests import postgres
from tests.conftest import Ledger
from tests.service.step_commands import LOUD, QUIET, CommandRunner, another, opened, request

pytestmark = pytest.mark.postgresql


@pytest.fixture
def recalled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each group whether it was committed on cached rows."""
    seen: list[bool] = []
    commit: Callable[..., object] = vars(groups)["_commit_recalled"]

    def look(*given: object) -> object:
        outcomes = commit(*given)
        seen.append(outcomes is not None)
        return outcomes

    monkeypatch.setattr(groups, "_commit_recalled", look)
    return seen


@pytest.fixture
def ready(ledger: Ledger, recalled: list[bool]) -> Iterator[tuple[str, CommandRunner]]:
    """A run whose rows are cached; everything is sound in the end."""
    run, runner = opened(ledger), CommandRunner(ledger)
    runner.charged(request(run))
    recalled.clear()
    yield run, runner
    assert not verify(ledger.database).unproven


def test_repeated_steps_are_committed_on_cached_rows(ready: tuple[str, CommandRunner], recalled: list[bool]) -> None:
    run, runner = ready
    outcomes = [runner.once(request(run, first=step), request(run, first=step + 1)) for step in (1, 3, 5)]
    steps = [each.decision.first_step for group in outcomes for each in group if isinstance(each, StepResult)]
    assert (steps, recalled) == ([1, 2, 3, 4, 5, 6], [True] * 3)


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "report"},
        {"first": 0},
        {"attempt": 2, "first": 1},
        {"on_exceed": "truncate", "items": (LOUD, 10**6)},
        {"items": (QUIET, 1)},
        {"items": (LOUD, 10**6)},
    ],
    ids=["a report", "a replay", "another attempt", "a truncated one", "a new event", "a refusal"],
)
def test_other_steps_are_not_committed_on_cached_rows(
    ready: tuple[str, CommandRunner], recalled: list[bool], asked: dict[str, object]
) -> None:
    run, runner = ready
    items = [asked["items"]] if "items" in asked else []
    runner.group(request(run, *items, **{name: value for name, value in asked.items() if name != "items"}))  # type: ignore[arg-type]
    assert recalled == [False]


def test_steps_with_new_keys_are_committed_on_cached_rows(
    ready: tuple[str, CommandRunner], recalled: list[bool]
) -> None:
    run, runner = ready
    first, again, other = runner.once(request(run, key="a"), request(run, key="a"), request(run, key="b"))
    assert isinstance(first, StepResult)
    assert isinstance(other, StepResult)
    assert again == StepResult(first.decision, replayed=True)
    assert (other.decision.first_step, recalled) == (2, [True])


def test_failed_command_with_a_used_key_gets_its_decision(
    ready: tuple[str, CommandRunner], recalled: list[bool], ledger: Ledger
) -> None:
    """What it fails for does not matter then."""
    run, runner = ready
    paused = another(ledger)
    runner.charged(request(paused, key="a"))
    assert ledger.post(f"/v1/runs/{paused}/pause", None, "trainer").status_code == 200
    [refused] = runner.once(request(paused))
    assert isinstance(refused, RunStateConflictError)
    recalled.clear()
    charged, again = runner.once(request(run), request(paused, key="a"))
    assert isinstance(charged, StepResult)
    assert isinstance(again, StepResult)
    assert again.replayed
    assert recalled == [False]


def test_key_of_another_request_is_refused(
    ready: tuple[str, CommandRunner], recalled: list[bool], ledger: Ledger
) -> None:
    run, runner = ready
    with ledger.database.write(ALL_TENANTS) as tx:
        reply = idempotent_responses.Reply("0" * 64, "{}", 201)
        idempotent_responses.add(tx, runner.organisation_id, "taken", reply, runner.call().now)
    [outcome] = runner.once(request(run, key="taken"))
    assert isinstance(outcome, IdempotencyKeyReusedError)
    assert recalled == [False]


def test_failed_command_is_decided_on_validated_rows(ready: tuple[str, CommandRunner], recalled: list[bool]) -> None:
    run, runner = ready
    charged, gap = runner.once(request(run), request(run, first=9))
    assert isinstance(charged, StepResult)
    assert isinstance(gap, SequenceGapError)
    [alone] = runner.once(request(run, first=9))
    assert isinstance(alone, SequenceGapError)
    assert recalled == [True, False]  # nothing is required where nothing is written


def test_changed_row_is_read_again(ready: tuple[str, CommandRunner], recalled: list[bool], ledger: Ledger) -> None:
    run, runner = ready
    other = CommandRunner(ledger)
    assert other.charged(request(run)).first_step == 1
    assert runner.charged(request(run)).first_step == 2
    assert recalled == [False, False]
    assert runner.charged(request(run)).first_step == 3
    assert runner.charged(request(run)).first_step == 4
    assert recalled == [False, False, False, True]  # one more was validated


def test_quarantine_is_noticed(ready: tuple[str, CommandRunner], ledger: Ledger) -> None:
    run, runner = ready
    team = runner.path(run)[1].id
    with ledger.database.write(ALL_TENANTS) as tx:
        raw_rows.set_quarantine(tx, runner.organisation_id, {team: "its balance is unproven"}, runner.call().now)
    [outcome] = runner.once(request(run))
    assert isinstance(outcome, AccountQuarantinedError)
    with ledger.database.write(ALL_TENANTS) as tx:
        raw_rows.set_quarantine(tx, runner.organisation_id, {team: None}, runner.call().now)


def test_refusal_by_another_process_is_noticed_by_the_chain_head(
    ready: tuple[str, CommandRunner], recalled: list[bool], ledger: Ledger
) -> None:
    """No account has a new version then."""
    run, runner = ready
    assert not CommandRunner(ledger).charged(request(run, (LOUD, 10**6))).admitted
    assert runner.charged(request(run)).position == 2
    assert recalled == [False, False]


def test_command_that_waits_for_a_lock_sees_later_commits(
    ready: tuple[str, CommandRunner], recalled: list[bool], ledger: Ledger
) -> None:
    run, runner = ready
    with ThreadPoolExecutor(1) as pool:
        with ledger.database.write(ALL_TENANTS) as tx:
            tx.execute(
                update(accounts).where(accounts.c.path == "mimic/icu-team").values(version=accounts.c.version + 1)
            )
            waiting = pool.submit(runner.once, request(run))
            threading.Event().wait(0.3)
            assert not waiting.done()
        [outcome] = waiting.result(30)
    assert isinstance(outcome, StepResult)
    assert outcome.decision.admitted
    assert recalled == [False]


def test_connection_closed_by_the_server_is_not_used(
    ready: tuple[str, CommandRunner], recalled: list[bool], ledger: Ledger
) -> None:
    run, runner = ready
    runner.once(request(run))
    assert postgres.shared().terminate_backends(str(ledger.database.engine.url.database)) > 0
    threading.Event().wait(0.5)  # until the client can see it
    [outcome] = runner.once(request(run))
    assert isinstance(outcome, StepResult)
    assert outcome.decision.first_step == 2
    assert recalled == [True, False]


def test_connection_that_breaks_leaves_the_outcome_unknown(ready: tuple[str, CommandRunner], ledger: Ledger) -> None:
    run, runner = ready
    other = Database(ledger.database.engine.url.render_as_string(hide_password=False))
    with ThreadPoolExecutor(1) as pool, other.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).where(accounts.c.path == "mimic/icu-team").values(version=accounts.c.version))
        waiting = pool.submit(runner.once, request(run))
        threading.Event().wait(0.3)
        assert not waiting.done()
        tx.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with pytest.raises(LedgerUnavailableError, match="may or may not"):
            waiting.result(30)
    other.dispose()
    assert runner.charged(request(run)).first_step == 1


def test_program_error_leaves_a_clean_connection(
    ready: tuple[str, CommandRunner],
    recalled: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, runner = ready

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(balances, "save", fail)  # after other statements were sent
        with pytest.raises(ZeroDivisionError):
            runner.once(request(run))
    assert runner.charged(request(run)).first_step == 1
    assert recalled == [True]
    assert not caplog.records  # of the pool, which could not reset it


def test_ordinary_statement_in_a_pipeline_fails(ready: tuple[str, CommandRunner], ledger: Ledger) -> None:
    """Its result would never come."""
    run, runner = ready
    with ledger.database.pipeline(runner.organisation_id) as tx:
        assert tx is not None
        with pytest.raises(AssertionError, match="for ever"):
            tx.execute(select(accounts.c.id))
    assert runner.charged(request(run)).first_step == 1


def test_trust_returns_later_after_each_failure() -> None:
    memory, lengths = LedgerCache(), []
    for _ in range(8):
        assert memory.trusts("org")
        memory.distrust("org")
        assert memory.trusts("other")
        lengths.append(0)
        while not memory.trusts("org"):
            lengths[-1] += 1
    assert lengths == [1, 3, 7, 15, 31, 63, 63, 63]
    assert max(lengths) == MOST_VALIDATED


def test_deallocated_statements_are_prepared_again(
    ready: tuple[str, CommandRunner], recalled: list[bool], ledger: Ledger
) -> None:
    run, runner = ready
    runner.once(request(run))
    with ledger.database.engine.connect() as connection:
        connection.exec_driver_sql("DEALLOCATE ALL")
        connection.commit()
    for step in (2, 3):
        [outcome] = runner.once(request(run))
        assert isinstance(outcome, StepResult)
        assert outcome.decision.first_step == step
    assert recalled == [True, False, True]
