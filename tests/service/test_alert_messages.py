"""Messages to people in Slack, Teams and mails: what they say, that a name is only a name, and how mails are sent."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.accounts.alerts import Alert, AlertType
from app.service.alerts.alert_sender import slack_body, teams_body
from app.service.alerts.http_sender import DeliveryResult
from app.service.alerts.mail_sender import NOT_CONFIGURED, SmtpServer, mail_of
from app.service.alerts.messages import message_of, plain
from tests.api.trainer import Trainer
from tests.certificates import server_context
from tests.conftest import Ledger
from tests.each import for_each
from tests.service.endpoint import Endpoint, status, subscribed
from tests.service.step_commands import sound
from tests.service.test_alert_delivery import sent_once, shown, tried
from tests.service.test_proposal_alerts import raised

NOW = datetime(2026, 11, 25, 9, tzinfo=UTC)
PAGES = "https://ledger.hospital.example"
LIMIT = {"epsilon": 2.0, "delta": 1e-5}


def examples(name: str) -> dict[AlertType, dict[str, Any]]:
    """Facts of every type of alert, with one name for everything that people name or write."""
    budget: dict[str, Any] = {"account": "bud_1", "account_path": name, "account_kind": "budget"}
    budget |= {"used": 0.75, "limit": LIMIT}
    run = {"account": "run_1", "account_path": name, "account_kind": "run"}
    plan = {"steps_reserved": 100, "steps_used": 10}
    proposal = {"proposal": "prp_1", "reason": name, "proposed_by": "key_1", "proposed_by_name": name}
    decision = {"status": "rejected", "decided_by": "key_2", "decided_by_name": name, "decision_reason": name}
    limit = {"kind": "limit", "proposed": {"limit": LIMIT}}
    at = NOW.isoformat()
    return {
        AlertType.THRESHOLD: budget | {"threshold": 0.8},
        AlertType.EXHAUSTED: budget | {"run": "run_1", "run_path": name},
        AlertType.FORECAST: budget | {"used": 0.6, "exhaustion_at": at, "within_days": 30},
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


@for_each(AlertType)
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
    page = {"bud_1": "/accounts/bud_1", "run_1": "/runs/run_1"}[facts["account"]]
    assert said.path == ("/approvals" if kind in {AlertType.RUN_PENDING, AlertType.PROPOSAL_OPENED} else page)


def test_proposed_population_is_named_with_its_limit() -> None:
    facts = examples("ada")[AlertType.PROPOSAL_OPENED] | {"kind": "population", "account_path": None}
    facts = facts | {"proposed": {"name": "eicu", "limit": LIMIT}, "account": None}
    del facts["limit_before"]
    said = message_of(alert(AlertType.PROPOSAL_OPENED, facts))
    assert "the population eicu with epsilon 2 at delta 1e-05" in said.subject
    assert ("limit is" in said.text, said.path) == (False, "/approvals")


HOSTILE = [
    "<!channel> <https://evil.example|click> *bold* `code` & <@U1>",
    "[click](https://evil.example) **bold** # title",
    "x\r\nBcc: victim@evil.example\r\n\r\nbody",
    "\u202egnp.exe\u202c\u200b\x00\x1b[31m",
    "n" * 5000,
]


@for_each([(kind, name) for kind in AlertType for name in HOSTILE])
def test_hostile_name_is_only_text(case: tuple[AlertType, str]) -> None:
    kind, name = case
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


@given(st.text(max_size=60), st.integers(1, 40))
def test_plain_text_is_one_short_printable_line(text: str, most: int) -> None:
    found = plain(text, most)
    assert len(found) <= most
    assert found.isprintable()
    assert found == plain(found, most)


@pytest.mark.parametrize("kind", ["slack", "teams"])
def test_chat_is_tried_again_disabled_and_guarded_as_a_webhook_and_its_url_kept_secret(
    trainer: Trainer, endpoint: Endpoint, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, secret = trainer.ledger, "T0/B0/secretsecret"
    caplog.set_level("DEBUG")
    receiver = subscribed(ledger, f"http://127.0.0.1:{endpoint.server_port}/{secret}", kind=kind)
    assert (receiver["kind"], bool(receiver["secret"])) == (kind, False)
    assert receiver["url"] == f"http://127.0.0.1:{endpoint.server_port}/…cret"
    assert raised(ledger, trainer.path()[1].id, "Twice the patients.").status_code == 201
    for code, at in ((503, 0), (307, 10)):
        endpoint.answer = status(code, Location=endpoint.url)
        assert sent_once(ledger, at=at, public_url=PAGES) == [DeliveryResult(code, f"The answer was {code}.")]
        assert sent_once(ledger, at=at) == []
    [forbidden] = sent_once(ledger, allowed=False, at=100)
    assert forbidden == DeliveryResult(None, "The host 127.0.0.1 is not at a public address; nothing was sent.")
    endpoint.answer = status(410)
    sent_once(ledger, at=1000)
    assert [each["status"] for each in shown(ledger)] == ["given_up"]
    assert [each.path for each in endpoint.messages] == [f"/{secret}"] * 3
    first = endpoint.messages[0]
    assert (first.headers["content-type"], "webhook-signature" in first.headers) == ("application/json", False)
    for part in ("epsilon 1.5 at delta 1e-05 for mimic/icu-team", "Twice the patients.", f"{PAGES}/approvals"):
        assert part in first.body.decode()
    paths = ("/v1/receivers", f"/v1/receivers/{receiver['id']}", "/v1/deliveries", "/v1/alerts", "/v1/audit-events")
    read = [ledger.get(path, "admin").text for path in paths]
    assert not [text for text in (json.dumps(receiver), *read, caplog.text) if secret in text]
    assert sound(ledger)


SENDER, OFFICE, BOARD = "ledger@hospital.example", "office@hospital.example", "board@hospital.example"
SENT = DeliveryResult(250, None)


@dataclass
class MailServer:
    """Takes every mail."""

    port: int = 0
    mails: list[tuple[EmailMessage, Envelope]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)

    async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:  # noqa: N802 - as aiosmtpd calls it
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=SMTP_POLICY)
        assert isinstance(mail, EmailMessage)
        self.mails.append((mail, envelope))
        return "250 OK"

    def login(self, _: SMTP, __: Session, ___: Envelope, ____: str, data: LoginPassword) -> AuthResult:
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"right", handled=False)

    def settings(self, **other: Any) -> SmtpServer:  # noqa: ANN401 - of each setting
        return replace(SmtpServer("127.0.0.1", self.port, "none", SENDER), **other)


@contextmanager
def taking_mail(tls: ssl.SSLContext | None = None) -> Iterator[MailServer]:
    """A server on a port of its own; with a certificate it wants STARTTLS, and a name and password."""
    server = MailServer()
    secured: dict[str, Any] = {"require_starttls": True, "auth_required": True, "authenticator": server.login}
    with socket.socket() as probe:  # the controller connects to the port that it was given
        probe.bind(("127.0.0.1", 0))
        server.port = probe.getsockname()[1]
    secured = secured | {"tls_context": tls} if tls else {}
    controller = Controller(server, hostname="127.0.0.1", port=server.port, **secured)
    controller.start()
    try:
        yield server
    finally:
        controller.stop()


def mailed(ledger: Ledger, *addresses: str) -> dict[str, str]:
    return subscribed(ledger, None, kind="email", addresses=addresses)


def test_mail_is_the_same_when_it_is_repeated(ledger: Ledger) -> None:
    delivery = tried(ledger, mailed(ledger, OFFICE, BOARD))
    with taking_mail() as server:
        for _ in range(2):
            assert sent_once(ledger, smtp=server.settings(), public_url=PAGES) == [SENT]
            assert ledger.post(f"/v1/deliveries/{delivery}/retry", None).status_code == 200
    (mail, envelope), (again, other) = server.mails
    [alert] = ledger.get("/v1/alerts").json()["items"]
    assert mail["Message-ID"] == again["Message-ID"] == f"<{alert['id']}@hospital.example>"
    assert (mail["From"], mail["To"]) == (f"Epsilon Ledger <{SENDER}>", f"{OFFICE}, {BOARD}")
    assert (mail["Subject"], mail["Auto-Submitted"]) == ("Test event of Epsilon Ledger", "auto-generated")
    assert mail.get_content_type() == "text/plain"
    assert mail.get_content().endswith(f"{PAGES}/alerts\r\n")
    assert envelope.rcpt_tos == other.rcpt_tos == [OFFICE, BOARD]
    assert envelope.mail_from == SENDER
    assert [each["last_status"] for each in shown(ledger)] == [250]
    assert sent_once(ledger) == [DeliveryResult(None, NOT_CONFIGURED)]
    assert [each["status"] for each in shown(ledger)] == ["pending"]


def test_password_is_sent_by_trusted_tls_only(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, file = server_context(tmp_path)
    secret = tmp_path / "password"
    secret.write_text("right\n")
    receiver = mailed(ledger, OFFICE)
    with taking_mail(tls) as server:
        signed_in = server.settings(tls="starttls", user="ledger", password_file=str(secret))
        tried(ledger, receiver)
        [distrusted] = sent_once(ledger, smtp=signed_in)
        assert "certificate" in str(distrusted.error)
        assert (server.logins, server.mails) == ([], [])
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert sent_once(ledger, smtp=signed_in, at=60) == [SENT]
        assert server.logins == [("ledger", "right")]
        secret.write_text("wrong")
        tried(ledger, receiver)
        [refused] = sent_once(ledger, smtp=signed_in)
        assert (refused.status, refused.gone) == (535, None)
        assert "wrong" not in str(refused.error)
