"""People with a token of an OpenID Connect provider: who gets in, as whom, and who does not."""

import base64
import hmac
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc.jwk import Key, RSAKey

from app.service.auth.oidc.tokens import LEEWAY_SECONDS, MOST_CHARACTERS
from tests.api.conftest import SeededLedger, furnish
from tests.api.trainer import audited
from tests.conftest import open_ledger
from tests.identity_provider import ALGORITHMS, REGISTRY, IdentityProvider, identity_provider, key_of, public, signed
from tests.persistence.dump import changed

ROLES = {
    "officers": {"role": "privacy_officer"},
    "planners": {"role": "planner"},
    "viewers": {"role": "viewer"},
    "icu": {"role": "trainer", "scope": "mimic/icu-team"},
    "mimic-planners": {"role": "planner", "scope": "mimic"},
    "ghosts": {"role": "viewer", "scope": "nowhere"},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededLedger]:
    with provider.open_ledger(tmp_path_factory.mktemp("shared"), oidc_roles=json.dumps(ROLES)) as ledger:
        yield furnish(ledger)


def _ask(
    shared: SeededLedger, token: str, path: str = "/v1/runs", body: object = None, **headers: str
) -> httpx2.Response:
    sent = {"Authorization": f"Bearer {token}"} | headers
    method = "GET" if body is None else "POST"
    return shared.ledger.http.request(method, path, json=body, headers=sent)


def _refused(shared: SeededLedger, token: str) -> str:
    """Why a token opens nothing."""
    reply = _ask(shared, token)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    assert reply.headers["www-authenticate"] == "Bearer"
    return str(reply.json()["detail"])


def _part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def test_token_of_each_algorithm_opens_and_its_person_is_named_in_the_audit_log(
    shared: SeededLedger, provider: IdentityProvider
) -> None:
    kinds = ("JWT", "at+jwt", "application/at+jwt")
    for place, algorithm in enumerate(ALGORITHMS):
        reply = _ask(shared, provider.token(algorithm, header={"typ": kinds[place % 3]}))
        assert (reply.status_code, len(reply.json()["items"])) == (200, 1), algorithm
    soon = time.time() + LEEWAY_SECONDS - 10
    assert _ask(shared, provider.token(nbf=soon, iat=soon)).status_code == 200, "clocks may differ a little"
    several = ["https://other.example", provider.claims()["aud"]]
    assert _ask(shared, provider.token(aud=several, sub="x" * 295)).status_code == 200
    made = _ask(shared, provider.token(sub="auth0|63 é"), "/v1/api-keys", {"role": "viewer"})
    assert made.status_code == 201
    [event] = audited(shared.ledger, f"subject={made.json()['id']}")
    assert (event["actor"], made.json()["created_by"]) == ("oidc:auth0|63 é", "oidc:auth0|63 é")


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"exp": 1_700_000_000}, "expired", "expired"),
    *(({"exp": value}, "malformed", "`exp`") for value in (None, True, "4102444800", float("inf"), 1e300)),
    *(({name: 4102444800}, "not_yet_valid", "not valid yet") for name in ("nbf", "iat")),
    *(({"aud": value}, "wrong_audience", "audience") for value in ("https://o.example", ["https://o.example"], None)),
    *(({"groups": value}, "no_role", "groups") for value in (["strangers"], [], None, {"officers": 1})),
    ({"groups": None, "_claim_names": {"groups": "src1"}}, "too_many_groups", "too many"),
    ({"groups": ["ghosts"]}, "no_scope", "nowhere"),
]


def test_signed_token_that_opens_nothing_is_recorded(shared: SeededLedger, provider: IdentityProvider) -> None:
    for place, (claims, why, answer) in enumerate(INVALID):
        assert answer in _refused(shared, provider.token(sub=f"invalid-{place}", **claims))
        [event] = audited(shared.ledger, f"subject=oidc:invalid-{place}")
        assert (event["action"], event["actor"]) == ("oidc_token.authentication_failed", "unauthenticated")
        assert event["after"] == {"issuer": provider.issuer, "times": {why: 1}}
        assert event["request_id"]


def test_token_without_usable_characters_opens_nothing(shared: SeededLedger, provider: IdentityProvider) -> None:
    for subject in (None, "", 7, "x" * 296, "a\0b", "a\nb", " ", "\u3164", "marie ", "marie\u3164"):
        assert "`sub`" in _refused(shared, provider.token(sub=subject)), ascii(subject)
    for claims in ({"sub": "\ud800"}, {"name": "x\udfff"}, {"\udc80": 1}, {"groups": ["\ud800"]}):
        assert "half a surrogate pair" in _refused(shared, provider.token(**claims)), ascii(claims)


def _twice(claims: dict[str, object], name: str, first: object) -> str:
    """Claims as text with another value before that of one of them."""
    return json.dumps({name: first}, separators=(",", ":"))[:-1] + "," + json.dumps(claims, separators=(",", ":"))[1:]


def _signed_text(key: Key, header: object, claims: object) -> str:
    """A token of exactly these texts, signed by the provider's key."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in (header, claims)]
    content = ".".join(base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in texts)
    signature = REGISTRY.get_alg("RS256").sign(content.encode(), key)
    return f"{content}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _signed_oddly(provider: IdentityProvider) -> dict[str, str]:
    """Tokens that a key of the provider signed, with a header or claims that nobody may rely on."""
    rsa, mine, claims = key_of("RS256"), key_of("RS256", 7), provider.claims()
    own: dict[str, object] = {"alg": "RS256", "kid": "RS256-0", "typ": "JWT"}
    within = json.dumps(claims | {"x": 0}).replace(": 0}", ': {"a": 1, "a": 2}}')
    contents: dict[str, tuple[object, object]] = {
        "two algorithms": ('{"alg":"none","alg":"RS256","kid":"RS256-0","typ":"JWT"}', claims),
        "two keys": ('{"alg":"RS256","kid":"x","kid":"RS256-0","typ":"JWT"}', claims),
        "two persons": (own, _twice(claims, "sub", "pierre")),
        "two audiences": (own, _twice(claims, "aud", "https://other.example")),
        "two lists of groups": (own, _twice(claims, "groups", ["viewers"])),
        "two names in a claim": (own, within),
        "a token within a token": (own | {"cty": "JWT"}, provider.token()),
    }
    headers = {
        "alg": ("NONE", "rs256", "HS384", "HS512", "ES256K", ["RS256"], True),
        "kid": ("", "../../keys", "RS256-0 ", ["RS256-0"], True, 0),
        "crit": ([], ["exp"], "exp", None),
        "b64": (False, None),
        "typ": (["JWT"], True, "JWS"),
    }
    contents |= {
        f"{name} {value!r}": (own | {name: value}, claims) for name, values in headers.items() for value in values
    }
    signed_by_us = {name: _signed_text(rsa, *content) for name, content in contents.items()}
    brought = {"x5u": f"{provider.issuer}/mine", "x5c": ["MIIB"], "x5t": "x"}
    issuers: tuple[object, ...] = (None, [provider.issuer], True, "", f"{provider.issuer} ")
    return (
        signed_by_us
        | {name: _signed_text(mine, own | {name: value}, claims) for name, value in brought.items()}
        | {f"the issuer {issuer!r}": provider.token(iss=issuer) for issuer in issuers}
    )


def _bad_tokens(provider: IdentityProvider) -> dict[str, str]:
    """Tokens that the provider did not sign, or not for us, or not so that it could be read."""
    good = provider.token()
    head, content, signature = good.split(".")
    rsa = key_of("RS256")
    assert isinstance(rsa, RSAKey)
    pem = rsa.as_pem(private=False)
    confused = f"{_part({'alg': 'HS256', 'kid': 'RS256-0', 'typ': 'JWT'})}.{content}"
    by_public_key = base64.urlsafe_b64encode(hmac.digest(pem, confused.encode(), "sha256")).decode().rstrip("=")
    claims, mine = provider.claims(), key_of("RS256", 7)
    own = {"alg": "RS256", "kid": "RS256-0", "typ": "JWT"}
    deep = base64.urlsafe_b64encode(b'{"alg":"RS256","x":' + b"[" * 1500 + b"]" * 1500 + b"}").decode()
    return _signed_oddly(provider) | {
        "no algorithm": f"{_part({'alg': 'none', 'kid': 'RS256-0', 'typ': 'JWT'})}.{content}.",
        "no signature": f"{head}.{content}.",
        "a public key as a secret": f"{confused}.{by_public_key}",
        "an algorithm that is not taken": signed(rsa, own | {"alg": "RS512"}, claims),
        "a key of another id": signed(rsa, own | {"kid": "PS256-0"}, claims),
        "a key of another kind": signed(rsa, own | {"kid": "ES256-0"}, claims),
        "a key of the wrong curve": signed(key_of("ES256"), {**own, "alg": "ES256", "kid": "ES384-0"}, claims),
        "an unknown key": signed(mine, own | {"kid": "mine"}, claims),
        "another's key under a known id": signed(mine, own, claims),
        "a key that it brings": signed(mine, own | {"jwk": public(mine)}, claims),
        "a key that it points to": signed(mine, own | {"jku": f"{provider.issuer}/mine"}, claims),
        "no key's id": provider.token(header={"kid": None}),
        "another type": provider.token(header={"typ": "logout+jwt"}),
        "an extension": signed(rsa, own | {"b64": True, "crit": ["b64"]}, claims),
        "another issuer": provider.token(iss="https://other.example"),
        "another issuer, nearly": provider.token(iss=f"{provider.issuer}/"),
        "other claims": f"{head}.{_part(provider.claims(groups=['admins']))}.{signature}",
        "claims that are a list": signed(rsa, own, [1]),
        "huge": provider.token(email="x" * MOST_CHARACTERS),
        "a huge header": provider.token(header={"more": "x" * 8000}),
        "a deep header": f"{deep}.{content}.{signature}",
        "a header that is a list": f"{_part(['alg'])}.{content}.{signature}",
        "nothing": "..",
        "not ascii": "é.é.é",
        "not base64": "!!!.???.***",
    }


def test_token_that_the_provider_did_not_sign_for_us_opens_nothing_and_is_noted_nowhere(
    shared: SeededLedger, provider: IdentityProvider
) -> None:
    before = shared.rows()
    for name, token in _bad_tokens(provider).items():
        headers = {b"Authorization": f"Bearer {token}".encode("latin-1")}
        reply = shared.ledger.http.get("/v1/runs", headers=headers)
        # While an unknown key was looked for a moment ago, another one is not; that nobody knows would be 503.
        assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated"), name
    assert changed(before, shared.rows()) == set()
    assert not [path for path in provider.asked if path.endswith("/mine")]


GROUPS: list[tuple[object, int, int]] = [
    (["officers"], 200, 403),
    ("officers", 200, 403),
    (["viewers"], 403, 403),
    (["icu"], 403, 200),
    (["icu", "viewers"], 403, 403),
    (["viewers", "officers", "planners"], 200, 403),
    (["strangers", "viewers", 7, None], 403, 403),
]


def test_groups_give_roles_and_a_role_with_a_scope_holds_under_it_only(
    shared: SeededLedger, provider: IdentityProvider
) -> None:
    for groups, governs, trains in GROUPS:
        token = provider.token(groups=groups)
        assert _ask(shared, token, f"/v1/runs/{shared.run}").status_code == 200
        assert _ask(shared, token, "/v1/api-keys").status_code == governs, groups
        assert _ask(shared, token, f"/v1/runs/{shared.run}/steps", {}).status_code == trains, groups
    ledger = shared.ledger
    ledger.population("eicu")
    ledger.budget("team", "eicu")
    other = ledger.run("eicu/team", name="other")
    steps = ("/v1/runs/{}/steps").format
    assert _ask(shared, provider.token(groups=["icu"]), steps(shared.run), {}).status_code == 200
    assert _ask(shared, provider.token(groups=["icu"]), steps(other), {}).status_code == 403
    # Everywhere comes first, though it may less; of several scopes the one that is configured first.
    both = provider.token(groups=["viewers", "icu"])
    assert _ask(shared, both, steps(shared.run), {}).status_code == 403
    assert _ask(shared, both, f"/v1/runs/{other}").status_code == 200
    scoped = provider.token(groups=["mimic-planners", "icu"])
    assert _ask(shared, scoped, steps(shared.run), {}).status_code == 200


def test_one_person_proposes_and_another_one_approves(shared: SeededLedger, provider: IdentityProvider) -> None:
    more = {"limit": {"epsilon": 3.6, "delta": 1e-5}, "reason": "Another study."}
    path = f"/v1/accounts/{shared.ledger.population('shared')['id']}/limit"
    marie, pierre = provider.token(sub="marie"), provider.token(sub="pierre")
    proposed = _ask(shared, marie, path, more, **{"If-Match": "*"}).raise_for_status()
    approval = f"/v1/proposals/{proposed.json()['id']}/approve"
    again = provider.token("ES256", sub="marie", jti="another token of the same person")
    for own in (marie, again):
        assert (_ask(shared, own, approval, {}).json())["code"] == "permission_denied"
    key = _ask(shared, marie, "/v1/api-keys", {"role": "privacy_officer"}).json()["key"]
    assert _ask(shared, key, approval, {}).status_code == 403  # her key is her word
    approved = _ask(shared, pierre, approval, {"reason": "Seen."})
    assert (approved.status_code, approved.json()["status"]) == (200, "approved")
    assert (approved.json()["proposed_by"], approved.json()["decided_by"]) == ("oidc:marie", "oidc:pierre")


def test_key_that_a_person_issues_or_rotates_ends_within_its_bound(
    shared: SeededLedger, provider: IdentityProvider
) -> None:
    token = provider.token(exp=int(time.time()) + 45)
    now = datetime.now(UTC)
    soon, latest, late = ((now + timedelta(days=days)).isoformat() for days in (1, 89.9, 90.1))
    for terms, days in (({}, 90.0), ({"expires_at": soon}, 1), ({"expires_at": latest}, 89.9)):
        made = _ask(shared, token, "/v1/api-keys", {"role": "viewer"} | terms).json()
        assert datetime.fromisoformat(made["expires_at"]) - now == pytest.approx(
            timedelta(days=days), abs=timedelta(minutes=1)
        )
    refused = _ask(shared, token, "/v1/api-keys", {"role": "viewer", "expires_at": late})
    assert (refused.status_code, refused.json()["field"]) == (422, "expires_at")
    assert "ends within 90 days" in refused.json()["detail"]
    forever = shared.ledger.post("/v1/api-keys", {"role": "trainer"}).json()
    rotated = _ask(shared, token, f"/v1/api-keys/{forever['id']}/rotate", {}).json()
    assert datetime.fromisoformat(rotated["expires_at"]) <= datetime.now(UTC) + timedelta(days=90)


def test_person_who_asks_too_often_is_refused_with_any_token(provider: IdentityProvider, tmp_path: Path) -> None:
    with provider.open_ledger(tmp_path, rate_limit_per_second=1e-3, rate_limit_burst=2) as ledger:
        shared = SeededLedger(ledger, "", "", "")
        asked = [_ask(shared, provider.token(jti=str(number))).status_code for number in range(4)]
        assert asked == [200, 200, 429, 429]
        assert _ask(shared, provider.token(sub="pierre")).status_code == 200


def test_made_up_tokens_are_limited_while_the_provider_is_down(provider: IdentityProvider, tmp_path: Path) -> None:
    with provider.open_ledger(tmp_path, rate_limit_anonymous_per_second=0.2) as ledger:  # two at once
        provider.down = True
        ledger.http.app.state.keys.oidc.jwks._fetched_at = float("-inf")  # for longer than its keys are kept
        shared = SeededLedger(ledger, "", "", "")
        asked = [_ask(shared, provider.token(number=number)).status_code for number in range(4)]
        provider.down = False
    assert asked == [503, 503, 429, 429]


def test_claim_may_name_the_organisation(provider: IdentityProvider, tmp_path: Path) -> None:
    with provider.open_ledger(tmp_path, oidc_organisation=None, oidc_organisation_claim="tenant") as ledger:
        furnished = furnish(ledger)
        seen = [_ask(furnished, provider.token(tenant=tenant)).json()["items"] for tenant in ("hospital", "clinic")]
        assert [len(items) for items in seen] == [1, 0]
        for tenant in ("nobody", None, 7, "", "a\0b"):
            assert "organisation" in _refused(furnished, provider.token(tenant=tenant))
        assert "expired" in _refused(furnished, provider.token(tenant="clinic", exp=1, sub="tardy"))
        assert audited(ledger, "subject=oidc:tardy") == []  # it stands in the clinic's chain
        reply = ledger.get("/v1/audit-events?subject=oidc:tardy", "auditor", "clinic")
        [event] = reply.json()["items"]
        assert event["action"] == "oidc_token.authentication_failed"


def test_service_without_a_provider_takes_no_tokens(provider: IdentityProvider, tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        assert "no tokens" in _refused(SeededLedger(ledger, "", "", ""), provider.token())
