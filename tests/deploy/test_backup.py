"""What the weekly backup of the Kubernetes component does, by its own script and PostgreSQL's programs."""

import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.persistence.database import Database
from app.service.backups import compare_backup
from tests import postgres
from tests.databases import need_postgresql
from tests.deploy.manifests import KUBERNETES
from tests.ledgers import open_ledger
from tests.postgres_binaries import binaries

SCRIPT = KUBERNETES / "backup" / "dump.sh"


def _back_up(live: str, scratch: str, folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the script as its container does: URLs without passwords, and the password in a file."""
    url, password = make_url(live), folder.parent / "password"
    password.write_text(f"{url.password}\n")
    environment = {
        "PATH": f"{binaries()}{os.pathsep}{os.environ['PATH']}",
        "EPSILON_LEDGER_DATABASE_URL": url._replace(password=None).render_as_string(),
        "EPSILON_LEDGER_DATABASE_PASSWORD_FILE": str(password),
        "SCRATCH_DATABASE_URL": make_url(scratch)._replace(password=None).render_as_string(),
        "BACKUP_FOLDER": str(folder),
        **more,
    }
    return subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.postgresql
def test_a_dump_is_kept_and_restored_again_and_again(tmp_path: Path) -> None:
    need_postgresql()
    folder = tmp_path / "backups"
    folder.mkdir()
    for day in ("2026-01-01", "2026-01-08", "2026-01-15"):
        (folder / f"ledger-{day}.dump").write_text("older")
    with postgres.database() as live, postgres.database(postgres.EMPTY) as scratch:
        with open_ledger(tmp_path, live) as ledger:
            ledger.population()
            ledger.budget()
            for steps in (1, 2):
                run = ledger.run(name=f"model-{steps}", event={"type": "gaussian", "noise_multiplier": 90.0})
                assert ledger.post(f"/v1/runs/{run}/steps", {"count": steps}, "trainer").status_code == 200
                done = _back_up(live, scratch, folder, BACKUPS_KEPT="3")
                assert done.returncode == 0, done.stderr
            databases = Database(scratch), Database(live)
            report = compare_backup(*databases)
            for database in databases:
                database.dispose()
        assert report.problems == ()
        assert report.decisions_since == 0
        assert report.rows["decisions"] == (2, 2)
    kept = sorted(path.name for path in folder.iterdir())
    assert kept[:2] == ["ledger-2026-01-08.dump", "ledger-2026-01-15.dump"]
    assert len(kept) == 3


@pytest.mark.postgresql
def test_a_database_that_cannot_be_dumped_leaves_the_older_dumps(tmp_path: Path) -> None:
    need_postgresql()
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "ledger-2026-01-01.dump").write_text("older")
    with postgres.database(postgres.EMPTY) as scratch:
        done = _back_up(scratch.replace("/ledger_", "/missing_"), scratch, folder, BACKUPS_KEPT="1")
    assert done.returncode != 0
    assert [path.name for path in folder.iterdir() if path.name != "new.dump"] == ["ledger-2026-01-01.dump"]
