"""Settings of identity providers, workload issuers and mail: a mistake is a clear sentence at the start."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.configuration.settings import PREFIX, Settings
from app.configuration.workload_issuers import read_workload_issuers
from app.ledger.permissions import Role
from app.service.auth.oidc.config import RoleMapping, granted
from tests.each import for_each
from tests.service.cli_runner import commands

ROLES = {"officers": {"role": "privacy_officer"}, "icu": {"role": "trainer", "scope": "mimic/icu-team"}}
PEOPLE: dict[str, Any] = {
    "oidc_issuer": "https://login.example/realms/hospital",
    "oidc_audience": "ledger",
    "oidc_organisation": "hospital",
    "oidc_roles": json.dumps(ROLES),
}
MAIL: dict[str, Any] = {"smtp_host": "smtp.hospital.example", "smtp_from": "ledger@hospital.example"}
PLACE = {"organisation": "hospital", "scope": "m"}
RULE: dict[str, Any] = {"claims": {"sub": "system:serviceaccount:icu:trainer"}} | PLACE
ISSUER: dict[str, Any] = {"name": "cluster", "issuer": "https://a.example", "audience": "ledger", "rules": [RULE]}


def test_settings_of_a_provider_are_read() -> None:
    terms: Any = Settings(**PEOPLE).openid
    icu = RoleMapping(Role.TRAINER, "mimic/icu-team")
    assert dict(terms.roles) == {"officers": RoleMapping(Role.PRIVACY_OFFICER), "icu": icu}
    assert (terms.groups_claim, terms.subject_claim, terms.jwks_url) == ("groups", "sub", None)
    assert Settings().openid is None
    for host in ("localhost:8080", "127.0.0.1", "[::1]:80"):  # on this machine a provider needs no TLS
        given = PEOPLE | {"oidc_issuer": f"http://{host}/realms/a", "oidc_jwks_url": f"http://{host}/keys"}
        assert Settings(**given).openid is not None


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (PEOPLE | {"oidc_issuer": None}, "EPSILON_LEDGER_OIDC_ISSUER is not"),
    (PEOPLE | {"oidc_audience": None}, "EPSILON_LEDGER_OIDC_AUDIENCE is not"),
    (PEOPLE | {"oidc_roles": None}, "EPSILON_LEDGER_OIDC_ROLES is not"),
    (PEOPLE | {"oidc_organisation": None}, "set either EPSILON_LEDGER_OIDC_ORGANISATION or"),
    (PEOPLE | {"oidc_organisation_claim": "tenant"}, "set either EPSILON_LEDGER_OIDC_ORGANISATION or"),
    (PEOPLE | {"oidc_issuer": "http://login.example"}, "https://HOST"),
    (PEOPLE | {"oidc_issuer": "https://"}, "https://HOST"),
    (PEOPLE | {"oidc_issuer": "https://[::1"}, "no URL"),
    (PEOPLE | {"oidc_issuer": "https://login.example:port"}, "no URL"),
    (PEOPLE | {"oidc_issuer": "https://login.example?a=b"}, "no query"),
    (PEOPLE | {"oidc_issuer": "https://login.example/a b"}, "printable ASCII characters only, and no space"),
    (PEOPLE | {"oidc_issuer": "https://user:word@login.example"}, "no user, password"),
    (PEOPLE | {"oidc_issuer": "https://login.example#a"}, "no user, password or fragment"),
    (PEOPLE | {"oidc_jwks_url": "http://login.example/keys"}, "EPSILON_LEDGER_OIDC_JWKS_URL is invalid"),
    (PEOPLE | {"oidc_jwks_url": "http://localhost/keys"}, "EPSILON_LEDGER_OIDC_JWKS_URL is invalid"),
    (PEOPLE | {"oidc_roles": "officers"}, "no JSON"),
    (PEOPLE | {"oidc_roles": "[]"}, "no JSON object; write"),
    (PEOPLE | {"oidc_roles": "{}"}, "no JSON object of groups"),
    (PEOPLE | {"oidc_roles": "[" * 100_000}, "too deep"),
    (PEOPLE | {"oidc_roles": '{"a": {"role": "viewer"}, "a": {"role": "admin"}}'}, "'a' is given twice"),
    (PEOPLE | {"oidc_roles": '{"a": "viewer"}'}, "needs a role"),
    (PEOPLE | {"oidc_roles": '{"a": {"role": "viewer", "scpoe": "mimic"}}'}, "has nothing else"),
    (PEOPLE | {"oidc_roles": '{"a": {"role": "owner"}}'}, "there are viewer, trainer"),
    (PEOPLE | {"oidc_roles": '{"a": {"role": "viewer", "scope": ""}}'}, "path of an account"),
    (PEOPLE | {"oidc_subject_claim": ""}, "at least 1 character"),
    (MAIL | {"smtp_from": None}, "EPSILON_LEDGER_SMTP_FROM is not"),
    (MAIL | {"smtp_host": None}, "EPSILON_LEDGER_SMTP_FROM is set, but EPSILON_LEDGER_SMTP_HOST is not"),
    ({"smtp_port": 25}, "EPSILON_LEDGER_SMTP_PORT is set"),
    (MAIL | {"smtp_from": "Ledger <a@b.example>"}, "pattern"),
    (MAIL | {"smtp_from": "a@b.example\nBcc: c@d.example"}, "pattern"),
    (MAIL | {"smtp_port": 0}, "greater than or equal to 1"),
    (MAIL | {"smtp_tls": "ssl"}, "starttls"),
    (MAIL | {"smtp_user": "u"}, "EPSILON_LEDGER_SMTP_PASSWORD_FILE, or neither"),
    (MAIL | {"smtp_password_file": __file__}, "EPSILON_LEDGER_SMTP_USER and"),
    (MAIL | {"smtp_user": "u", "smtp_password_file": "/nowhere"}, "PASSWORD_FILE cannot be read"),
    (MAIL | {"smtp_user": "u", "smtp_password_file": "/dev/null"}, "holds no password"),
    (MAIL | {"smtp_user": "u", "smtp_password_file": __file__, "smtp_tls": "none"}, "needs encryption"),
    ({"workload_issuers_file": "/nowhere"}, "cannot be read"),
]


@for_each(MISTAKES)
def test_mistake_in_a_setting_is_named(case: tuple[dict[str, Any], str]) -> None:
    given, words = case
    with pytest.raises(ValidationError) as caught:
        Settings(**{name: value for name, value in given.items() if value is not None})
    assert words in caught.value.errors()[0]["msg"]


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


def test_member_of_several_groups_has_one_role() -> None:
    roles: dict[str, Any] = {"c": {"role": "viewer"}, "d": {"role": "planner"}, "e": {"role": "auditor"}}
    roles |= {"b": {"role": "trainer", "scope": "x"}, "a": {"role": "admin", "scope": "y"}}
    terms: Any = Settings(**PEOPLE | {"oidc_roles": json.dumps(roles)}).openid
    scoped = RoleMapping(Role.TRAINER, "x")
    expected = {"": None, "u": None, "b": scoped, "ab": scoped, "cb": RoleMapping(Role.VIEWER)}
    expected |= {"cda": RoleMapping(Role.PLANNER), "ec": RoleMapping(Role.AUDITOR)}
    for groups, role in expected.items():
        assert granted(terms, [*groups]) == granted(terms, [*groups[::-1]]) == role, groups


def test_port_of_mail_is_that_of_the_encryption_and_its_password_read_when_needed(tmp_path: Path) -> None:
    def server(**terms: Any) -> Any:  # noqa: ANN401 - a server, which there is
        return Settings(**MAIL | terms).smtp_server

    for tls, port in (("starttls", 587), ("tls", 465), ("none", 25)):
        made = server(smtp_tls=tls)
        assert (made.host, made.port, made.tls, made.sender) == (MAIL["smtp_host"], port, tls, MAIL["smtp_from"])
        assert server(smtp_tls=tls, smtp_port=2525).port == 2525
    assert Settings().smtp_server is None
    file = tmp_path / "password"
    file.write_text("another")
    with_password = server(smtp_user="u", smtp_password_file=str(file))
    for content in ("first\n", "second"):
        file.write_text(content)
        assert with_password.password() == content.strip()


def written(folder: Path, content: object) -> Path:
    path = folder / "issuers.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps({"issuers": content}))
    return path


def claim(sub: object) -> dict[str, Any]:
    return {"rules": [RULE | {"claims": {"sub": sub}}]}


ISSUER_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"name": "Cluster"}, "name"),
    ({"issuer": "http://a.example"}, "https://"),
    ({"issuer": "https://a.example?x=1"}, "query"),
    ({"audience": ""}, "audience"),
    ({"audience": None}, "audience"),
    ({"jwks_url": "http://a.example/keys"}, "https://"),
    ({"jwks_file": "keys", "jwks_url": "https://a.example/keys"}, "`jwks_file` stands alone"),
    ({"jwks_file": "keys", "token_file": "t"}, "`jwks_file` stands alone"),
    ({"key_minutes": 1441}, "key_minutes"),
    ({"rules": []}, "rules"),
    ({"roles": {}}, "roles"),
    ({"rules": [RULE | {"claims": {}}]}, "claims"),
    ({"rules": [RULE | {"claims": {"ref": "refs/heads/main"}}]}, "says whose workload it is"),
    (claim("*"), "a prefix ends with one of : /"),
    (claim("repo:hospital/models*"), "a prefix ends with one of : /"),
    (claim("repo:*:main"), "at the end only"),
    (claim(["a"]), "claims.sub"),
    (claim(695e5), "should be a valid string; put it into quotes"),
    ({"rules": [RULE | {"role": "owner"}]}, "role"),
    ({"rules": [RULE | {"role": "admin", "single_use": True}]}, "`single_use` is for the role trainer"),
    ({"rules": [RULE | {"scope": None}]}, "give the `scope`"),
    ({"rules": [RULE | {"organisation": None}]}, "organisation"),
]


def test_mistake_in_a_workload_issuer_is_named(tmp_path: Path) -> None:
    for changed, words in ISSUER_MISTAKES:
        with pytest.raises(ValueError, match=r"^line \d") as caught:
            read_workload_issuers(written(tmp_path, [ISSUER | changed]))
        assert words in str(caught.value)


def test_workload_issuers_are_told_apart_and_their_rules_have_defaults(tmp_path: Path) -> None:
    for field in ("name", "issuer"):
        other = ISSUER | {"name": "other", "issuer": "https://b.example"} | {field: ISSUER[field]}
        with pytest.raises(ValueError, match=f"^line .*two issuers have the {field}"):
            read_workload_issuers(written(tmp_path, [ISSUER, other]))
    both = PEOPLE | {"workload_issuers_file": str(written(tmp_path, [ISSUER])), "oidc_issuer": ISSUER["issuer"]}
    assert Settings(**both | {"oidc_audience": "people"}).workload_issuers
    with pytest.raises(ValidationError, match="audience of their own"):
        Settings(**both)
    rules = [RULE, RULE | {"scope": None, "single_use": False}, RULE | {"role": "viewer", "scope": None}]
    keys = tmp_path / "keys.json"
    [issuer] = read_workload_issuers(written(tmp_path, [ISSUER | {"rules": rules, "jwks_file": str(keys)}]))
    found = [(str(rule.role), rule.single_use) for rule in issuer.rules]
    assert found == [("trainer", True), ("trainer", False), ("viewer", False)]
    with pytest.raises(OSError, match=r"keys\.json"):
        issuer.key_set()
    keys.write_text('{"keys": []}')
    assert issuer.key_set() == {"keys": []}


def test_file_without_workload_issuers_is_refused_at_the_start(tmp_path: Path) -> None:
    for content in ("issuers: [", "{}", "", "issuers: 1", "a: 1\na: 2"):
        with pytest.raises(ValidationError, match="EPSILON_LEDGER_WORKLOAD_ISSUERS_FILE"):
            Settings(workload_issuers_file=str(written(tmp_path, content)))
