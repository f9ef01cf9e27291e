"""Mails of alerts, sent to a real SMTP server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.service.alerts.http_sender import DeliveryResult
from app.service.alerts.mail_sender import NOT_CONFIGURED, SmtpServer
from tests.conftest import Ledger
from tests.service.certificates import server_certificate
from tests.service.deliveries import sent_once, shown, tried
from tests.service.endpoint import subscribed
from tests.service.mail_server import SENDER, MailServer, taking_mail
from tests.service.step_commands import sound

OFFICE, BOARD = "office@hospital.example", "board@hospital.example"
PAGES = "https://ledger.hospital.example"


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with taking_mail() as server:
        yield server


def mailed(ledger: Ledger, *addresses: str, **wanted: Any) -> dict[str, Any]:  # noqa: ANN401 - of the request
    made: dict[str, Any] = subscribed(ledger, None, kind="email", addresses=addresses or [OFFICE], **wanted)
    return made


def read(ledger: Ledger, receiver: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = ledger.get(f"/v1/receivers/{receiver['id']}", "admin").json()
    return answer


def test_mail_is_the_same_when_it_is_repeated(ledger: Ledger, mail_server: MailServer) -> None:
    delivery = tried(ledger, mailed(ledger, OFFICE, BOARD))
    assert sent_once(ledger, smtp=mail_server.settings(), public_url=PAGES) == [DeliveryResult(250, None)]
    assert ledger.post(f"/v1/deliveries/{delivery}/retry", None).status_code == 200
    assert sent_once(ledger, smtp=mail_server.settings(), public_url=PAGES) == [DeliveryResult(250, None)]
    mail, again = mail_server.mails
    [alert] = ledger.get("/v1/alerts").json()["items"]
    assert mail["Message-ID"] == again["Message-ID"] == f"<{alert['id']}@hospital.example>"
    assert (mail["From"], mail["To"]) == (f"Epsilon Ledger <{SENDER}>", f"{OFFICE}, {BOARD}")
    assert (mail["Subject"], mail["Auto-Submitted"]) == ("Test event of Epsilon Ledger", "auto-generated")
    assert mail.get_content_type() == "text/plain"
    assert mail.get_content().endswith(f"{PAGES}/alerts\r\n")
    assert [envelope.rcpt_tos for envelope in mail_server.envelopes] == [[OFFICE, BOARD]] * 2
    assert mail_server.envelopes[0].mail_from == SENDER
    [shown_delivery] = shown(ledger)
    assert (shown_delivery["status"], shown_delivery["last_status"]) == ("delivered", 250)


@pytest.mark.parametrize(
    ("answer", "refused"),
    [("451 4.3.0 try later", False), ("554 5.7.1 looks like spam", False), ("450 4.2.1 greylisted", True)],
)
def test_rejected_mail_is_tried_again(ledger: Ledger, mail_server: MailServer, answer: str, *, refused: bool) -> None:
    receiver = mailed(ledger)
    tried(ledger, receiver)
    if refused:
        mail_server.refused = {OFFICE: answer}
    else:
        mail_server.answer = answer
    [sent] = sent_once(ledger, smtp=mail_server.settings())
    assert (sent.status, sent.gone) == (int(answer[:3]), None)
    assert refused or sent.error == f"The SMTP server answered {answer}"
    assert [each["status"] for each in shown(ledger)] == ["pending"]
    assert read(ledger, receiver)["disabled_at"] is None
    mail_server.answer, mail_server.refused = "250 OK", {}
    assert sent_once(ledger, smtp=mail_server.settings(), at=60) == [DeliveryResult(250, None)]
    assert [each["status"] for each in shown(ledger)] == ["delivered"]


def test_unknown_addresses_disable_the_receiver(ledger: Ledger, mail_server: MailServer) -> None:
    receiver = mailed(ledger, OFFICE, BOARD)
    tried(ledger, receiver)
    mail_server.refused = {OFFICE: "550 5.1.1 no such user", BOARD: "553 5.1.3 bad address"}
    [sent] = sent_once(ledger, smtp=mail_server.settings())
    assert sent.status == 550
    disabled = read(ledger, receiver)
    assert disabled["disabled_reason"] == (
        "The SMTP server refused every address, the first with 550 5.1.1 no such user"
    )
    assert [each["status"] for each in shown(ledger)] == ["given_up"]
    assert sound(ledger)


def test_refused_address_keeps_the_mail_from_no_other(ledger: Ledger, mail_server: MailServer) -> None:
    tried(ledger, mailed(ledger, OFFICE, BOARD))
    mail_server.refused = {BOARD: "550 5.1.1 no such user"}
    [sent] = sent_once(ledger, smtp=mail_server.settings())
    assert sent.acknowledged
    [delivery] = shown(ledger)
    assert (delivery["status"], delivery["last_error"]) == ("delivered", f"The SMTP server refused {BOARD}.")
    assert [envelope.rcpt_tos for envelope in mail_server.envelopes] == [[OFFICE]]


def test_missing_smtp_server_is_tried_again(ledger: Ledger, mail_server: MailServer) -> None:
    tried(ledger, mailed(ledger))
    [sent] = sent_once(ledger, smtp=SmtpServer("127.0.0.1", 1, "none", SENDER))
    assert (sent.status, sent.acknowledged) == (None, False)
    assert sent_once(ledger, at=60) == [DeliveryResult(None, NOT_CONFIGURED)]
    assert sent_once(ledger, smtp=mail_server.settings(), at=600) == [DeliveryResult(250, None)]


def test_password_is_sent_over_trusted_tls_only(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, file = server_certificate(tmp_path)
    secret = tmp_path / "password"
    secret.write_text("right\n")
    receiver = mailed(ledger)
    with taking_mail(tls) as server:
        signed_in = server.settings(tls="starttls", user="ledger", password_file=str(secret))
        tried(ledger, receiver)
        [distrusted] = sent_once(ledger, smtp=signed_in)
        assert "certificate" in str(distrusted.error)
        assert (server.logins, server.mails) == ([], [])
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert sent_once(ledger, smtp=signed_in, at=60) == [DeliveryResult(250, None)]
        assert server.logins == [("ledger", "right")]
        secret.write_text("wrong")
        tried(ledger, receiver)
        [refused] = sent_once(ledger, smtp=signed_in)
        assert (refused.status, refused.gone) == (535, None)
        assert "wrong" not in str(refused.error)
