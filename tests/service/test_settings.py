"""Settings of identity providers, workload issuers and mail: a mistake is a clear sentence at the start."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.ledger.permissions import Role
from app.service.alerts.mail_sender import SmtpServer
from app.service.auth.oidc.config import RoleMapping, granted
from app.settings import PREFIX, Settings
from app.workload_settings import read_workload_issuers
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


HOST, SENDER = "smtp.hospital.example", "ledger@hospital.example"


def test_no_host_means_no_mail() -> None:
    assert Settings().smtp_server is None


@pytest.mark.parametrize(("tls", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
def test_port_is_that_of_the_encryption(tls: Any, port: int) -> None:  # noqa: ANN401 - one of three
    given = Settings(smtp_host=HOST, smtp_from=SENDER, smtp_tls=tls)
    assert given.smtp_server == SmtpServer(HOST, port, tls, SENDER)
    other = Settings(smtp_host=HOST, smtp_from=SENDER, smtp_tls=tls, smtp_port=2525).smtp_server
    assert other is not None
    assert other.port == 2525


def test_password_is_read_when_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    server = Settings(smtp_host=HOST, smtp_from=SENDER, smtp_user="u", smtp_password_file=str(file)).smtp_server
    assert server is not None
    assert server.password() == "first"
    file.write_text("second")
    assert server.password() == "second"


WHOLE = {"smtp_host": HOST, "smtp_from": SENDER}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"smtp_host": HOST}, "EPSILON_LEDGER_SMTP_FROM is not"),
        ({"smtp_from": SENDER}, "EPSILON_LEDGER_SMTP_FROM is set, but EPSILON_LEDGER_SMTP_HOST is not"),
        ({"smtp_port": 25}, "EPSILON_LEDGER_SMTP_PORT is set"),
        (WHOLE | {"smtp_from": "Ledger <a@b.example>"}, "pattern"),
        (WHOLE | {"smtp_from": "a@b.example\nBcc: c@d.example"}, "pattern"),
        (WHOLE | {"smtp_port": 0}, "greater than or equal to 1"),
        (WHOLE | {"smtp_tls": "ssl"}, "starttls"),
        (WHOLE | {"smtp_user": "u"}, "EPSILON_LEDGER_SMTP_PASSWORD_FILE, or neither"),
        (WHOLE | {"smtp_password_file": __file__}, "EPSILON_LEDGER_SMTP_USER and"),
        (WHOLE | {"smtp_user": "u", "smtp_password_file": "/nowhere"}, "PASSWORD_FILE cannot be read"),
        (WHOLE | {"smtp_user": "u", "smtp_password_file": "/dev/null"}, "holds no password"),
        (WHOLE | {"smtp_user": "u", "smtp_password_file": __file__, "smtp_tls": "none"}, "needs encryption"),
    ],
)
def test_incomplete_server_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings(**given)
