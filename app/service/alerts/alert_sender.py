"""Sending of alerts to receivers of every kind."""

import asyncio
from datetime import datetime

from app.persistence.repositories.alerts import ClaimedDelivery
from app.service.alerts.chat_messages import CHAT_BODIES
from app.service.alerts.http_sender import DeliveryResult, HttpSender
from app.service.alerts.mail_sender import MailSender, SmtpServer
from app.service.alerts.messages import message_of
from app.service.alerts.webhook_signatures import message, signed_headers
from app.service.egress.connection import Resolver, resolve
from app.service.egress.thread import EGRESS


class AlertSender:
    """Sends alerts by HTTP and mail."""

    def __init__(
        self,
        *,
        allow_private: bool,
        smtp: SmtpServer | None = None,
        public_url: str | None = None,
        resolver: Resolver = resolve,
    ) -> None:
        self._http = HttpSender(allow_private=allow_private, resolver=resolver)
        self._mail = MailSender(smtp)
        self._public_url = public_url

    async def send(self, due: ClaimedDelivery, now: datetime) -> DeliveryResult:
        """Send an alert to a receiver once, in the egress thread."""
        return await asyncio.wrap_future(EGRESS.submit(self._send(due, now)))

    async def _send(self, due: ClaimedDelivery, now: datetime) -> DeliveryResult:
        receiver, alert = due.receiver, due.alert
        if receiver.kind.form.signed:
            body = message(alert)
            headers = signed_headers(receiver.secrets(now), alert.id, int(now.timestamp()), body)
            return await self._http.post(receiver.url or "", headers, body)
        written = message_of(alert)
        link = None if self._public_url is None else self._public_url + written.path
        if receiver.kind.form.by_mail:
            return await self._mail.send(alert, written, receiver.addresses, link)
        return await self._http.post(receiver.url or "", {}, CHAT_BODIES[receiver.kind](written, link))
