"""Use cases have one style: `use_case` checks the caller, and gives them their transaction."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

import app
from app.ledger.errors import PermissionDeniedError
from app.ledger.permissions import Permission, Role
from app.persistence.database import Database
from app.service.auth.request_context import RequestContext, find_cli_context
from app.service.auth.use_cases import use_case
from tests.ledgers import Ledger

ROOT = Path(app.__file__).parent
STEPS = {"service/charging/groups.py", "service/charging/commit_queue.py"}
"""Groups of steps have their own transactions."""

WITHOUT_ORGANISATION = {
    "service/keys/first_admin.py",  # creates organisations
    "service/auth/authentication.py",  # notes failed attempts, of nobody
    "service/auth/credential_cache.py",  # notes the use of keys of all organisations
    "sample/sample_ledger.py",
}


def test_writes_with_a_caller_begin_in_one_module() -> None:
    beginning = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if path.parent.name != "persistence"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in {"transact", "retried", "write"}
        and ast.unparse(node.value).removeprefix("self.").removeprefix("context.").strip("_") in {"db", "database"}
    }
    assert beginning == STEPS | WITHOUT_ORGANISATION | {"service/auth/use_cases.py"}


@use_case(Permission.KEY_MANAGE, whole_organisation=True)
def _write(tx: Connection, context: RequestContext, said: str) -> tuple[bool, str]:
    """Answer what was said."""
    return tx.in_transaction() and context.principal.role is Role.ADMIN, said


def test_use_case_runs_in_transaction_of_its_own_or_of_its_response(ledger: Ledger) -> None:
    context = _context(ledger)
    assert _write(context, "hello") == (True, "hello")
    effect = _write.effect(context, "later")
    with ledger.database.write(context.organisation_id) as tx:
        assert effect(tx) == _write.write(tx, context, "later") == (True, "later")
    assert _write.__doc__ == "Answer what was said."


@pytest.mark.parametrize("role", [Role.VIEWER, Role.TRAINER])
def test_caller_without_permission_gets_no_transaction(
    ledger: Ledger, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _context(ledger)
    monkeypatch.setattr(Database, "transact", lambda *_: pytest.fail("a transaction has begun"))
    for principal in (replace(context.principal, role=role), replace(context.principal, scope="bud_1")):
        refused = replace(context, principal=principal)
        for call in (_write, _write.effect):
            with pytest.raises(PermissionDeniedError):
                call(refused, "hello")


def _context(ledger: Ledger) -> RequestContext:
    return find_cli_context(ledger.database, "hospital", ledger.database.clock.now())
