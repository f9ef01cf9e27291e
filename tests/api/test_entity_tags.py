"""Reads carry an ETag: an asker that has it gets 304, and it changes when what it stands for does."""

import pytest

from tests.api.conftest import SeededLedger
from tests.api.operations import READS, Operation
from tests.soak import thinned

UNMOVED = {
    *(
        "listApiKeys",
        "getApiKey",
        "listAuditEvents",
        "getAccountLimit",
        "listProposals",
        "getProposal",
        "getReservation",
    ),
    *("listAlerts", "getAlertSettings", "listReceivers", "getReceiver", "listDeliveries"),
    *(
        "getSigningKey",
        "listCheckpoints",
        "listVerifications",
        "getVerification",
        "getOrganisationPolicy",
        "getAccountPolicy",
        "listExperiments",
        "getExperiment",
    ),
}
"""What a charge to the run of the seeded ledger does not change, unless it reaches a threshold."""

each_read = pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.id)
some_reads = pytest.mark.parametrize("operation", thinned(READS, 4), ids=lambda operation: operation.id)
"""One place answers them all so: `make soak` tries every one."""


@each_read
def test_a_read_carries_a_tag_and_an_asker_that_has_it_gets_304(shared: SeededLedger, operation: Operation) -> None:
    path = operation.at(**shared.ids())
    first = shared.ledger.get(path, "admin")
    tag = first.headers["etag"]
    assert first.status_code == 200
    assert tag.startswith('"')
    assert tag.endswith('"')
    assert "no-store" not in first.headers.get("cache-control", "")
    assert "public" not in first.headers.get("cache-control", "")
    ways = (tag, f"W/{tag}", f'"other", {tag}', f'{tag},"other"', "*", f"  {tag}  ")
    for known in ways if operation.id == "getRun" else ways[:2]:
        again = shared.ledger.get(path, "admin", If_None_Match=known)
        assert (again.status_code, again.content) == (304, b""), known
        assert again.headers["etag"] == tag


@some_reads
def test_an_asker_with_another_tag_gets_everything(shared: SeededLedger, operation: Operation) -> None:
    path = operation.at(**shared.ids())
    everything = shared.ledger.get(path, "admin").content
    for known in ('"other"', "", 'W/"other"', "nonsense", '"', "W/") if operation.id == "getRun" else ('"other"',):
        reply = shared.ledger.get(path, "admin", If_None_Match=known)
        assert (reply.status_code, reply.content) == (200, everything), known


@pytest.mark.parametrize(
    "operation", thinned([read for read in READS if read.id not in UNMOVED], 3), ids=lambda operation: operation.id
)
def test_a_tag_changes_with_a_charge_and_only_then(seeded: SeededLedger, operation: Operation) -> None:
    path = operation.at(**seeded.ids())
    steps = f"/v1/runs/{seeded.run}/steps"
    tag = seeded.ledger.get(path).headers["etag"]
    seeded.ledger.post(f"{steps}?dry_run=true", {"count": 2}, "trainer")
    seeded.ledger.post(steps, {"first_step": 0}, "trainer")
    seeded.ledger.post("/v1/runs/run_nothing/steps", {}, "trainer")
    seeded.ledger.post(steps, {"count": 0}, "trainer")
    assert seeded.ledger.get(path).headers["etag"] == tag
    assert seeded.ledger.get(path, If_None_Match=tag).status_code == 304
    assert seeded.ledger.post(steps, {}, "trainer").status_code == 200
    changed = seeded.ledger.get(path, If_None_Match=tag)
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


def test_a_refusal_changes_what_was_decided_and_nothing_else(seeded: SeededLedger) -> None:
    paths = {operation.id: operation.at(**seeded.ids()) for operation in READS}
    tags = {name: seeded.ledger.get(path, "admin").headers["etag"] for name, path in paths.items()}
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"count": 10**6}, "trainer").status_code == 403
    again = {name: seeded.ledger.get(path, "admin").headers["etag"] for name, path in paths.items()}
    assert {name for name in tags if tags[name] != again[name]} == {
        "getRunHistory",
        "getRunHistorySvg",
        "getRunHistoryPng",
        "listDecisions",
    }


def test_a_change_of_state_changes_the_tag_of_the_run(seeded: SeededLedger) -> None:
    path = f"/v1/runs/{seeded.run}"
    tags = [seeded.ledger.get(path).headers["etag"]]
    for action in ("pause", "resume", "complete"):
        seeded.ledger.post(f"{path}/{action}", None, "trainer")
        tags.append(seeded.ledger.get(path).headers["etag"])
    assert len(set(tags)) == 4


def test_tags_of_different_things_differ(shared: SeededLedger) -> None:
    tags = [shared.ledger.get(operation.at(**shared.ids()), "admin").headers["etag"] for operation in READS]
    assert len(set(tags)) == len(tags)


def test_nothing_that_is_refused_carries_a_tag(shared: SeededLedger) -> None:
    for path in ("/v1/runs/run_nothing", "/v1/runs?limit=0"):
        reply = shared.ledger.get(path, If_None_Match="*")
        assert reply.status_code in {404, 422}
        assert "etag" not in reply.headers


@some_reads
def test_head_answers_as_get_but_for_the_body(shared: SeededLedger, operation: Operation) -> None:
    path, headers = operation.at(**shared.ids()), shared.ledger.headers("admin") | {"X-Request-Id": "mine"}
    whole, head = (shared.ledger.http.request(method, path, headers=headers) for method in ("GET", "HEAD"))
    assert (whole.status_code, head.status_code, head.content) == (200, 200, b"")
    assert head.headers == whole.headers


def test_head_is_not_for_what_only_writes(shared: SeededLedger) -> None:
    reply = shared.ledger.http.head(f"/v1/runs/{shared.run}/steps", headers=shared.ledger.headers("admin"))
    assert (reply.status_code, reply.headers["allow"], reply.content) == (405, "POST", b"")
