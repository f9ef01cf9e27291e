"""A throw-away ledger with a sample organisation: what `epsilon-ledger serve --sample` serves."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.configuration.settings import PREFIX, Settings
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import organisations
from app.persistence.schema import upgrade
from app.sample.hospital import ORGANISATION, fill
from app.sample.in_process import in_process
from app.service.auth.request_context import cli_context
from app.service.auth.sign_in_links import SignInLink, create_link

_KEPT = frozenset(f"{PREFIX}{name}" for name in ("LOG_FORMAT", "LOG_LEVEL", "LOG_REQUESTS", "PUBLIC_URL"))
"""Settings that also apply to the sample; others may name a database or an identity provider that is not its own."""


@dataclass(frozen=True, slots=True)
class SampleLedger:
    """The ledger that was filled, the admin's sign-in link, keys by role, and the id of the live run."""

    database_url: str
    link: SignInLink
    keys: dict[Role, str]
    live_run: str


@contextmanager
def sample_ledger() -> Iterator[SampleLedger]:
    """Fill a SQLite file in a temporary folder, name it in the environment for the block, and delete it."""
    before = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    with TemporaryDirectory(prefix="epsilon-ledger-sample-") as name:
        folder = Path(name)
        try:
            for setting in before.keys() - _KEPT:
                del os.environ[setting]
            os.environ[f"{PREFIX}DATABASE_URL"] = url = f"sqlite:///{folder / 'epsilon-ledger.db'}"
            os.environ[f"{PREFIX}SIGNING_KEY_FILE"] = str(_signing_key(folder))
            yield _fill(url)
        finally:
            for setting in [each for each in os.environ if each.startswith(PREFIX)]:
                del os.environ[setting]
            os.environ.update(before)


def _fill(url: str) -> SampleLedger:
    database = Database(url)
    try:
        upgrade(database)
        with in_process(Settings(rate_limit_per_second=0), datetime.now(UTC)) as api:
            hospital = fill(api, api.clock.at)
        return SampleLedger(url, _sign_in_link(database, hospital.keys[Role.ADMIN]), hospital.keys, hospital.live_run)
    finally:
        database.dispose()


def _sign_in_link(database: Database, admin_key: str) -> SignInLink:
    with database.write(ALL_TENANTS) as tx:
        organisation_id = organisations.find_organisation(tx, ORGANISATION)
        assert organisation_id is not None, "it was just created"
        context = cli_context(database, organisation_id, database.clock.now())
        return create_link(tx, context, admin_key.partition(".")[0])


def _signing_key(folder: Path) -> Path:
    file = folder / "signing.pem"
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.touch(mode=0o600)
    file.write_bytes(key)
    return file
