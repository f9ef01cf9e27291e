"""What PostgreSQL's image runs at its first start, done by a real server."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from app.persistence.database import Database
from app.persistence.schema import has_ledger, upgrade
from tests import postgres
from tests.databases import need_postgresql
from tests.deploy.manifests import KUBERNETES
from tests.postgres_binaries import binaries

NAME = "first_started"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The database that the script makes, under another name: the tests' own superuser is called ledger."""
    need_postgresql()
    cluster = postgres.shared()
    secret = tmp_path / "password"
    secret.write_text('it\'s a "password"\n')
    script = (KUBERNETES / "trial" / "create-ledger.sh").read_text()
    for old, new in (
        ("ROLE ledger", f"ROLE {NAME}"),
        ("DATABASE ledger OWNER ledger", f"DATABASE {NAME} OWNER {NAME}"),
        ("DATABASE ledger_scratch OWNER ledger", f"DATABASE {NAME}_scratch OWNER {NAME}"),
    ):
        assert old in script
        script = script.replace(old, new)
    environment = {"PGHOST": "127.0.0.1", "PGPORT": str(cluster.port), "PGPASSWORD": cluster.password}
    path = f"{binaries()}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", script.replace("--username postgres", "--username ledger")],
        env=os.environ | environment | {"PATH": path, "LEDGER_PASSWORD_FILE": str(secret)},
        check=True,
        timeout=60,
    )
    yield URL.create("postgresql", NAME, host="127.0.0.1", port=cluster.port, database=NAME).render_as_string()
    for name in (NAME, f"{NAME}_scratch"):
        cluster.drop_database(name)
    cluster.execute(f"DROP ROLE {NAME}")


@pytest.mark.postgresql
def test_it_makes_an_ordinary_role_that_owns_an_empty_database(url: str, tmp_path: Path) -> None:
    database = Database(url, password_file=str(tmp_path / "password"))
    upgrade(database)
    assert has_ledger(database)
    assert not database.bypasses_rls()
    database.dispose()
