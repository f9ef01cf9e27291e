"""The file of workload issuers: what is refused, with its line and in words."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.settings import Settings
from app.workload_settings import read_workload_issuers

RULE: dict[str, Any] = {
    "claims": {"sub": "system:serviceaccount:icu:trainer"},
    "organisation": "hospital",
    "scope": "m",
}
ISSUER: dict[str, Any] = {"name": "cluster", "issuer": "https://a.example", "audience": "ledger", "rules": [RULE]}


def _read(folder: Path, *issuers: dict[str, Any]) -> str:
    path = folder / "issuers.yaml"
    path.write_text(json.dumps({"issuers": issuers}))
    with pytest.raises(ValueError, match=r"^line \d") as caught:
        read_workload_issuers(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "Cluster"}, "name"),
        ({"issuer": "http://a.example"}, "https://"),
        ({"issuer": "https://a.example?x=1"}, "query"),
        ({"audience": ""}, "audience"),
        ({"audience": None}, "audience"),
        ({"jwks_url": "http://a.example/keys"}, "https://"),
        ({"jwks_file": "keys", "jwks_url": "https://a.example/keys"}, "`jwks_file` stands alone"),
        ({"jwks_file": "keys", "token_file": "t"}, "`jwks_file` stands alone"),
        ({"key_minutes": 0}, "key_minutes"),
        ({"key_minutes": 1441}, "key_minutes"),
        ({"rules": []}, "rules"),
        ({"roles": {}}, "roles"),
    ],
)
def test_mistake_in_an_issuer_is_named(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    assert words in _read(tmp_path, ISSUER | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"claims": {}}, "claims"),
        ({"claims": {"ref": "refs/heads/main"}}, "says whose workload it is"),
        ({"claims": {"sub": "*"}}, "a prefix ends with one of : /"),
        ({"claims": {"sub": "repo:hospital/models*"}}, "a prefix ends with one of : /"),
        ({"claims": {"sub": "repo:*:main"}}, "at the end only"),
        ({"claims": {"sub": ["a"]}}, "claims.sub"),
        ({"role": "owner"}, "role"),
        ({"role": "admin", "single_use": True}, "`single_use` is for the role trainer"),
        ({"scope": None}, "give the `scope`"),
        ({"organisation": None}, "organisation"),
    ],
)
def test_mistake_in_a_rule_is_named(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    assert words in _read(tmp_path, ISSUER | {"rules": [RULE | changed]})


def test_rule_of_a_trainer_is_single_use_by_default(tmp_path: Path) -> None:
    path = tmp_path / "issuers.yaml"
    rules = [RULE, RULE | {"scope": None, "single_use": False}, RULE | {"role": "viewer", "scope": None}]
    path.write_text(json.dumps({"issuers": [ISSUER | {"rules": rules}]}))
    [issuer] = read_workload_issuers(path)
    assert [(rule.role, rule.single_use) for rule in issuer.rules] == [
        ("trainer", True),
        ("trainer", False),
        ("viewer", False),
    ]


@pytest.mark.parametrize("field", ["name", "issuer"])
def test_issuers_with_one_name_or_url_are_refused(tmp_path: Path, field: str) -> None:
    other = ISSUER | {"name": "other", "issuer": "https://b.example"} | {field: ISSUER[field]}
    assert f"two issuers have the {field}" in _read(tmp_path, ISSUER, other)


@pytest.mark.parametrize("content", ["issuers: [", "{}", "", "issuers: 1", "a: 1\na: 2"])
def test_file_without_issuers_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "issuers.yaml"
    path.write_text(content)
    with pytest.raises(ValidationError, match="EPSILON_LEDGER_WORKLOAD_ISSUERS_FILE"):
        Settings(workload_issuers_file=str(path))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot be read"):
        Settings(workload_issuers_file=str(tmp_path / "none"))


def test_people_and_workloads_of_one_issuer_have_different_audiences(tmp_path: Path) -> None:
    path = tmp_path / "issuers.yaml"
    path.write_text(json.dumps({"issuers": [ISSUER]}))
    people = {
        "oidc_issuer": ISSUER["issuer"],
        "oidc_organisation": "hospital",
        "oidc_roles": '{"a": {"role": "viewer"}}',
    }
    assert Settings(workload_issuers_file=str(path), oidc_audience="people", **people).workload_issuers
    with pytest.raises(ValidationError, match="audience of their own"):
        Settings(workload_issuers_file=str(path), oidc_audience="ledger", **people)


def test_keys_in_a_file_are_read_again(tmp_path: Path) -> None:
    path, keys = tmp_path / "issuers.yaml", tmp_path / "keys.json"
    path.write_text(json.dumps({"issuers": [ISSUER | {"jwks_file": str(keys)}]}))
    [issuer] = read_workload_issuers(path)
    with pytest.raises(OSError, match=r"keys\.json"):
        issuer.key_set()
    keys.write_text('{"keys": []}')
    assert issuer.key_set() == {"keys": []}
