"""Each kind is declared once, and what is written out elsewhere agrees (docs/contributing/add-a-kind.md)."""

import re
from dataclasses import MISSING, fields
from typing import get_args, get_type_hints

import epsilon_ledger
from app.accounting.events.base import EVENT_TYPES
from app.ledger.accounts.alerts import AlertType
from app.ledger.accounts.receivers import ReceiverKind
from app.ledger.audit import AuditAction
from app.ledger.settings.policy_rules import RULES, Policy
from app.service.alerts.alert_sender import CHAT_BODIES
from app.service.verification import record_replay
from epsilon_ledger._wire import alert_models
from tests.docs.markdown import ROOT

ALERTS = (ROOT / "docs/how-to/send-alerts.md").read_text()


def test_receivers() -> None:
    kinds = list(ReceiverKind)
    assert all(kind.form.title for kind in kinds)
    assert list(CHAT_BODIES) == [kind for kind in kinds if not (kind.form.signed or kind.form.by_mail)]
    assert [*get_args(alert_models.ReceiverKind)] == kinds
    assert re.findall(r"(?m)^\| `(\w+)`[^|]*\| `(?:url|addresses)`", ALERTS) == kinds


def test_alert_types() -> None:
    assert all(kind.words for kind in AlertType)
    assert sorted(re.findall(r"(?m)^\| `(\w+\.\w+)` \|", ALERTS)) == sorted(AlertType)


def test_audit_actions() -> None:
    assert all(action.words for action in AuditAction)
    assert set(record_replay._HANDLERS) <= set(AuditAction)


def test_events() -> None:
    """The client writes out a type for each event, with the fields that the class declares."""
    for cls, declared in EVENT_TYPES.items():
        written = getattr(epsilon_ledger, f"{cls.__name__}Event")
        defaults = {field.name: field.default is not MISSING for field in fields(cls)}
        assert list(defaults) == [name for name in declared.checks if name in defaults]
        assert set(get_type_hints(written)) == {"type", *defaults}, declared.name
        assert written.__optional_keys__ == {name for name, optional in defaults.items() if optional}, declared.name
        assert get_args(get_type_hints(written)["type"]) == (declared.name,)


def test_policy_rules() -> None:
    """The client's type is compared with the API's in `tests/sdk/test_models.py`."""
    names = [field.name for field in fields(Policy)]
    assert list(RULES) == names
    table = (ROOT / "docs/reference/policy-rules.md").read_text().partition("## ")[0]
    assert re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`[^|]*) \|", table))) == names
