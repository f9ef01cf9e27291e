"""Mails of alerts, by an SMTP server of the operator."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from app.ledger.accounts.alerts import Alert
from app.service.alerts.http_sender import MOST_ERROR_CHARACTERS, DeliveryResult, trusted_certificates
from app.service.alerts.messages import Message, plain
from app.service.egress.connection import OVERHEAD_BYTES, PIECE, Connection, connect

if TYPE_CHECKING:
    import aiosmtplib

TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a whole attempt."""

SENDER_NAME: Final = "Epsilon Ledger"

NOT_CONFIGURED: Final = "The service has no SMTP server: its operator sets EPSILON_LEDGER_SMTP_HOST and _FROM."

SmtpTls = Literal["starttls", "tls", "none"]

DEFAULT_PORTS: Final[dict[SmtpTls, int]] = {"starttls": 587, "tls": 465, "none": 25}

_PERMANENT: Final = 500
_POLICY: Final = "5.7."
"""Begins the enhanced code of a refusal that is due to the service, such as a missing permission to relay."""


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """The server that sends mails.

    Args:
        sender: address of the sender.
        user: name to sign in with; empty: without.
        password_file: file with the password, read at each connection.
    """

    host: str
    port: int
    tls: SmtpTls
    sender: str
    user: str = ""
    password_file: str = ""

    def password(self) -> str:
        """Read the password.

        Raises:
            OSError: the file cannot be read.
        """
        return Path(self.password_file).read_text(encoding="utf-8").strip() if self.password_file else ""


class MailSender:
    """SMTP client, which runs in the egress thread; each mail has its own connection."""

    def __init__(self, server: SmtpServer | None) -> None:
        self._server = server

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return trusted_certificates()

    async def send(
        self, alert: Alert, message: Message, addresses: tuple[str, ...], link: str | None
    ) -> DeliveryResult:
        """Send an alert to all addresses once; one that the server takes acknowledges it."""
        import aiosmtplib  # noqa: PLC0415 - 0.05 s, and many services send no mail

        if self._server is None:
            return DeliveryResult(None, NOT_CONFIGURED)
        mail = mail_of(alert, message, addresses, link, self._server.sender)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                refused = await self._sent(self._server, mail, addresses)
        except aiosmtplib.SMTPRecipientsRefused as error:
            return _all_refused(error.recipients)
        except (TimeoutError, aiosmtplib.SMTPTimeoutError):
            return DeliveryResult(None, f"The SMTP server did not answer within {TIMEOUT_SECONDS:g} seconds.")
        except aiosmtplib.SMTPResponseException as error:
            return DeliveryResult(error.code, _said("The SMTP server answered", error.code, error.message))
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            return DeliveryResult(None, plain(str(error) or type(error).__name__, MOST_ERROR_CHARACTERS))
        note = f"The SMTP server refused {', '.join(refused)}."[:MOST_ERROR_CHARACTERS] if refused else None
        return DeliveryResult(250, None, note=note)

    async def _sent(self, server: SmtpServer, mail: EmailMessage, addresses: tuple[str, ...]) -> list[str]:
        """Send a mail; return the refused addresses."""
        import aiosmtplib  # noqa: PLC0415 - as above

        password = await asyncio.to_thread(server.password) if server.user else None
        with closing(await connect(server.host, server.port, OVERHEAD_BYTES)) as connection:
            async with relayed(connection) as relay:
                client = aiosmtplib.SMTP(
                    hostname=server.host,
                    sock=relay,
                    use_tls=server.tls == "tls",
                    start_tls=server.tls == "starttls",
                    tls_context=None if server.tls == "none" else self._trust,
                    username=server.user or None,
                    password=password,
                    timeout=TIMEOUT_SECONDS,
                )
                async with client:
                    refused, _ = await client.sendmail(server.sender, list(addresses), mail.as_bytes())
        return sorted(refused)


def mail_of(alert: Alert, message: Message, addresses: tuple[str, ...], link: str | None, sender: str) -> EmailMessage:
    """Build the mail of an alert.

    Its id is the alert's, so that a repeated mail is shown once; mails about one proposal are one thread.
    """
    domain = sender.rpartition("@")[2]
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address(SENDER_NAME, addr_spec=sender)
    mail["To"] = [Address(addr_spec=each) for each in addresses]
    mail["Subject"] = _unencoded(message.subject)
    mail["Date"] = alert.created_at
    mail["Message-ID"] = f"<{alert.id}@{domain}>"
    if "proposal" in alert.payload:
        mail["References"] = f"<{alert.payload['proposal']}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    lines = [message.text, "", *(f"{name}: {value}" for name, value in message.facts), "", message.action]
    mail.set_content("\n".join([*lines, *([] if link is None else ["", link])]) + "\n")
    return mail


def _unencoded(text: str) -> str:
    """Keep a text from being an encoded word (RFC 2047), which a header decodes: into line breaks, for example."""
    return text.replace("=?", "= ?")


def _all_refused(recipients: "list[aiosmtplib.SMTPRecipientRefused]") -> DeliveryResult:
    """Build the result when no address is taken: for good, if none of them exists."""
    first = recipients[0]
    error = _said("The SMTP server refused every address, the first with", first.code, first.message)
    gone = all(each.code >= _PERMANENT and not each.message.startswith(_POLICY) for each in recipients)
    return DeliveryResult(first.code, error, error if gone else None)


def _said(words: str, code: int, text: str) -> str:
    return plain(f"{words} {code} {text}", MOST_ERROR_CHARACTERS)


@asynccontextmanager
async def relayed(connection: Connection) -> AsyncIterator[socket.socket]:
    """Yield a socket whose other end is a connection; the user closes the socket.

    Raises:
        OSError: the connection broke, or exceeded a bound, instead of what followed from it in the block.
    """
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)  # noqa: FBT003 - as the standard library names it
    with closing(ours):
        pulling = asyncio.create_task(_pull(connection, ours))
        pushing = asyncio.create_task(_push(connection, ours))
        try:
            yield theirs
        except Exception as error:
            broken = pulling.exception() if pulling.done() and not pulling.cancelled() else None
            if broken is not None:
                raise broken from error
            raise
        finally:
            for task in (pulling, pushing):
                task.cancel()
            await asyncio.gather(pulling, pushing, return_exceptions=True)


async def _pull(connection: Connection, end: socket.socket) -> None:
    """Pass on what the server sends."""
    try:
        while piece := await connection.receive():
            await asyncio.get_running_loop().sock_sendall(end, piece)
    finally:
        with suppress(OSError):  # the user has closed the other end
            end.shutdown(socket.SHUT_WR)


async def _push(connection: Connection, end: socket.socket) -> None:
    """Pass on what the user sends."""
    while piece := await asyncio.get_running_loop().sock_recv(end, PIECE):
        await connection.send(piece)
