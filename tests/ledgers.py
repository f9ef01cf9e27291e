"""An application in this process, and templates of databases with its rows."""

import atexit
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fastapi import FastAPI

from app.configuration.settings import Settings
from app.ledger.permissions import Role
from app.main import create_app
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import organisations
from app.persistence.schema import is_current, upgrade
from app.service.auth import authentication, sessions
from app.service.auth.request_context import RequestContext
from app.service.keys.api_keys import create_key
from app.service.signing.ed25519 import public_pem
from tests import postgres
from tests.asgi import AppClient
from tests.open_databases import migrate

Keys = dict[tuple[str, str], str]
"""By organisation and role."""

ORGANISATIONS = ("hospital", "clinic")

SAMPLED = {
    "type": "poisson_sampled",
    "sampling_probability": 0.01,
    "event": {"type": "gaussian", "noise_multiplier": 1.1},
}


@dataclass(frozen=True)
class Ledger:
    """An application in this process, with keys of two organisations."""

    http: AppClient
    database: Database
    keys: Keys

    def headers(self, role: str = "admin", organisation: str = "hospital") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[organisation, role]}"}

    def post(self, path: str, body: object, role: str = "admin", **headers: str) -> httpx2.Response:
        sent = self.headers(role) | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, json=body, headers=sent)

    def put(self, path: str, body: object, role: str = "admin", tag: str | None = "*") -> httpx2.Response:
        headers = self.headers(role) | ({} if tag is None else {"If-Match": tag})
        return self.http.put(path, json=body, headers=headers)

    def patch(self, path: str, body: object, role: str = "admin") -> httpx2.Response:
        return self.http.patch(path, json=body, headers=self.headers(role))

    def get(self, path: str, role: str = "viewer", organisation: str = "hospital", **headers: str) -> httpx2.Response:
        sent = self.headers(role, organisation) | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.get(path, headers=sent)

    def set_policy(
        self, policy: object, account: object = None, role: str = "admin", tag: str | None = "*"
    ) -> httpx2.Response:
        path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
        return self.put(path, {"policy": policy, "reason": "The board has met."}, role, tag)

    def set_limit(self, account: object, epsilon: float, role: str = "admin", delta: float = 1e-5) -> httpx2.Response:
        body = {"limit": {"epsilon": epsilon, "delta": delta}, "reason": "The board has met."}
        return self.post(f"/v1/accounts/{account}/limit", body, role, If_Match="*")

    def cookie(self, role: str = "admin", organisation: str = "hospital") -> str:
        """The cookie of somebody who has signed in with the key of a role."""
        now = datetime.now(UTC)
        caller = authentication.authenticate(self.database, self.headers(role, organisation)["Authorization"], now)
        return sessions.open_session(RequestContext(self.database, caller, now), timedelta(hours=1))

    def population(self, name: str = "mimic", **terms: object) -> dict[str, object]:
        body = {"name": name, "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
        return self._made("/v1/populations", body | {"limit": {"epsilon": 3.0, "delta": 1e-5}} | terms)

    def budget(self, name: str = "icu-team", parent: str = "mimic", **terms: object) -> dict[str, object]:
        body = {"name": name, "parent": parent, "limit": {"epsilon": 1.0, "delta": 1e-5}}
        return self._made("/v1/budgets", body | terms)

    def run(self, budget: str = "mimic/icu-team", **terms: object) -> str:
        body = {"name": "model", "budget": budget, "event": SAMPLED}
        return str(self._made("/v1/runs", body | terms)["id"])

    def _made(self, path: str, body: dict[str, object]) -> dict[str, object]:
        reply = self.post(path, body)
        assert reply.status_code == 201, reply.text
        made: dict[str, object] = reply.json()
        return made


def schedule_blocks(ledger: Ledger, account: str, **terms: object) -> httpx2.Response:
    """Set the block schedule of an account; by default one of which no block is due."""
    schedule = {"period": "month", "start": "2999-01-01", "limit": {"epsilon": 1.0, "delta": 1e-5}}
    body = {"schedule": schedule | terms, "reason": "Each month has a budget of its own."}
    return ledger.put(f"/v1/accounts/{account}/block-schedule", body)


Furnish = Callable[[Ledger], object]


@cache
def signing_key() -> tuple[Path, Path]:
    """Files with a private key, and with its public key."""
    folder = Path(tempfile.mkdtemp(prefix="signing-"))
    atexit.register(shutil.rmtree, folder)
    return new_signing_key(folder)


def new_signing_key(folder: Path) -> tuple[Path, Path]:
    """Write another private key and its public key."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / "signing.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_text(public_pem(key.public_key()))
    return private, public


@cache
def _quiet() -> Settings:
    """Settings that most tests share, read from the environment once."""
    return Settings(**_quietly())


def _quietly() -> dict[str, Any]:
    silent = {"rate_limit_anonymous_per_second": 0, "rate_limit_sign_ins_per_minute": 0}
    return silent | {"signing_key_file": str(signing_key()[0]), "checkpoint_seconds": 0}


KNOWN_SECONDS = 3600.0
"""Lifetime of a cached caller: longer than any test, so that none depends on how busy the machine is."""


def quiet_app(settings: Settings, *, background_work: bool = False, caller_seconds: float = KNOWN_SECONDS) -> FastAPI:
    """An application in which nothing happens but what a test asks for; readiness and metrics are of the moment.

    Background work would open connections of its own, and change rows or end caches between two looks at them.
    """
    fresh = {"caller_seconds": caller_seconds, "readiness_seconds": 0.0, "metrics_seconds": 0.0}
    app = create_app(settings, background_work=background_work, **fresh)
    app.state.store.database.clock.moment()  # read now, and not beside the test
    return app


@contextmanager
def open_ledger(
    folder: Path, database_url: str | None = None, *, background_work: bool = False, **more: object
) -> Iterator[Ledger]:
    """An application on a new database with two organisations, each with a key of every role.

    Who sends no key is not held up, unless further settings say so: tests do so often.
    """
    url = database_url or f"sqlite:///{folder / 'ledger.db'}"
    settings = _quiet().model_copy(update={"database_url": url})
    if more:
        settings = Settings(database_url=url, **_quietly() | more)
    app = quiet_app(settings, background_work=background_work)
    database: Database = app.state.store.database
    if not database.exists():
        _, source = furnished("sqlite")
        shutil.copy(source, str(database.engine.url.database))
        known_keys[url] = known_keys[source]
    keys = known_keys.get(url) or _keys_of(database)
    with AppClient(app) as http:
        yield Ledger(http, database, dict(keys))  # a test may add keys of its own: they are in no other copy


_keys: dict[str | None, Keys] = {}
"""By the id of the first organisation: those of templates, which are known in each of their copies."""

known_keys: dict[str, Keys] = {}
"""By template, and by the URL of a copy: the same keys, for which no copy is asked."""


def _keys_of(database: Database) -> Keys:
    """The keys of a copy; where there is no organisation yet, two are founded."""
    with database.read(ALL_TENANTS) as tx:
        current = is_current(tx)
    if not current:
        upgrade(database)
    with database.read(ALL_TENANTS) as tx:
        first = organisations.find_organisation(tx, ORGANISATIONS[0])
    if first is not None:
        return _keys[first]
    now = datetime.now(UTC)
    ids = [authentication.create_organisation(database, organisation, now) for organisation in ORGANISATIONS]
    whose = product(ORGANISATIONS, Role)
    _keys[ids[0]] = {(name, str(role)): create_key(database, name, role, now).key for name, role in whose}
    return _keys[ids[0]]


def nothing(_: Ledger) -> None:
    """Two organisations with their keys, and nothing else."""


@cache
def furnished(kind: str, furnish: Furnish = nothing) -> tuple[Any, str]:
    """A database to be copied, made once: to copy it takes no time, to make it takes longer than most tests.

    Returns:
        What `furnish` said, which fills the ledger, and the file, or the name of the database.
    """
    folder = Path(tempfile.mkdtemp(prefix="furnished-"))
    atexit.register(shutil.rmtree, folder)
    source = str(folder / "ledger.db") if kind == "sqlite" else f"{postgres.TEMPLATE}_{folder.name}"
    url = f"sqlite:///{source}" if kind == "sqlite" else postgres.shared().create_database(source, postgres.TEMPLATE)
    if kind == "sqlite":
        migrate(url)
    with open_ledger(folder, url) as ledger:
        known_keys[source] = dict(ledger.keys)
        said = furnish(ledger)
    # Of a look that began as the service stopped: it keeps copies off, or rows out of the file that is copied.
    if kind == "postgresql":
        postgres.shared().terminate_backends(source)
    else:
        with closing(sqlite3.connect(source, timeout=60)) as connection:
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "someone still reads"
    return said, source
