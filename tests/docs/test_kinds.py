"""Each kind is declared once, and what is written out elsewhere agrees (docs/contributing/add-a-kind.md)."""

import re
from typing import get_args

from app.ledger.accounts.alerts import ALERT_TITLES, AlertType
from app.ledger.accounts.receivers import RECEIVER_FORMS, ReceiverKind
from app.service.alerts.chat_messages import CHAT_BODIES
from epsilon_ledger._wire import alert_models
from tests.docs.markdown import ROOT

ALERTS = (ROOT / "docs/how-to/send-alerts.md").read_text()


def test_receivers() -> None:
    kinds = list(ReceiverKind)
    assert list(RECEIVER_FORMS) == kinds
    assert list(CHAT_BODIES) == [kind for kind, form in RECEIVER_FORMS.items() if not (form.signed or form.by_mail)]
    assert [*get_args(alert_models.ReceiverKind)] == kinds
    assert re.findall(r"(?m)^\| `(\w+)`[^|]*\| `(?:url|addresses)`", ALERTS) == kinds


def test_alert_types() -> None:
    types = list(AlertType)
    assert list(ALERT_TITLES) == types
    assert sorted(re.findall(r"(?m)^\| `(\w+\.\w+)` \|", ALERTS)) == sorted(types)
