"""What is agreed with an identity provider: a mistake is a clear sentence at the start."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.ledger.permissions import Role
from app.service.auth.oidc.config import RoleMapping, granted
from app.settings import PREFIX, Settings
from tests.service.commands import commands

ROLES = {"officers": {"role": "privacy_officer"}, "icu": {"role": "trainer", "scope": "mimic/icu-team"}}
GOOD: dict[str, Any] = {
    "openid_issuer": "https://login.example/realms/hospital",
    "openid_audience": "ledger",
    "openid_organisation": "hospital",
    "openid_roles": json.dumps(ROLES),
}


def test_what_is_agreed() -> None:
    terms = Settings(**GOOD).openid
    assert terms is not None
    assert dict(terms.roles) == {
        "officers": RoleMapping(Role.PRIVACY_OFFICER),
        "icu": RoleMapping(Role.TRAINER, "mimic/icu-team"),
    }
    assert (terms.groups_claim, terms.subject_claim, terms.jwks_url) == ("groups", "sub", None)
    assert Settings().openid is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"openid_issuer": None}, "EPSILON_LEDGER_OPENID_ISSUER is not"),
        ({"openid_audience": None}, "EPSILON_LEDGER_OPENID_AUDIENCE is not"),
        ({"openid_roles": None}, "EPSILON_LEDGER_OPENID_ROLES is not"),
        ({"openid_organisation": None}, "set either EPSILON_LEDGER_OPENID_ORGANISATION or"),
        ({"openid_organisation_claim": "tenant"}, "set either EPSILON_LEDGER_OPENID_ORGANISATION or"),
        ({"openid_issuer": "http://login.example"}, "https://HOST"),
        ({"openid_issuer": "login.example"}, "https://HOST"),
        ({"openid_issuer": "https://"}, "https://HOST"),
        ({"openid_issuer": "https://[::1"}, "no URL"),
        ({"openid_issuer": "https://login.example:port"}, "no URL"),
        ({"openid_issuer": "https://login.example?a=b"}, "no query"),
        ({"openid_issuer": "https://user:word@login.example"}, "no user, password"),
        ({"openid_issuer": "https://login.example#a"}, "no user, password or fragment"),
        ({"openid_jwks_url": "http://login.example/keys"}, "EPSILON_LEDGER_OPENID_JWKS_URL is not right"),
        ({"openid_jwks_url": "http://localhost/keys"}, "EPSILON_LEDGER_OPENID_JWKS_URL is not right"),
        ({"openid_jwks_url": "file:///etc/passwd"}, "EPSILON_LEDGER_OPENID_JWKS_URL is not right"),
        ({"openid_roles": "officers"}, "no JSON"),
        ({"openid_roles": "[]"}, "no JSON object"),
        ({"openid_roles": "{}"}, "no JSON object"),
        ({"openid_roles": "[" * 100_000}, "too deep"),
        ({"openid_roles": '{"a": {"role": "viewer"}, "a": {"role": "admin"}}'}, "'a' stands there twice"),
        ({"openid_roles": '{"a": {"role": "viewer", "role": "admin"}}'}, "'role' stands there twice"),
        ({"openid_roles": '{"a": "viewer"}'}, "needs a role"),
        ({"openid_roles": '{"a": {"scope": "mimic"}}'}, "needs a role"),
        ({"openid_roles": '{"a": {"role": "viewer", "scpoe": "mimic"}}'}, "has nothing else"),
        ({"openid_roles": '{"a": {"role": "owner"}}'}, "there are viewer, trainer"),
        ({"openid_roles": '{"a": {"role": ["viewer"]}}'}, "there are viewer, trainer"),
        ({"openid_roles": '{"a": {"role": "viewer", "scope": 7}}'}, "path of an account"),
        ({"openid_roles": '{"a": {"role": "viewer", "scope": ""}}'}, "path of an account"),
        ({"openid_subject_claim": ""}, "at least 1 character"),
    ],
    ids=str,
)
def test_a_mistake_is_named(changed: dict[str, Any], told: str) -> None:
    given = {name: value for name, value in (GOOD | changed).items() if value is not None}
    with pytest.raises(ValidationError) as caught:
        Settings(**given)
    assert told in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:80"])
def test_a_provider_on_this_machine_needs_no_tls(host: str) -> None:
    given = GOOD | {"openid_issuer": f"http://{host}/realms/a", "openid_jwks_url": f"http://{host}/keys"}
    assert Settings(**given).openid is not None


def test_the_command_line_says_it_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run = commands(monkeypatch, capsys, "sqlite:///ledger.db")
    monkeypatch.setenv(f"{PREFIX}OPENID_AUDIENCE", "ledger")
    said = run("migrate")
    assert said.status == 2
    assert said.err == "EPSILON_LEDGER_OPENID_AUDIENCE is set, but EPSILON_LEDGER_OPENID_ISSUER is not.\n"
    monkeypatch.setenv(f"{PREFIX}OPENID_ISSUER", "http://login.example")
    assert run("migrate").err.startswith("EPSILON_LEDGER_OPENID_ISSUER is not right: it must begin with https://HOST")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], None),
        (["unknown"], None),
        (["b"], RoleMapping(Role.TRAINER, "x")),
        (["a", "b"], RoleMapping(Role.TRAINER, "x")),
        (["c", "b"], RoleMapping(Role.VIEWER)),
        (["c", "d", "a"], RoleMapping(Role.PLANNER)),
        (["e", "c"], RoleMapping(Role.AUDITOR)),
    ],
    ids=str,
)
def test_who_is_in_several_groups_has_one_role(groups: list[str], expected: RoleMapping | None) -> None:
    roles = {
        "b": {"role": "trainer", "scope": "x"},
        "a": {"role": "admin", "scope": "y"},
        "c": {"role": "viewer"},
        "d": {"role": "planner"},
        "e": {"role": "auditor"},
    }
    terms = Settings(**GOOD | {"openid_roles": json.dumps(roles)}).openid
    assert terms is not None
    assert granted(terms, groups) == expected
    assert granted(terms, groups[::-1]) == expected
