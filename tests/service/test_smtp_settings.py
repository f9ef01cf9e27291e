"""Settings of the SMTP server: whole, or refused with the name of what is wrong."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.service.alerts.mail_sender import SmtpServer
from app.settings import Settings

HOST, SENDER = "smtp.hospital.example", "ledger@hospital.example"


def test_no_host_means_no_mail() -> None:
    assert Settings().smtp_server is None


@pytest.mark.parametrize(("tls", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
def test_port_is_that_of_the_encryption(tls: Any, port: int) -> None:  # noqa: ANN401 - one of three
    given = Settings(smtp_host=HOST, smtp_from=SENDER, smtp_tls=tls)
    assert given.smtp_server == SmtpServer(HOST, port, tls, SENDER)
    other = Settings(smtp_host=HOST, smtp_from=SENDER, smtp_tls=tls, smtp_port=2525).smtp_server
    assert other is not None
    assert other.port == 2525


def test_password_is_read_when_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    server = Settings(smtp_host=HOST, smtp_from=SENDER, smtp_user="u", smtp_password_file=str(file)).smtp_server
    assert server is not None
    assert server.password() == "first"
    file.write_text("second")
    assert server.password() == "second"


WHOLE = {"smtp_host": HOST, "smtp_from": SENDER}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"smtp_host": HOST}, "EPSILON_LEDGER_SMTP_FROM is not"),
        ({"smtp_from": SENDER}, "EPSILON_LEDGER_SMTP_FROM is set, but EPSILON_LEDGER_SMTP_HOST is not"),
        ({"smtp_port": 25}, "EPSILON_LEDGER_SMTP_PORT is set"),
        (WHOLE | {"smtp_from": "Ledger <a@b.example>"}, "pattern"),
        (WHOLE | {"smtp_from": "a@b.example\nBcc: c@d.example"}, "pattern"),
        (WHOLE | {"smtp_port": 0}, "greater than or equal to 1"),
        (WHOLE | {"smtp_tls": "ssl"}, "starttls"),
        (WHOLE | {"smtp_user": "u"}, "EPSILON_LEDGER_SMTP_PASSWORD_FILE, or neither"),
        (WHOLE | {"smtp_password_file": __file__}, "EPSILON_LEDGER_SMTP_USER and"),
        (WHOLE | {"smtp_user": "u", "smtp_password_file": "/nowhere"}, "PASSWORD_FILE cannot be read"),
        (WHOLE | {"smtp_user": "u", "smtp_password_file": "/dev/null"}, "holds no password"),
        (WHOLE | {"smtp_user": "u", "smtp_password_file": __file__, "smtp_tls": "none"}, "needs encryption"),
    ],
)
def test_incomplete_server_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings(**given)
