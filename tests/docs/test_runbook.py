"""The operators' pages, done: every block of commands is run on real servers, or listed with the reason why not."""

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta

import httpx2
import pytest

from app.configuration.settings import PREFIX, Settings
from app.ledger.ids import number_of
from tests import postgres
from tests.certificates import DAY, Authority
from tests.docs.markdown import ROOT, Block
from tests.docs.operator_shell import DATABASE, OperatorShell, made
from tests.docs.test_operator_pages import BLOCKS, NOT_RUN
from tests.docs.test_reader_pages import READER_SCENES, Scene, answers, play


def _typed(shell: OperatorShell, text: str) -> str:
    """What something wrote that stands on no page."""
    return shell.type(Block("test", "", 0, text))


def backups_of_sqlite(shell: OperatorShell, copy: Block, restore: Block) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("needs the sqlite3 shell; tests/reliability/test_backups.py makes both backups without it")
    _typed(shell, "export EPSILON_LEDGER_DATABASE_URL=sqlite:///epsilon-ledger.db; epsilon-ledger org create hospital")
    shell.type(copy)
    _typed(shell, "epsilon-ledger org create clinic")
    shell.type(restore)
    left = _typed(shell, "sqlite3 epsilon-ledger.db 'SELECT name FROM organisations'")
    assert left == _typed(shell, "sqlite3 smaller.db 'SELECT name FROM organisations'") == "hospital\n"
    assert (shell.folder / "old" / "epsilon-ledger.db").exists()


def backups_of_postgresql(shell: OperatorShell, dump: Block, check: Block) -> None:
    shell.run("dumped", 3)
    shell.type(dump)
    assert "every curve agrees byte for byte" in shell.type(check)


def verified_backups(shell: OperatorShell, file: Block, dump: Block) -> None:
    shell.run("backed up", 3)
    answer = shell.type(dump)
    assert "every curve and every chain agrees. The ledger has 0 more decisions." in answer
    assert "epsilon_ledger_backup_discrepancies 0.0" in (shell.folder / "backup.prom").read_text()
    if shutil.which("sqlite3") is None:
        pytest.skip("needs the sqlite3 shell; tests/service/test_backup_verification.py verifies a file without it")
    (shell.folder / "verified").mkdir()
    export = "cd verified; export EPSILON_LEDGER_DATABASE_URL=sqlite:///epsilon-ledger.db"
    alone = Block(file.page, file.section, file.line, f"{export}; epsilon-ledger org create hospital\n{file.text}")
    assert "agrees" in shell.type(alone)
    shell.ran.append(file)


def after_a_restore(shell: OperatorShell, report: Block) -> None:
    run = shell.run("restored", 3)
    assert '"next_step":3' in shell.type(report, run=run)
    with shell.admin as http:
        assert made(http.get(f"/v1/runs/{run}"))["next_step"] == 8


def upgrades(shell: OperatorShell, check: Block, migrate: Block) -> None:
    [(revision,)] = shell.execute("DELETE FROM alembic_version RETURNING version_num")
    asked = shell.type(check, whatever_happens=True)
    assert "`epsilon-ledger migrate`" in asked
    shell.execute(f"INSERT INTO alembic_version VALUES ('{revision}')")  # noqa: S608 - the row deleted above
    assert "newest schema" in shell.type(check)
    assert shell.type(migrate).count("The database has the newest schema.") == 2


def rotation(shell: OperatorShell, keys: Block, old: Block, new: Block, password: Block, sessions: Block) -> None:
    with shell.admin as http:
        key = made(http.post("/v1/api-keys", json={"name": "old", "role": "trainer"}))["id"]
    assert f"{key} was revoked" in shell.type(keys, key=key)

    before = (shell.folder / "signing.pub").read_text()
    shell.type(old)
    assert (shell.folder / "signing-2026.pub").read_text() == before != (shell.folder / "signing.pub").read_text()
    verified = shell.type(new)
    assert ("every curve agrees" in verified, verified.count("Compared with ")) == (True, 2)

    first = (shell.folder / "database-password").read_text()
    try:
        assert '"ok"' in shell.type(password)
        assert (shell.folder / "database-password").read_text() != first
        shell.type(sessions)
        ready = [httpx2.get(f"{shell.server.url}/readyz", trust_env=False).status_code for _ in range(3)]
        assert ready[-1] == 200
        assert shell.run("after the password was changed", 1)
    finally:
        shell.cluster.execute(f"ALTER ROLE {postgres.SERVICE} PASSWORD '{shell.cluster.password}'")
        (shell.folder / "database-password").write_text(shell.cluster.password)


def verify_fails(shell: OperatorShell, *steps: Block) -> None:
    look, stop, evidence, compare, checkpoint, who, mend, again, approve = steps
    run = shell.run("changed by hand", 4)
    _typed(shell, "epsilon-ledger checkpoint --org hospital > checkpoint.json")
    _typed(shell, "PGOPTIONS='-c epsilon_ledger.all_tenants=on' pg_dump --enable-row-security -Fc -f backup.dump")
    shell.execute(f"UPDATE decisions SET epsilon = epsilon / 2 WHERE run_id = {number_of(run)}")  # noqa: S608 - a test's own id

    answer = shell.type(look)
    assert run in answer
    assert json.loads((shell.folder / "found.json").read_text())["unproven"] == [run]
    assert "Writes to 1 accounts are stopped." in shell.type(stop)
    with shell.admin as http:
        stopped = http.post(f"/v1/runs/{run}/steps", json={})
        assert (stopped.status_code, stopped.json()["code"]) == (409, "account_quarantined")
    assert shell.run("of somebody else", 1)
    assert run in shell.type(evidence)
    compared = shell.type(compare)
    assert "every curve agrees byte for byte" in compared
    [changed] = [json.loads(line) for line in compared.splitlines() if line.startswith("{")]
    assert run in json.dumps(changed)
    assert run in shell.type(checkpoint)
    assert '"items"' in shell.type(who)
    shell.type(mend, run=run)
    answer = shell.type(again, run=run)
    assert "every curve agrees byte for byte" in answer
    assert f"epsilon-ledger quarantine lift {run} --org org_" in answer
    [proposal] = re.findall(r"prp_\w+", answer)
    with shell.admin as http:
        assert http.post(f"/v1/runs/{run}/steps", json={}).status_code == 409
    assert '"approved"' in shell.type(approve, prp=proposal)
    with shell.admin as http:
        made(http.post(f"/v1/runs/{run}/steps", json={}))


def overdrawn(shell: OperatorShell, see: Block, statement: Block) -> None:
    run = shell.run("too much", 0, limit=0.05)
    with shell.admin as http:
        made(http.post(f"/v1/runs/{run}/steps", json={"count": 500, "mode": "report"}))
    answer = shell.type(see, run=run)
    assert '"reported"' in answer
    assert '"overdrawn"' in answer
    assert "guarantee" in shell.type(statement, run=run)


def database_down(shell: OperatorShell, see: Block) -> None:
    shell.cluster.execute(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS false")
    shell.cluster.terminate_backends(DATABASE)
    try:
        answer = shell.type(see, whatever_happens=True)
    finally:
        shell.cluster.execute(f"ALTER DATABASE {DATABASE} ALLOW_CONNECTIONS true")
    assert re.findall(r"HTTP/1\.1 (\d+)", answer) == ["200", "503"]
    assert "accepting connections" in answer  # of the server: it is this database that takes none


def wrong_clock(shell: OperatorShell, compare: Block) -> None:
    database, machine = (datetime.fromisoformat(line) for line in shell.type(compare).split("\n")[:2])
    assert abs(database - machine) < timedelta(seconds=5)


def connections_run_out(shell: OperatorShell, see: Block, end: Block, limits: Block) -> None:
    with closing(shell.cluster.connect(DATABASE)) as person, ThreadPoolExecutor(1) as pool:
        person.execute("BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        with shell.admin as http:
            waits = pool.submit(http.get, "/v1/runs")
            time.sleep(1)
            pid = person.info.backend_pid
            assert f"{{{pid}}}" in shell.type(see)
            assert shell.type(replace(end, text=f"PID={pid}\n{end.text}")).count("t") > 0
            assert waits.result().status_code == 200
    assert "max_connections" in shell.type(limits)


def certificate_expires(shell: OperatorShell, see: Block, reload: Block) -> None:
    cluster = postgres.Cluster.create()
    try:
        issued = Authority.create(shell.folder).issue(cluster.data, 3 * DAY)
        cluster.own(issued.certificate, issued.key)
        cluster.execute("ALTER SYSTEM SET ssl = on")
        cluster.execute(f"CREATE DATABASE {DATABASE}")
        cluster.execute("SELECT pg_reload_conf()")
        asked = see.text.replace(":5432", f":{cluster.port}")
        expires = f"{issued.expires_at:%b} {issued.expires_at.day:2} {issued.expires_at:%H:%M:%S %Y}"
        assert expires in shell.type(replace(see, text=asked))
        there = f"export PGPORT={cluster.port}\n"
        assert "ssl_cert_file" in shell.type(replace(reload, text=there + reload.text))
    finally:
        cluster.remove()
    shell.ran += [see, reload]


def from_sqlite(shell: OperatorShell, move: Block) -> None:
    created = "EPSILON_LEDGER_DATABASE_URL=sqlite:///epsilon-ledger.db epsilon-ledger org create clinic"
    text = re.sub(r"(UTF8 |db/)ledger\b", r"\1ledger_moved", move.text)
    moved = Block(move.page, move.section, move.line, f"mkdir moved; cd moved; {created}\n{text}")
    assert "the copy verified: every curve agrees" in shell.type(moved)
    shell.ran.append(move)


def openid(shell: OperatorShell, *providers: Block) -> None:
    for provider in providers:
        shell.begin()
        shell.type(provider)
        found = shell.exported()
        given = {name[len(PREFIX) :].lower(): found[name] for name in found if name.startswith(f"{PREFIX}OIDC")}
        assert Settings.model_validate(given).openid is not None
    shell.ran.extend(providers)


def residency(shell: OperatorShell, region: Block) -> None:
    with postgres.database(postgres.EMPTY) as url:
        text = region.text.replace("postgresql://ledger@db.eu.internal/ledger", url)
        assert "org_" in shell.type(replace(region, text=text))
    shell.ran.append(region)


def trial_secrets(shell: OperatorShell, secrets: Block) -> None:
    (shell.folder / "deploy").mkdir()
    (shell.folder / "deploy" / "secrets.sh").symlink_to(ROOT / "deploy" / "secrets.sh")
    shell.type(secrets)
    assert (shell.folder / "deploy" / "kubernetes" / "trial" / "secrets" / "signing.pem").exists()


def single_use_key(shell: OperatorShell, issue: Block) -> None:
    assert json.loads(shell.type(issue))["role"] == "trainer"


def keys_page(shell: OperatorShell, line: Block, issue: Block, rotate: Block, revoke: Block) -> None:
    with shell.admin as http:
        key = made(http.post("/v1/api-keys", json={"role": "trainer"}))["id"]
        assert f"{key} was revoked" in shell.type(line, key=key)
        issued = json.loads(shell.type(issue))
        successor = json.loads(shell.type(rotate, key=issued["id"]))
        shell.type(revoke, key=issued["id"])
        assert made(http.get(f"/v1/api-keys/{successor['id']}"))["revoked_at"]


def limits_page(shell: OperatorShell, change: Block, approve: Block) -> None:
    with shell.admin as http:
        budget = made(http.get("/v1/budgets"))["items"][0]["id"]
        assert '"open"' in shell.type(change, bud=budget)
        [proposal] = made(http.get("/v1/proposals?status=open"))["items"]
        shell.type(approve, prp=proposal["id"])
        assert made(http.get(f"/v1/accounts/{budget}/limit"))["limit"]["epsilon"] == 4.0


OPERATORS: dict[tuple[str, str], Scene] = {
    ("operations/openid-connect", "Accept access tokens"): openid,
    ("operations/databases", "Residency: a service for each region"): residency,
    ("operations/maintenance", "Backups: SQLite"): backups_of_sqlite,
    ("operations/maintenance", "Backups: PostgreSQL"): backups_of_postgresql,
    ("operations/maintenance", "Verify backups"): verified_backups,
    ("operations/maintenance", "After a restore"): after_a_restore,
    ("operations/maintenance", "Upgrades"): upgrades,
    ("operations/maintenance", "Rotation"): rotation,
    ("operations/runbook", "When verify fails"): verify_fails,
    ("operations/runbook", "When a budget was overdrawn"): overdrawn,
    ("operations/runbook", "When the database is down"): database_down,
    ("operations/runbook", "When the disk is full"): answers(
        "Filesystem", "failed_count", "decisions", "every curve agrees"
    ),
    ("operations/runbook", "When a clock is wrong"): wrong_clock,
    ("operations/runbook", "When connections run out"): connections_run_out,
    ("operations/certificates", "When a certificate expires"): certificate_expires,
    ("operations/runbook", "When it is too slow"): answers("wait_event_type", "max_connections"),
    ("operations/deployment", "From SQLite to PostgreSQL"): from_sqlite,
    ("operations/deployment", "On Kubernetes"): trial_secrets,
    ("how-to/manage-keys", "Issue, rotate, revoke"): keys_page,
    ("how-to/manage-keys", "Keys for one run"): single_use_key,
    ("how-to/change-limits", "Change a limit"): limits_page,
}
"""By page and section: who types its blocks, all but those that are not run."""
SCENES = OPERATORS | READER_SCENES


def _of(scene: tuple[str, str]) -> list[Block]:
    return [block for block in BLOCKS if (block.page, block.section) == scene and block.first_line not in NOT_RUN]


@pytest.mark.postgresql
@pytest.mark.parametrize("scene", OPERATORS, ids=" ".join)
def test_commands_of_a_section_have_the_results_it_states(shell: OperatorShell, scene: tuple[str, str]) -> None:
    play(shell, OPERATORS[scene], _of(scene))


def test_block_is_run_or_listed_with_its_reason() -> None:
    for block in BLOCKS:
        scene = (block.page, block.section)
        assert (block.first_line in NOT_RUN) != (scene in SCENES and block in _of(scene)), block
    assert set(NOT_RUN) <= {block.first_line for block in BLOCKS}
