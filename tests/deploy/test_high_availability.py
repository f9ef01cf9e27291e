"""The files of high availability: true to each other, the service and the page; `make failover` starts them."""

import configparser
import re
from string import Template
from typing import Any

import pytest
import yaml

from app.persistence import postgresql
from app.persistence.database import Database
from tests import postgres
from tests.conftest import need_postgresql
from tests.packaging.dockerfile import ROOT

FOLDER = ROOT / "deploy" / "high-availability"
PAGE = (ROOT / "docs" / "operations" / "high-availability.md").read_text()
ADDRESSES = {"NODE1": "10.0.0.1", "NODE2": "10.0.0.2", "NODE3": "10.0.0.3"}
REPLICAS = {"REPLICA1": "127.0.0.1:8001", "REPLICA2": "127.0.0.1:8002"}
GIVEN = ADDRESSES | REPLICAS | {"NODE": "node1", "ADDRESS": "10.0.0.1", "NETWORK": "10.0.0.0/24"}


def placeholders(file: str) -> set[str]:
    """What is to be filled in."""
    return set(Template((FOLDER / file).read_text()).get_identifiers())


def filled(file: str) -> str:
    """A file as it is on the first node; what the test does not care about is a word."""
    values = {name: name.lower() for name in placeholders(file)} | GIVEN
    return Template((FOLDER / file).read_text()).substitute(values)


def patroni() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(filled("patroni.yaml"))
    return parsed


def pool() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(filled("pgbouncer.ini"))
    return parsed


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


def test_page_has_every_file_placeholder_and_value() -> None:
    for file in (path.name for path in FOLDER.iterdir()):
        assert all(f"`{name}`" in PAGE for name in (file, *placeholders(file)))
    rows = re.findall(r"(?m)^\| `([a-z.]+)` \| `([\w-]+)` \| ([^|]+) \|", PAGE)
    assert len(rows) >= 8
    for file, setting, value in rows:
        assert _value(file, setting) == value.strip(" `"), (file, setting)


def test_cluster_never_has_two_leaders_nor_acknowledges_a_commit_with_one_copy() -> None:
    shared = patroni()["bootstrap"]["dcs"]
    assert shared["ttl"] >= shared["loop_wait"] + 2 * shared["retry_timeout"]
    assert (shared["synchronous_mode"], shared["synchronous_mode_strict"]) == (True, True)
    assert shared["synchronous_node_count"] >= 1
    assert shared["postgresql"]["parameters"]["synchronous_commit"] in {"on", "remote_apply"}
    assert shared["primary_start_timeout"] == 0
    # Patroni 3.0.2 overwrites another leader's lock with the other protocol of etcd: `make failover` has seen it.
    assert "etcd" in patroni()
    assert "etcd3" not in patroni()
    assert "ETCD_ENABLE_V2=true" in filled("etcd.env")


def test_files_name_the_ports_of_each_other_and_limits_that_fit() -> None:
    node, settings, leader = filled("haproxy.cfg"), pool(), patroni()
    for address in ADDRESSES.values():
        assert f" {address}:{settings['pgbouncer']['listen_port']}" in node
        assert f"{address}:2379" in leader["etcd"]["hosts"]
        assert f"={'http'}://{address}:2380" in filled("etcd.env")
    [checked] = re.findall(r"default-server port (\d+)", node)
    assert leader["restapi"]["connect_address"].endswith(f":{checked}")
    assert "port=5432" in settings["databases"]["ledger"]
    assert leader["postgresql"]["connect_address"].endswith(":5432")
    server = leader["bootstrap"]["dcs"]["postgresql"]["parameters"]
    assert int(settings["pgbouncer"]["default_pool_size"]) < server["max_connections"]
    [seconds] = re.findall(r"timeout server (\d+)s", node)
    assert int(settings["pgbouncer"]["query_wait_timeout"]) < int(seconds)


@pytest.mark.postgresql
def test_pool_marks_the_database_as_used() -> None:
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
