"""Groups that PostgreSQL decides in one round trip: they commit only if the cached rows were still the same."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import update

from app.accounting.events import event_to_dict
from app.ledger import errors
from app.ledger.errors import LedgerUnavailableError, SequenceGapError
from app.ledger.runs.decisions import entry_hash
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import balances, idempotent_responses, raw_rows
from app.persistence.tables import accounts
from app.service.charging import counted_steps, groups
from app.service.charging.groups import CommandResult, commit_counted
from app.service.charging.ledger_state import MOST_VALIDATED, LedgerState
from app.service.charging.requests import StepCommand, StepRequest, StepResult
from app.service.verification.verify import verify
from tests import postgres
from tests.conftest import Ledger
from tests.service import step_commands
from tests.service.step_commands import LOUD, QUIET, CommandRunner, another, request

pytestmark = pytest.mark.postgresql

TEAM_ROW = accounts.c.path == "mimic/icu-team"


@dataclass
class Ready:
    """A run whose rows are cached; of each group whether all of it was committed on cached rows."""

    ledger: Ledger
    run: str
    runner: CommandRunner
    recalled: list[bool]

    def request(self, *items: Any, **asked: Any) -> StepRequest:  # noqa: ANN401 - as `request`
        return request(self.run, *items, **asked)

    def once(self, *asked: StepRequest) -> list[Any]:
        return self.runner.once(*asked)

    def first_step(self) -> int:
        """That of another step, charged at once."""
        [outcome] = self.once(self.request())
        assert isinstance(outcome, StepResult), outcome
        assert outcome.decision.admitted
        return outcome.decision.first_step


@pytest.fixture
def ready(ledger: Ledger, run: str, runner: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ready]:
    """Everything is sound in the end."""
    made, before = Ready(ledger, run, runner, []), another(ledger)
    for _ in range(10):  # the epsilons of the steps that follow are known
        runner.charged(request(before))
    runner.charged(made.request())

    def snapshot(database: Database, state: LedgerState, commands: Sequence[StepCommand]) -> dict[int, CommandResult]:
        outcomes = commit_counted(database, state, commands)
        made.recalled.append(len(outcomes) == len(commands))
        return outcomes

    monkeypatch.setattr(step_commands, "commit_counted", snapshot)
    yield made
    assert not verify(ledger.database).unproven


def test_repeated_steps_are_committed_on_cached_rows(ready: Ready) -> None:
    outcomes = [ready.once(ready.request(first=step), ready.request(first=step + 1)) for step in (1, 3, 5)]
    assert [each.decision.first_step for group in outcomes for each in group] == [1, 2, 3, 4, 5, 6]
    for step in (7, 8):  # reads between leave the statements prepared
        ready.runner.path(ready.run)
        assert ready.first_step() == step
    assert ready.recalled == [True] * 5


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a report": ((), {"mode": "report"}),
    "a replay": ((), {"first": 0}),
    "another attempt": ((), {"attempt": 2, "first": 1}),
    "a truncated one": (((LOUD, 10**6),), {"on_exceed": "truncate"}),
    "a new event": (((QUIET, 1),), {}),
    "a refusal": (((LOUD, 10**6),), {}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_steps_are_not_committed_on_cached_rows(ready: Ready, what: str) -> None:
    items, asked = OTHERS[what]
    ready.runner.group(ready.request(*items, **asked))
    assert ready.recalled == [False]


def test_new_keys_are_committed_on_cached_rows_and_used_keys_are_replayed(ready: Ready) -> None:
    first, other = ready.once(*(ready.request(key=key) for key in ("a", "b")))
    assert (other.decision.first_step, ready.recalled) == (2, [True])
    for asked in ("a",), ("c", "c"):
        *_, later = ready.once(*(ready.request(key=key) for key in asked))
        place = first.decision.position if asked == ("a",) else 3
        assert (later.replayed, later.decision.position) == (True, place)
    charged, replayed = ready.once(ready.request(), ready.request(first=0))
    assert (charged.replayed, replayed.replayed, replayed.decision.first_step) == (False, True, 0)
    assert ready.recalled == [True, False, False, False]


def test_failed_command_is_decided_on_validated_rows_and_with_a_used_key_gets_its_decision(ready: Ready) -> None:
    charged, gap = ready.once(ready.request(), ready.request(first=9))
    assert (type(charged), type(gap)) == (StepResult, SequenceGapError)
    assert isinstance(ready.once(ready.request(first=9))[0], SequenceGapError)
    assert ready.recalled == [False, False]
    paused = another(ready.ledger)
    ready.runner.charged(request(paused, key="a"))
    assert ready.ledger.post(f"/v1/runs/{paused}/pause", None, "trainer").status_code == 200
    assert isinstance(ready.once(request(paused))[0], errors.RunStateConflictError)
    ready.recalled.clear()
    charged, again = ready.once(ready.request(), request(paused, key="a"))
    assert (charged.replayed, again.replayed, ready.recalled) == (False, True, [False])
    with ready.ledger.database.write(ALL_TENANTS) as tx:
        reply = idempotent_responses.Reply("0" * 64, "{}", 201)
        idempotent_responses.add(tx, ready.runner.organisation_id, "taken", reply, ready.runner.call().now)
    assert isinstance(ready.once(ready.request(key="taken"))[0], errors.IdempotencyKeyReusedError)


def test_changed_row_is_read_again_and_charged_by_counting(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CommandRunner(ready.ledger).charged(ready.request()).first_step == 1
    ready.recalled.clear()
    monkeypatch.delattr(groups, "decide_command")
    assert [ready.first_step() for _ in range(3)] == [2, 3, 4]
    assert ready.recalled == [False, False, True]  # one more was validated


def test_steps_of_reservation_are_committed_though_others_charge_the_accounts_above(ready: Ready) -> None:
    plan = {"events": [{"event": event_to_dict(LOUD), "count": 20}], "lease_seconds": 600}
    assert ready.ledger.post(f"/v1/runs/{ready.run}/reservations", plan, "trainer").status_code == 201
    ready.once(ready.request())
    elsewhere, beside = CommandRunner(ready.ledger), another(ready.ledger)
    for step in (2, 3, 4):
        assert elsewhere.charged(request(beside)).admitted
        assert ready.first_step() == step
    assert ready.recalled[-3::2] == [True, True]  # after those that were validated
    team, owner = ready.runner.path(ready.run)[1].id, ready.runner.organisation_id
    for reason in ("its balance is unproven", None):
        with ready.ledger.database.write(ALL_TENANTS) as tx:
            raw_rows.set_quarantine(tx, owner, {team: reason}, ready.runner.call().now)
        assert isinstance(ready.once(ready.request())[0], errors.AccountQuarantinedError) is (reason is not None)


def test_quarantine_and_refusal_by_another_process_are_noticed(ready: Ready) -> None:
    team, owner = ready.runner.path(ready.run)[1].id, ready.runner.organisation_id
    for reason in ("its balance is unproven", None):
        with ready.ledger.database.write(ALL_TENANTS) as tx:
            raw_rows.set_quarantine(tx, owner, {team: reason}, ready.runner.call().now)
        assert isinstance(ready.once(ready.request())[0], errors.AccountQuarantinedError) is (reason is not None)
    assert not CommandRunner(ready.ledger).charged(ready.request((LOUD, 10**6))).admitted
    ready.recalled.clear()
    assert ready.runner.charged(ready.request()).position == 3
    assert ready.recalled == [False]


def test_command_that_waits_for_a_lock_sees_later_commits(ready: Ready) -> None:
    with ThreadPoolExecutor(1) as pool:
        with ready.ledger.database.write(ALL_TENANTS) as tx:
            tx.execute(update(accounts).where(TEAM_ROW).values(version=accounts.c.version + 1))
            waiting = pool.submit(ready.first_step)
            threading.Event().wait(0.3)
            assert not waiting.done()
        assert waiting.result(30) == 1
    assert ready.recalled == [False]


def test_deallocated_statements_are_prepared_again(ready: Ready) -> None:
    assert ready.first_step() == 1
    with ready.ledger.database.engine.connect() as connection:
        connection.exec_driver_sql("DEALLOCATE ALL")
        connection.commit()
    assert [ready.first_step() for _ in range(2)] == [2, 3]
    assert ready.recalled == [True, False, True]


def test_connection_closed_by_the_server_is_not_used(ready: Ready) -> None:
    assert ready.first_step() == 1
    assert postgres.shared().terminate_backends(str(ready.ledger.database.engine.url.database)) > 0
    threading.Event().wait(0.5)  # until the client can see it
    assert ready.first_step() == 2
    assert ready.recalled == [True, False]


def test_connection_that_breaks_leaves_the_outcome_unknown(ready: Ready, replica: Database) -> None:
    with ThreadPoolExecutor(1) as pool, replica.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).where(TEAM_ROW).values(version=accounts.c.version))
        waiting = pool.submit(ready.first_step)
        threading.Event().wait(0.3)
        assert not waiting.done()
        tx.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with pytest.raises(LedgerUnavailableError, match="may or may not"):
            waiting.result(30)
    assert ready.first_step() == 1


def test_program_error_leaves_a_clean_connection(
    ready: Ready, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(balances, "save", fail)  # after other statements were sent
        with pytest.raises(ZeroDivisionError):
            ready.first_step()
    assert (ready.first_step(), ready.recalled) == (1, [False])
    assert not caplog.records  # of the pool, which could not reset it


def test_error_in_the_midst_of_a_group_leaves_nothing_charged(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def fail_later(*given: Any) -> bytes:  # noqa: ANN401 - as `entry_hash`
        hashed.append(entry_hash(*given))
        return hashed[-1] if len(hashed) == 1 else hashed[9]

    with monkeypatch.context() as patch:
        patch.setattr(counted_steps, "entry_hash", fail_later)
        with pytest.raises(IndexError):
            ready.once(ready.request(), ready.request())
    assert [ready.first_step() for _ in range(2)] == [1, 2]
    assert ready.recalled == [False, True]


def test_trust_returns_later_after_each_failure() -> None:
    memory, lengths = LedgerState(), []
    for _ in range(8):
        assert memory.trusts("org")
        memory.distrust("org")
        assert memory.trusts("other")
        lengths.append(0)
        while not memory.trusts("org"):
            lengths[-1] += 1
    assert lengths == [1, 3, 7, 15, 31, 63, 63, 63]
    assert max(lengths) == MOST_VALIDATED
