"""Messages to people in Slack, Teams and mails: what they say, and that no name in them is more than a name."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.alerts import Alert, AlertType
from app.service.alerts.chat_messages import slack_body, teams_body
from app.service.alerts.http_sender import DeliveryResult
from app.service.alerts.mail_sender import mail_of
from app.service.alerts.messages import message_of, plain
from tests.conftest import Ledger
from tests.service.deliveries import sent_once, shown, tried
from tests.service.endpoint import Endpoint, status, subscribed
from tests.service.step_commands import sound
from tests.service.test_proposal_alerts import raised

NOW = datetime(2026, 11, 25, 9, tzinfo=UTC)
PAGES = "https://ledger.hospital.example"
CHATS = pytest.mark.parametrize("kind", ["slack", "teams"])
LIMIT = {"epsilon": 2.0, "delta": 1e-5}


def examples(name: str) -> dict[AlertType, dict[str, Any]]:
    """Facts of every type of alert, with one name for everything that people name or write."""
    budget = {
        "account": "bud_1",
        "account_path": name,
        "account_kind": "budget",
        "epsilon": 1.5,
        "epsilon_limit": 2.0,
        "delta": 1e-5,
    }
    run = {"account": "run_1", "account_path": name, "account_kind": "run"}
    plan = {"steps_planned": 100, "steps_used": 10}
    proposal = {"proposal": "prp_1", "reason": name, "proposed_by": "key_1", "proposed_by_name": name}
    decision = {"status": "rejected", "decided_by": "key_2", "decided_by_name": name, "decision_reason": name}
    limit = {"kind": "limit", "proposed": {"limit": LIMIT}}
    at = NOW.isoformat()
    return {
        AlertType.THRESHOLD: budget | {"threshold": 0.8},
        AlertType.EXHAUSTED: budget | {"run": "run_1", "run_path": name},
        AlertType.FORECAST: budget | {"utilisation": 0.6, "exhaustion_at": at, "within_days": 30},
        AlertType.OVERDRAWN: run | {"over_limit": budget},
        AlertType.RESERVATION_STALE: run | plan | {"silent_since": at, "expires_at": at},
        AlertType.RESERVATION_FORFEITED: run | plan | {"steps_forfeited": 90, "lapsed": True},
        AlertType.RESERVATION_GRANTED: run | plan | {"waited_seconds": 7300, "expires_at": at},
        AlertType.RESERVATION_EXPIRED: run | plan | {"wait_until": at},
        AlertType.BLOCK_SCHEDULE_FAILED: budget | {"block": "2026-12", "detail": f"There is {name!r} already."},
        AlertType.RUN_PENDING: run | proposal | {"kind": "run", "proposed": {"epsilon": None, "delta": 1e-5}},
        AlertType.PROPOSAL_OPENED: budget | proposal | limit | {"limit_before": LIMIT},
        AlertType.PROPOSAL_DECIDED: budget | proposal | limit | decision,
        AlertType.TEST: {"receiver": "rcv_1"},
    }


def alert(kind: AlertType, facts: dict[str, Any]) -> Alert:
    return Alert("evt_1", kind, facts.get("account"), "once", facts, NOW)


@pytest.mark.parametrize("kind", AlertType)
def test_alert_is_a_message_with_its_account_and_page(kind: AlertType) -> None:
    facts = examples("mimic/icu-team")[kind]
    said = message_of(alert(kind, facts))
    assert said.text.endswith(".")
    assert said.action.endswith((".", "do."))
    if kind is AlertType.TEST:
        assert said.path == "/alerts"
        return
    assert "mimic/icu-team" in said.subject
    assert ("Budget" if facts["account_kind"] == "budget" else "Run", "mimic/icu-team") in said.facts
    waits = kind in {AlertType.RUN_PENDING, AlertType.PROPOSAL_OPENED}
    assert said.path == (
        "/approvals" if waits else {"bud_1": "/accounts/bud_1", "run_1": "/runs/run_1"}[facts["account"]]
    )


LIFT = {"kind": "quarantine", "proposed": {"quarantined_accounts": 1}, "account_path": "a", "account_kind": "budget"}


@pytest.mark.parametrize(
    ("facts", "subject"),
    [
        ({"kind": "policy", "proposed": {"policy": {}}}, "a looser policy for the organisation"),
        (
            {"kind": "population", "proposed": {"name": "c", "limit": LIMIT}},
            "the population c with epsilon 2 at delta 1e-05",
        ),
        (LIFT, "to lift the quarantine of a"),
    ],
)
def test_proposal_is_named(facts: dict[str, Any], subject: str) -> None:
    who = {"proposal": "prp_1", "reason": "It is agreed.", "proposed_by": "key_1", "proposed_by_name": "Dana"}
    said = message_of(alert(AlertType.PROPOSAL_OPENED, who | facts))
    assert (said.subject, said.text) == (f"Approval needed: {subject}", f"Dana proposes {subject}.")
    decided = {"status": "withdrawn", "decided_by": "key_1", "decided_by_name": "Dana", "decision_reason": None}
    said = message_of(alert(AlertType.PROPOSAL_DECIDED, who | facts | decided))
    assert said.text == f"Dana withdrew what Dana proposed: {subject}."


def test_spent_epsilon_is_rounded_up() -> None:
    facts = examples("mimic")[AlertType.THRESHOLD]
    for epsilon, words in ((1.2341, "1.235"), (1.5, "1.5"), ("Infinity", "infinity")):
        said = message_of(alert(AlertType.THRESHOLD, facts | {"epsilon": epsilon}))
        assert ("Spent", f"epsilon {words} of 2, at delta 1e-05") in said.facts


HOSTILE = [
    "<!channel> <https://evil.example|click> *bold* `code` & <@U1>",
    "[click](https://evil.example) **bold** # title",
    "x\r\nBcc: victim@evil.example\r\n\r\nbody",
    "\u202egnp.exe\u202c\u200b\x00\x1b[31m",
    "n" * 5000,
]


@pytest.mark.parametrize("kind", AlertType)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_only_text(kind: AlertType, name: str) -> None:
    told = alert(kind, examples(name)[kind])
    said = message_of(told)
    slack = json.loads(slack_body(said, f"{PAGES}/approvals"))
    formatted = [each for each in _objects(slack) if each.get("type") == "mrkdwn"]
    assert formatted == [{"type": "mrkdwn", "text": f"<{PAGES}/approvals|Open Epsilon Ledger>"}]
    assert not {"<", ">"} & set(slack["text"])
    assert all(len(each["text"]) <= 3000 for each in _objects(slack) if each.get("type") == "plain_text")
    assert len(slack["blocks"][0]["text"]["text"]) <= 150
    teams = json.loads(teams_body(said, f"{PAGES}/approvals"))
    assert not [each for each in _objects(teams) if each.get("type") in {"TextBlock", "FactSet"}]
    mail = mail_of(told, said, ("office@hospital.example",), PAGES, "ledger@hospital.example")
    head, _, _ = mail.as_bytes().partition(b"\r\n\r\n")
    assert b"\nbcc:" not in head.lower()
    assert mail.keys() == [
        *("From", "To", "Subject", "Date", "Message-ID"),
        *(["References"] if "proposal" in told.payload else []),
        *("Auto-Submitted", "Content-Type", "Content-Transfer-Encoding", "MIME-Version"),
    ]


def _objects(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
    """All JSON objects in a value."""
    if isinstance(value, list):
        return [each for item in value for each in _objects(item)]
    if not isinstance(value, dict):
        return []
    return [value, *(each for item in value.values() for each in _objects(item))]


@given(st.text(max_size=400), st.integers(1, 300))
def test_plain_text_is_one_short_printable_line(text: str, most: int) -> None:
    found = plain(text, most)
    assert len(found) <= most
    assert found.isprintable()
    assert found == plain(found, most)


@CHATS
def test_chat_gets_a_message_with_a_link_and_no_signature(ledger: Ledger, endpoint: Endpoint, kind: str) -> None:
    receiver = subscribed(ledger, endpoint.url, kind=kind)
    assert (receiver["kind"], bool(receiver["secret"])) == (kind, False)
    ledger.population()
    assert raised(ledger, str(ledger.budget()["id"]), "Twice the patients.").status_code == 201
    assert sent_once(ledger, public_url=PAGES) == [DeliveryResult(204, None)]
    [sent] = endpoint.messages
    assert sent.headers["content-type"] == "application/json"
    assert "webhook-signature" not in sent.headers
    for part in ("epsilon 1.5 at delta 1e-05 for mimic/icu-team", "Twice the patients.", f"{PAGES}/approvals"):
        assert part in sent.body.decode()


@CHATS
def test_chat_is_tried_again_disabled_and_guarded_as_a_webhook_and_its_url_kept_secret(
    ledger: Ledger, endpoint: Endpoint, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secret = "T0/B0/secretsecret"
    receiver = subscribed(ledger, f"http://127.0.0.1:{endpoint.port}/{secret}", kind=kind)
    assert receiver["url"] == f"http://127.0.0.1:{endpoint.port}/…cret"
    tried(ledger, receiver)
    for code, at in ((503, 0), (307, 10)):
        endpoint.answer = status(code, Location=endpoint.url)
        assert sent_once(ledger, at=at) == [DeliveryResult(code, f"The answer was {code}.")]
        assert sent_once(ledger, at=at) == []
    [forbidden] = sent_once(ledger, allowed=False, at=100)
    assert forbidden == DeliveryResult(None, "The host 127.0.0.1 is not at a public address; nothing was sent.")
    endpoint.answer = status(410)
    sent_once(ledger, at=1000)
    assert [each["status"] for each in shown(ledger)] == ["given_up"]
    assert [each.path for each in endpoint.messages] == [f"/{secret}"] * 3
    paths = ("/v1/receivers", f"/v1/receivers/{receiver['id']}", "/v1/deliveries", "/v1/alerts", "/v1/audit-events")
    read = [ledger.get(path, "admin").text for path in paths]
    assert not [text for text in (json.dumps(receiver), *read, caplog.text) if secret in text]
    assert sound(ledger)
