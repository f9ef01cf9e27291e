"""What is agreed with an identity provider: a mistake is a clear sentence at the start."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.ledger.permissions import Role
from app.service.auth.oidc.config import RoleMapping, granted
from app.settings import PREFIX, Settings
from tests.service.cli_runner import commands

ROLES = {"officers": {"role": "privacy_officer"}, "icu": {"role": "trainer", "scope": "mimic/icu-team"}}
GOOD: dict[str, Any] = {
    "oidc_issuer": "https://login.example/realms/hospital",
    "oidc_audience": "ledger",
    "oidc_organisation": "hospital",
    "oidc_roles": json.dumps(ROLES),
}


def test_settings_of_a_provider_are_read() -> None:
    terms = Settings(**GOOD).openid
    assert terms is not None
    assert dict(terms.roles) == {
        "officers": RoleMapping(Role.PRIVACY_OFFICER),
        "icu": RoleMapping(Role.TRAINER, "mimic/icu-team"),
    }
    assert (terms.groups_claim, terms.subject_claim, terms.jwks_url) == ("groups", "sub", None)
    assert Settings().openid is None


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({"oidc_issuer": None}, "EPSILON_LEDGER_OIDC_ISSUER is not"),
        ({"oidc_audience": None}, "EPSILON_LEDGER_OIDC_AUDIENCE is not"),
        ({"oidc_roles": None}, "EPSILON_LEDGER_OIDC_ROLES is not"),
        ({"oidc_organisation": None}, "set either EPSILON_LEDGER_OIDC_ORGANISATION or"),
        ({"oidc_organisation_claim": "tenant"}, "set either EPSILON_LEDGER_OIDC_ORGANISATION or"),
        ({"oidc_issuer": "http://login.example"}, "https://HOST"),
        ({"oidc_issuer": "login.example"}, "https://HOST"),
        ({"oidc_issuer": "https://"}, "https://HOST"),
        ({"oidc_issuer": "https://[::1"}, "no URL"),
        ({"oidc_issuer": "https://login.example:port"}, "no URL"),
        ({"oidc_issuer": "https://login.example?a=b"}, "no query"),
        ({"oidc_issuer": "https://user:word@login.example"}, "no user, password"),
        ({"oidc_issuer": "https://login.example#a"}, "no user, password or fragment"),
        ({"oidc_jwks_url": "http://login.example/keys"}, "EPSILON_LEDGER_OIDC_JWKS_URL is invalid"),
        ({"oidc_jwks_url": "http://localhost/keys"}, "EPSILON_LEDGER_OIDC_JWKS_URL is invalid"),
        ({"oidc_jwks_url": "file:///etc/passwd"}, "EPSILON_LEDGER_OIDC_JWKS_URL is invalid"),
        ({"oidc_roles": "officers"}, "no JSON"),
        ({"oidc_roles": "[]"}, "no JSON object"),
        ({"oidc_roles": "{}"}, "no JSON object"),
        ({"oidc_roles": "[" * 100_000}, "too deep"),
        ({"oidc_roles": '{"a": {"role": "viewer"}, "a": {"role": "admin"}}'}, "'a' is given twice"),
        ({"oidc_roles": '{"a": {"role": "viewer", "role": "admin"}}'}, "'role' is given twice"),
        ({"oidc_roles": '{"a": "viewer"}'}, "needs a role"),
        ({"oidc_roles": '{"a": {"scope": "mimic"}}'}, "needs a role"),
        ({"oidc_roles": '{"a": {"role": "viewer", "scpoe": "mimic"}}'}, "has nothing else"),
        ({"oidc_roles": '{"a": {"role": "owner"}}'}, "there are viewer, trainer"),
        ({"oidc_roles": '{"a": {"role": ["viewer"]}}'}, "there are viewer, trainer"),
        ({"oidc_roles": '{"a": {"role": "viewer", "scope": 7}}'}, "path of an account"),
        ({"oidc_roles": '{"a": {"role": "viewer", "scope": ""}}'}, "path of an account"),
        ({"oidc_subject_claim": ""}, "at least 1 character"),
    ],
    ids=str,
)
def test_mistake_in_a_setting_is_named(changed: dict[str, Any], answer: str) -> None:
    given = {name: value for name, value in (GOOD | changed).items() if value is not None}
    with pytest.raises(ValidationError) as caught:
        Settings(**given)
    assert answer in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:80"])
def test_provider_on_this_machine_needs_no_tls(host: str) -> None:
    given = GOOD | {"oidc_issuer": f"http://{host}/realms/a", "oidc_jwks_url": f"http://{host}/keys"}
    assert Settings(**given).openid is not None


def test_command_line_names_a_mistake_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run = commands(monkeypatch, capsys, "sqlite:///ledger.db")
    monkeypatch.setenv(f"{PREFIX}OIDC_AUDIENCE", "ledger")
    said = run("migrate")
    assert said.status == 2
    assert said.err == "EPSILON_LEDGER_OIDC_AUDIENCE is set, but EPSILON_LEDGER_OIDC_ISSUER is not.\n"
    monkeypatch.setenv(f"{PREFIX}OIDC_ISSUER", "http://login.example")
    assert run("migrate").err.startswith("EPSILON_LEDGER_OIDC_ISSUER is invalid: it must begin with https://HOST")


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
def test_member_of_several_groups_has_one_role(groups: list[str], expected: RoleMapping | None) -> None:
    roles = {
        "b": {"role": "trainer", "scope": "x"},
        "a": {"role": "admin", "scope": "y"},
        "c": {"role": "viewer"},
        "d": {"role": "planner"},
        "e": {"role": "auditor"},
    }
    terms = Settings(**GOOD | {"oidc_roles": json.dumps(roles)}).openid
    assert terms is not None
    assert granted(terms, groups) == expected
    assert granted(terms, groups[::-1]) == expected
