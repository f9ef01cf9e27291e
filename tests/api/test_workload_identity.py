"""Workloads exchange tokens of their cluster or CI for keys: which ones, for whom, and how long."""

import base64
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.service.auth.oidc.tokens import MOST_CHARACTERS
from tests.api.conftest import SeededLedger, furnish
from tests.api.trainer import audited, is_refused
from tests.conftest import SAMPLED, Ledger, open_ledger
from tests.identity_provider import ALGORITHMS, IdentityProvider, identity_provider, key_of, public, signed
from tests.persistence.dump import changed
from tests.polling import await_true
from tests.workloads import AUDIENCE, POD, RULES, issuer_of, issuers_file, workload_token

GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
ONCE = "system:serviceaccount:icu:once"


@pytest.fixture(scope="module")
def cluster() -> Iterator[IdentityProvider]:
    with identity_provider() as opened:
        yield opened


@pytest.fixture(scope="module")
def ci() -> Iterator[IdentityProvider]:
    with identity_provider() as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(
    cluster: IdentityProvider, ci: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SeededLedger]:
    folder = tmp_path_factory.mktemp("shared")
    once = {"claims": {"sub": ONCE}, "organisation": "hospital", "scope": "mimic/icu-team"}
    terms: dict[str, Any] = {"audience": "ledger-ci", "key_minutes": 5, "single_use_tokens": True}
    file = issuers_file(folder, issuer_of(cluster), issuer_of(ci, "ci", rules=[once, *RULES], **terms))
    with open_ledger(folder, workload_issuers_file=file) as ledger:
        seeded = furnish(ledger)
        for each in (cluster, ci):
            each.publish(*ALGORITHMS)
        workloads = ledger.http.app.state.keys.workloads
        print_, sets = key_of("RS256").thumbprint(), workloads.key_sets.values()
        await_true(lambda: all(keys.publishes(print_) for keys in sets), pause=0.01, seconds=10)
        yield seeded


def _exchange(shared: SeededLedger, token: str, **more: object) -> httpx2.Response:
    body = {"grant_type": GRANT, "subject_token": token, "subject_token_type": JWT} | more
    return shared.ledger.http.post("/v1/token", json=body)


def _key(shared: SeededLedger, token: str, **more: object) -> dict[str, Any]:
    return dict(_exchange(shared, token, **more).raise_for_status().json())


def _ask(shared: SeededLedger, key: str, method: str, path: str, body: object = None) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return shared.ledger.http.request(method, path, json=body, headers=headers)


def _refused(shared: SeededLedger, token: str) -> str:
    """Why a token is exchanged for nothing."""
    before = shared.rows()
    answer = is_refused(_exchange(shared, token), 401, "unauthenticated")
    assert set(changed(before, shared.rows())) <= {"audit_entries", "organisations"}
    return str(answer["detail"])


def _run(name: str) -> dict[str, object]:
    return {"name": name, "budget": "mimic/icu-team", "event": SAMPLED}


def test_pod_gets_a_key_for_the_run_that_it_registers(shared: SeededLedger, cluster: IdentityProvider) -> None:
    for algorithm in ALGORITHMS:
        answer = _key(shared, workload_token(cluster, algorithm))
    issued = "urn:ietf:params:oauth:token-type:access_token"
    assert (answer["token_type"], answer["issued_token_type"]) == ("Bearer", issued)
    key = answer["key"]
    assert (key["role"], key["scope"], key["single_use"]) == ("trainer", shared.budget, True)
    assert key["created_by"] == f"workload:cluster:{POD}"
    assert 3500 < answer["expires_in"] <= 3600
    run = _ask(shared, answer["access_token"], "POST", "/v1/runs", _run("job")).json()["id"]
    assert _ask(shared, answer["access_token"], "POST", f"/v1/runs/{run}/steps", {"first_step": 0}).status_code == 200
    assert _ask(shared, answer["access_token"], "POST", "/v1/runs", _run("another")).status_code == 403
    created = audited(shared.ledger, f"subject={key['id']}")[0]
    assert (created["action"], created["actor"]) == ("api_key.created", f"workload:cluster:{POD}")
    assert created["after"]["token"] == {"issuer": cluster.issuer, "claims": {"sub": POD}}
    assert shared.sound()


def test_key_for_a_run_goes_on_with_it_and_with_no_other(shared: SeededLedger, cluster: IdentityProvider) -> None:
    first = _key(shared, workload_token(cluster))["access_token"]
    run = _ask(shared, first, "POST", "/v1/runs", _run("long job")).json()["id"]
    renewed = _key(shared, workload_token(cluster), run_id=run)
    assert (renewed["key"]["scope"], renewed["key"]["single_use"]) == (run, True)
    assert _ask(shared, renewed["access_token"], "POST", f"/v1/runs/{run}/steps", {"first_step": 0}).is_success
    assert _ask(shared, renewed["access_token"], "GET", f"/v1/runs/{shared.run}").status_code == 403
    shared.ledger.budget("other-team")
    other = shared.ledger.run("mimic/other-team")
    before = shared.rows()
    is_refused(_exchange(shared, workload_token(cluster), run_id=other), 403, "permission_denied")
    for unknown in ("run_19aa5b3c4d7b0c1", shared.budget, "x"):
        is_refused(_exchange(shared, workload_token(cluster), run_id=unknown), 404, "not_found")
    office = workload_token(cluster, sub="system:serviceaccount:icu:office")
    assert _exchange(shared, office, run_id=shared.run).json()["code"] == "invalid_request"
    assert shared.rows() == before


POLICIES, MAIN = "repo:hospital/policies:ref:refs/heads/main", "refs/heads/main"
RULED: list[tuple[dict[str, object], str, bool]] = [
    ({"kubernetes.io": {"namespace": "sweeps"}, "sub": "system:serviceaccount:sweeps:x"}, "trainer", True),
    ({"sub": POLICIES, "ref": MAIN}, "budget_admin", False),
    ({"sub": "system:serviceaccount:icu:office"}, "privacy_officer", False),
]


def test_rule_says_what_a_key_may_do(shared: SeededLedger, cluster: IdentityProvider) -> None:
    for claims, role, scoped in RULED:
        key = _key(shared, workload_token(cluster, **claims))["key"]
        assert (key["role"], key["scope"] is not None, key["single_use"]) == (role, scoped, False)


UNRULED: list[dict[str, object]] = [
    {"sub": f"{POD}2"},
    {"sub": POD.upper()},
    {"sub": POLICIES},
    {"sub": POLICIES.replace("policies", "policies-2"), "ref": MAIN},
    {"sub": POLICIES, "ref": "refs/heads/mine"},
    {"sub": "x", "kubernetes.io": "sweeps"},
    {"sub": "x", "kubernetes.io": {"namespace": ["sweeps"]}},
    {"sub": "x", "kubernetes.io": {"namespace": {"n": "sweeps"}}},
]
INVALID: list[tuple[dict[str, object], str, str]] = [
    ({"aud": "another"}, "audience", "wrong_audience"),
    ({"aud": ["ledger-ci"]}, "audience", "wrong_audience"),
    ({"exp": 1_700_000_000}, "expired", "expired"),
    ({"exp": None}, "when it expires", "malformed"),
    ({"nbf": 99_999_999_999}, "not valid yet", "not_yet_valid"),
]


def test_workload_without_a_rule_or_with_an_invalid_token_gets_nothing(
    shared: SeededLedger, cluster: IdentityProvider
) -> None:
    rules = "No rule of this service matches the token. The rules of its issuer compare the claims "
    for claims in UNRULED:
        assert _refused(shared, workload_token(cluster, **claims)) == f"{rules}kubernetes.io/namespace, ref, sub."
    sweeps = {"kubernetes.io": {"namespace": "sweeps"}}
    for place, (claims, words, why) in enumerate(INVALID):
        assert words in _refused(shared, workload_token(cluster, sub=f"job-{place}", **sweeps, **claims))
        [event] = audited(shared.ledger, f"subject=workload:cluster:job-{place}")
        assert (event["action"], event["actor"]) == ("workload_token.authentication_failed", "unauthenticated")
        assert event["after"] == {"issuer": cluster.issuer, "times": {why: 1}}
    for subject in (None, "a" * 300, "line\n", " ", "\u3164"):
        assert "`sub`" in _refused(shared, workload_token(cluster, **sweeps | {"sub": subject}))
    for subject in ("lost", "stranger"):
        words = _refused(shared, workload_token(cluster, sub=f"system:serviceaccount:icu:{subject}"))
        assert words.startswith("The rule for this token names")


def test_key_ends_with_the_token_or_before(
    shared: SeededLedger, cluster: IdentityProvider, ci: IdentityProvider
) -> None:
    now = int(time.time())
    assert 0 < _key(shared, workload_token(cluster, exp=now + 90))["expires_in"] <= 90
    assert 3590 < _key(shared, workload_token(cluster, exp=now + 86_400))["expires_in"] <= 3600
    assert 290 < _key(shared, workload_token(ci, aud="ledger-ci", jti="a"))["expires_in"] <= 300


AGAIN = "The token was exchanged before; get a new one."
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def _signed_otherwise(token: str) -> str:
    """The same token with the other signature that fits it, as those of ES256 come in pairs."""
    head, _, signature = token.rpartition(".")
    content = base64.urlsafe_b64decode(signature + "==")
    flipped = content[:32] + (ORDER - int.from_bytes(content[32:], "big")).to_bytes(32, "big")
    return f"{head}.{base64.urlsafe_b64encode(flipped).decode().rstrip('=')}"


def test_token_is_exchanged_once_where_its_issuer_says_so(
    shared: SeededLedger, cluster: IdentityProvider, ci: IdentityProvider
) -> None:
    for named in ({"jti": "one"}, {}):
        token = workload_token(ci, aud="ledger-ci", sub=ONCE, **named)
        _key(shared, token)
        assert _refused(shared, token) == AGAIN
    assert _refused(shared, workload_token(ci, "ES256", aud="ledger-ci", sub=ONCE, jti="one")) == AGAIN
    token = workload_token(ci, "ES256", aud="ledger-ci", sub=ONCE, iat=int(time.time()) - 7)
    _key(shared, token)
    assert _signed_otherwise(token) != token
    assert _refused(shared, _signed_otherwise(token)) == AGAIN
    _key(shared, workload_token(ci, aud="ledger-ci", sub=ONCE, jti="two"))
    often = workload_token(cluster, jti="one")
    assert _key(shared, often)["access_token"] != _key(shared, often)["access_token"]
    events = audited(shared.ledger, f"subject=workload:ci:{ONCE}")
    assert {event["action"] for event in events} == {"workload_token.authentication_failed"}
    assert events[0]["after"] == {"issuer": ci.issuer, "times": {"replayed": 1}}
    assert shared.sound()


def _with_its_own_key(cluster: IdentityProvider) -> str:
    mine = key_of("RS256", 99)
    header = {"alg": "RS256", "kid": "RS256-0", "jwk": public(mine), "jku": "https://evil.example/keys"}
    return signed(mine, header, cluster.claims(aud=AUDIENCE, sub=POD))


FORGED: dict[str, Callable[[IdentityProvider], str]] = {
    "a key of its own": _with_its_own_key,
    "an unknown key's id": lambda cluster: workload_token(cluster, header={"kid": "made up"}),
    "an unknown issuer": lambda cluster: workload_token(cluster, iss="https://evil.example"),
    "an issuer that is no text": lambda cluster: workload_token(cluster, iss=[cluster.issuer]),
    "no issuer": lambda cluster: workload_token(cluster, iss=None),
    "an access token": lambda cluster: workload_token(cluster, header={"typ": "at+jwt"}),
    "too long": lambda cluster: workload_token(cluster, more="x" * (MOST_CHARACTERS * 3 // 4)),
    "no token": lambda _: "x",
    "another alphabet": lambda _: "ä.ö.ü",
}
"""The checks of signatures are those of tokens of people: test_oidc_tokens.py forges in further ways."""


def test_forged_token_is_refused_and_not_recorded(
    shared: SeededLedger, cluster: IdentityProvider, ci: IdentityProvider
) -> None:
    before = shared.rows()
    for name, forged in FORGED.items():
        assert POD not in _refused(shared, forged(cluster)), name
    assert shared.rows() == before, "anyone could fill the audit log"
    ci.publish("RS256", number=7)
    keys = shared.ledger.http.app.state.keys.workloads.key_sets["ci"]
    assert keys.find("RS256-7")
    stolen = cluster.token("RS256", 7, header={"typ": None}, aud=[AUDIENCE], sub=POD)
    assert "not signed by" in _refused(shared, stolen)
    ci.publish(*ALGORITHMS)


def test_workload_never_approves(shared: SeededLedger, cluster: IdentityProvider) -> None:
    """A machine is no second person, and neither are the keys that it issues."""
    office = _key(shared, workload_token(cluster, sub="system:serviceaccount:icu:office"))["access_token"]
    soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    issued = _ask(shared, office, "POST", "/v1/api-keys", {"role": "privacy_officer", "expires_at": soon})
    before, path = shared.rows(), f"/v1/proposals/{shared.proposal}/approve"
    for key in (office, issued.json()["key"]):
        refused = is_refused(_ask(shared, key, "POST", path, {"reason": "Fine."}), 403, "permission_denied")
        assert "workload" in refused["detail"]
    assert set(changed(before, shared.rows())) <= {"api_keys"}


def test_form_is_taken_as_the_standard_says(shared: SeededLedger, cluster: IdentityProvider) -> None:
    fields = {"grant_type": GRANT, "subject_token": workload_token(cluster), "subject_token_type": JWT}
    shared.ledger.http.post("/v1/token", data=fields).raise_for_status()
    for wrong in ("grant_type=a&grant_type=b", "grant_type", "&".join(f"f{n}=1" for n in range(99)), "grant_type=ä"):
        headers = {"content-type": "application/x-www-form-urlencoded"}
        is_refused(shared.ledger.http.post("/v1/token", content=wrong, headers=headers), 422, "invalid_request")


def test_service_without_issuers_exchanges_nothing(ledger: Ledger, cluster: IdentityProvider) -> None:
    body = {"grant_type": GRANT, "subject_token": workload_token(cluster), "subject_token_type": JWT}
    is_refused(ledger.http.post("/v1/token", json=body), 404, "not_found")


def test_workload_and_strangers_are_held_up(cluster: IdentityProvider, tmp_path: Path) -> None:
    file = issuers_file(tmp_path, issuer_of(cluster))
    limits: dict[str, Any] = {"rate_limit_exchanges_per_minute": 0.2, "rate_limit_anonymous_per_second": 0.2}
    with open_ledger(tmp_path, workload_issuers_file=file, **limits) as ledger:
        shared = furnish(ledger)
        assert [_exchange(shared, workload_token(cluster)).status_code for _ in range(3)] == [200, 200, 429]
        other = workload_token(cluster, **{"sub": "x", "kubernetes.io": {"namespace": "sweeps"}})
        assert _exchange(shared, other).status_code == 200, "each workload has a limit of its own"
        refused = [_exchange(shared, "a.b.c") for _ in range(3)]
        assert [each.status_code for each in refused] == [401, 401, 429]
        assert int(refused[2].headers["retry-after"]) >= 1


def test_exchanges_are_limited_while_the_issuer_is_down(cluster: IdentityProvider, tmp_path: Path) -> None:
    file = issuers_file(tmp_path, issuer_of(cluster))
    cluster.down = True
    with open_ledger(tmp_path, workload_issuers_file=file, rate_limit_anonymous_per_second=0.2) as ledger:
        shared = furnish(ledger)
        statuses = [_exchange(shared, workload_token(cluster)).status_code for _ in range(3)]
    cluster.down = False
    assert statuses == [503, 503, 429]
