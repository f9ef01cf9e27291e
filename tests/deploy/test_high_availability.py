"""The files of high availability: valid where a program can tell, true to each other, the service and the page."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from app.persistence import postgresql
from app.persistence.database import Database
from tests import postgres
from tests.conftest import need_postgresql
from tests.packaging.dockerfile import ROOT
from tests.postgres_binaries import binaries

FOLDER = ROOT / "deploy" / "high-availability"
PAGE = (ROOT / "docs" / "operations" / "high-availability.md").read_text()
FILES = sorted(path.name for path in FOLDER.iterdir())
ADDRESSES = {"NODE1": "10.0.0.1", "NODE2": "10.0.0.2", "NODE3": "10.0.0.3"}
GIVEN = ADDRESSES | {
    "NODE": "node1",
    "ADDRESS": "10.0.0.1",
    "NETWORK": "10.0.0.0/24",
    "REPLICA1": "127.0.0.1:8001",
    "REPLICA2": "127.0.0.1:8002",
}


def placeholders(file: str) -> set[str]:
    """What is to be filled in."""
    return set(Template((FOLDER / file).read_text()).get_identifiers())


def filled(file: str, **given: str) -> str:
    """A file as it is on the first node; what the test does not care about is a word."""
    values = {name: name.lower() for name in placeholders(file)} | GIVEN | given
    return Template((FOLDER / file).read_text()).substitute(values)


def patroni(**given: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(filled("patroni.yaml", **given))
    return parsed


def pool() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(filled("pgbouncer.ini"))
    return parsed


def needed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"NOT CHECKED: {program} is not installed here; apt-get install {program}")
    return found


def test_the_page_names_every_file_and_every_placeholder() -> None:
    for file in FILES:
        assert f"`{file}`" in PAGE
        for name in placeholders(file):
            assert f"`{name}`" in PAGE, name


def _value(file: str, setting: str) -> str:
    """The value of a setting, as the page writes it."""
    if file == "patroni.yaml":
        found: Any = patroni()
        of_server = found["bootstrap"]["dcs"]["postgresql"]["parameters"]
        return str(of_server.get(setting, found["bootstrap"]["dcs"].get(setting))).lower()
    if file == "pgbouncer.ini":
        return pool()["pgbouncer"][setting]
    [of_leader] = re.findall(r"default-server port .*", filled(file))
    [value] = re.findall(rf" {setting} (\S+)", of_leader)
    return str(value)


def test_the_page_says_the_values_that_the_files_have() -> None:
    rows = re.findall(r"(?m)^\| `([a-z.]+)` \| `([\w-]+)` \| ([^|]+) \|", PAGE)
    assert len(rows) >= 8
    for file, setting, value in rows:
        assert _value(file, setting) == value.strip(" `"), (file, setting)


def test_an_old_leader_steps_down_before_another_one_may_follow() -> None:
    shared = patroni()["bootstrap"]["dcs"]
    assert shared["ttl"] >= shared["loop_wait"] + 2 * shared["retry_timeout"]


def test_no_commit_is_acknowledged_with_one_copy() -> None:
    shared = patroni()["bootstrap"]["dcs"]
    assert (shared["synchronous_mode"], shared["synchronous_mode_strict"]) == (True, True)
    assert shared["synchronous_node_count"] >= 1
    assert shared["postgresql"]["parameters"]["synchronous_commit"] in {"on", "remote_apply"}
    assert shared["primary_start_timeout"] == 0


def test_the_lock_of_the_leader_is_compared_before_it_is_taken() -> None:
    """Patroni 3.0.2 overwrites another leader's lock with the other protocol of etcd: `make failover` has seen it."""
    assert "etcd" in patroni()
    assert "etcd3" not in patroni()
    assert "ETCD_ENABLE_V2=true" in filled("etcd.env")


def test_everybody_knows_the_ports_of_the_others() -> None:
    node, settings = filled("haproxy.cfg"), pool()
    for address in ADDRESSES.values():
        assert f" {address}:{settings['pgbouncer']['listen_port']}" in node
        assert f"{address}:2379" in patroni()["etcd"]["hosts"]
        assert f"={'http'}://{address}:2380" in filled("etcd.env")
    [checked] = re.findall(r"default-server port (\d+)", node)
    assert patroni()["restapi"]["connect_address"].endswith(f":{checked}")
    assert "port=5432" in settings["databases"]["ledger"]
    assert patroni()["postgresql"]["connect_address"].endswith(":5432")


def test_the_pool_has_room_at_the_server() -> None:
    server = patroni()["bootstrap"]["dcs"]["postgresql"]["parameters"]
    assert int(pool()["pgbouncer"]["default_pool_size"]) < server["max_connections"]


def test_clients_of_the_pool_get_an_answer_before_the_proxy_gives_up() -> None:
    [seconds] = re.findall(r"timeout server (\d+)s", filled("haproxy.cfg"))
    assert int(pool()["pgbouncer"]["query_wait_timeout"]) < int(seconds)


@pytest.mark.postgresql
def test_the_pool_marks_the_database_as_used() -> None:
    """Its connect_query takes the lock that `copy` looks for: in transaction mode no client can keep it."""
    need_postgresql()
    cluster = postgres.shared()
    [query] = re.findall(r"connect_query='([^']+)'", pool()["databases"]["ledger"])
    url = cluster.create_database("marked", postgres.TEMPLATE)
    other = Database(url, pooled=True)
    assert not other.is_used_by_others()
    with cluster.connect("marked") as session:
        session.execute(query.encode())
        assert other.is_used_by_others()
    other.dispose()
    cluster.drop_database("marked")
    assert str(vars(postgresql)["_USE_LOCK"]) in query


def test_haproxy_takes_its_file(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(filled("haproxy.cfg"))
    done = subprocess.run([needed("haproxy"), "-c", "-f", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_patroni_takes_its_file(tmp_path: Path) -> None:
    parsed = patroni(DATA=str(tmp_path / "data"), POSTGRESQL_BIN=str(binaries()))
    # It looks whether its addresses are this machine's, and whether etcd answers.
    parsed["etcd"]["hosts"] = "127.0.0.1:2379"
    parsed["restapi"]["listen"], parsed["postgresql"]["listen"] = "127.0.0.1:8008", "127.0.0.1:5432"
    file = tmp_path / "patroni.yaml"
    file.write_text(yaml.safe_dump(parsed))
    done = subprocess.run(
        [needed("patroni"), "--validate-config", file], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    # This machine has no etcd, its ports may be taken, and Patroni 3.0.2 asks for a second pg_hba, not needed.
    expected = re.compile(r"etcd\.hosts|already in use|bootstrap\.pg_hba|^\s*$")
    assert [line for line in done.stderr.splitlines() if not expected.search(line)] == []
