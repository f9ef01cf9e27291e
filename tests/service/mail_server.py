"""A real SMTP server, and every mail that it was sent."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from app.service.alerts.mail_sender import SmtpServer

SENDER = "ledger@hospital.example"


@dataclass
class MailServer:
    """Takes every mail unless it is told otherwise: `refused` has answers by address, `answer` that to a mail."""

    port: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    answer: str = "250 OK"
    mails: list[EmailMessage] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)

    async def handle_RCPT(  # noqa: N802 - as aiosmtpd calls it
        self, _: SMTP, __: Session, envelope: Envelope, address: str, ___: list[str]
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:  # noqa: N802 - likewise
        if self.answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            mail = message_from_bytes(envelope.content, policy=SMTP_POLICY)
            assert isinstance(mail, EmailMessage)
            self.mails.append(mail)
            self.envelopes.append(envelope)
        return self.answer

    def login(self, _: SMTP, __: Session, ___: Envelope, ____: str, data: LoginPassword) -> AuthResult:
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"right", handled=False)

    def settings(self, **other: Any) -> SmtpServer:  # noqa: ANN401 - of each setting
        return replace(SmtpServer("127.0.0.1", self.port, "none", SENDER), **other)


@contextmanager
def taking_mail(tls: ssl.SSLContext | None = None) -> Iterator[MailServer]:
    """A server on a port of its own; with a certificate it wants STARTTLS, and a name and password."""
    server = MailServer()
    secured: dict[str, Any] = {
        "tls_context": tls,
        "require_starttls": True,
        "auth_required": True,
        "authenticator": server.login,
    }
    with socket.socket() as probe:  # the controller connects to the port that it was given
        probe.bind(("127.0.0.1", 0))
        server.port = probe.getsockname()[1]
    controller = Controller(server, hostname="127.0.0.1", port=server.port, **secured if tls else {})
    controller.start()
    try:
        yield server
    finally:
        controller.stop()
