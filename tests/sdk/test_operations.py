"""Every operation for trainers and officers has a method, blocking and awaited, as docs/reference/client.md lists.

The API here answers as the OpenAPI document says: it takes what its schemas take, and gives what they describe.
"""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import httpx2
import jsonschema_rs
import pytest

from epsilon_ledger import (
    AccountAllocation,
    AsyncLedgerClient,
    BlockSchedule,
    EventCount,
    LedgerClient,
    Limit,
    Link,
    ParallelComposition,
    Proposal,
    Run,
    gaussian,
)
from tests.sdk.fake_ledger import open_budget
from tests.sdk.wire import KEY, URL

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final[dict[str, Any]] = json.loads((ROOT / "openapi" / "openapi.json").read_text())
FORMATS: Final = {"date-time": "2026-11-21T08:00:00Z", "date": "2026-11-21"}
DEEPEST: Final = 12


@dataclass(frozen=True)
class Operation:
    """An operation of the document."""

    method: str
    path: re.Pattern[str]
    description: dict[str, Any]


OPERATIONS: Final = {
    operation["operationId"]: Operation(
        method.upper(), re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), operation
    )
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "operationId" in operation
}


def operation_of(request: httpx2.Request) -> str:
    """Find the operation that a request asks for."""
    path = request.url.raw_path.decode().partition("?")[0]
    [found] = [name for name, each in OPERATIONS.items() if each.method == request.method and each.path.fullmatch(path)]
    return str(found)


def example(schema: dict[str, Any], depth: int = 0) -> Any:  # noqa: ANN401 - a value of any schema
    """Make a value with all members of a schema."""
    if "$ref" in schema:
        return example(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth + 1)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return example(next(each for each in schema[choice] if each.get("type") != "null"), depth + 1)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type", "string")
    kind = kind if isinstance(kind, str) else kind[0]
    if kind == "object":
        members: dict[str, Any] = schema.get("properties", {})
        return {name: example(each, depth + 1) for name, each in members.items()}
    if kind == "array":
        return [] if depth > DEEPEST else [example(schema["items"], depth + 1)]
    plain: dict[str, Any] = {"number": 1.0, "integer": 1, "boolean": True, "null": None}
    return plain.get(kind, FORMATS.get(schema.get("format", ""), "x"))


@dataclass
class DocumentedApi:
    """Answers each request with an example, if the document takes the request; notes the operations."""

    called: list[str] = field(default_factory=list)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.called.append(operation_of(request))
        description = OPERATIONS[self.called[-1]].description
        parameters = {
            each["name"] for each in map(_resolved, description.get("parameters", [])) if each["in"] == "query"
        }
        assert set(request.url.params) <= parameters, request.url
        if "requestBody" in description:
            schema = description["requestBody"]["content"]["application/json"]["schema"]
            whole = {"allOf": [schema], "components": DOCUMENT["components"]}
            jsonschema_rs.validate(whole, json.loads(request.content))
        else:
            # A POST has an object all the same, without any member.
            assert request.content == (b"{}" if request.method == "POST" else b"")
        status = min(description["responses"])
        content = description["responses"][status].get("content", {})
        if "application/json" not in content:
            return httpx2.Response(int(status), content=b"picture or text" if content else b"")
        body = example(content["application/json"]["schema"])
        if "next" in body:
            body["next"] = None
        sent = json.loads(request.content or b"{}")
        body |= {
            name: value for name, value in sent.items() if isinstance(value, str) and isinstance(body.get(name), str)
        }
        body |= {name: part for name, part in _named(request.url.path) if name in body}
        return httpx2.Response(int(status), json=body, headers={"ETag": '"1"'})


def _named(path: str) -> Iterator[tuple[str, str]]:
    """The members that name the object of a path, or the one above."""
    _, _, kind, *names = path.split("/")
    if names:
        yield {"runs": "run", "accounts": "account", "receivers": "receiver"}.get(kind, "id"), names[0]


def _resolved(parameter: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = parameter
    for part in parameter.get("$ref", "#").split("/")[1:]:
        found = DOCUMENT[part] if found is parameter else found[part]
    return found


PAGE: Final = (ROOT / "docs" / "reference" / "client.md").read_text()
ROW: Final = re.compile(r"^\| (`[^|]+`) \| ([^|]+) \|$", re.MULTILINE)
LIMIT: Final = Limit(1.0, 1e-5)
STEPS: Final = [EventCount(event=gaussian(20.0), count=10)]
AIM: Final[dict[str, Any]] = {"epsilon": 1.0, "delta": 1e-5}
POPULATION: Final[dict[str, Any]] = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
NOW: Final = datetime(2026, 11, 21, tzinfo=UTC)
PARTS: Final = ParallelComposition("A record belongs to one quarter.")
QUARTERS: Final = BlockSchedule("quarter", date(2999, 1, 1), LIMIT, prefix="visits-")
LINK: Final = Link("Study", "https://study.example.org/1")
UNLOCK: Final[Any] = {"unlock": {"type": "over_time", "over_seconds": 86_400, "parts": 1}}
TAG: Final[Any] = {"if_match": '"1"'}

CALLS: dict[str, Callable[[Any], Any]] = {
    "create_population": lambda c: c.create_population("mimic", **POPULATION, limit=LIMIT, size=7, planned=STEPS),
    "get_population": lambda c: c.get_population("pop_1"),
    "update_population": lambda c: c.update_population("pop_1", owner="office", labels={"ward": "icu"}, links=[LINK]),
    "list_populations": lambda c: c.list_populations(path="mimic", owner="office", labels={"ward": None}),
    "create_budget": lambda c: c.create_budget("icu", parent="mimic", limit=LIMIT, composition=PARTS, opens_at=NOW),
    "get_budget": lambda c: c.get_budget("bud_1"),
    "update_budget": lambda c: c.update_budget("bud_1", display_name="ICU", description="Of all wards."),
    "list_budgets": lambda c: c.list_budgets(parent="pop_1", page_size=1),
    "create_blocks": lambda c: c.create_blocks("bud_1", "quarter", start=date(2026, 2, 14), count=2, limit=LIMIT),
    "get_block_schedule": lambda c: c.get_block_schedule("bud_1"),
    "replace_block_schedule": lambda c: c.replace_block_schedule("bud_1", QUARTERS, reason="Visits go on.", **TAG),
    "remove_block_schedule": lambda c: c.remove_block_schedule("bud_1", reason="Visits & more end.", **TAG),
    "archive_account": lambda c: c.archive_account("bud_1", reason="Unused."),
    "unarchive_account": lambda c: c.unarchive_account("bud_1"),
    "get_account_history": lambda c: c.get_account_history("bud_1", max_points=7),
    "export_account_history": lambda c: c.export_account_history("bud_1"),
    "get_account_history_svg": lambda c: c.get_account_history_svg("bud_1", height=200),
    "get_population_registry_entry": lambda c: c.get_population_registry_entry("pop_1"),
    "get_population_statement": lambda c: c.get_population_statement("pop_1"),
    "get_population_statement_html": lambda c: c.get_population_statement_html("pop_1"),
    "update_run": lambda c: c.update_run("run_1", labels={"team": "icu"}),
    "list_runs": lambda c: c.list_runs(within="bud_1", status=["completed", "aborted"], created_after=NOW, q="x"),
    "export_runs": lambda c: c.export_runs(budget="bud_1", status="completed"),
    "get_run_history": lambda c: c.get_run_history("run_1", after="x"),
    "export_run_history": lambda c: c.export_run_history("run_1"),
    "get_run_history_svg": lambda c: c.get_run_history_svg("run_1", theme="dark", width=400),
    "get_run_registry_entry": lambda c: c.get_run_registry_entry("run_1"),
    "get_run_statement": lambda c: c.get_run_statement("run_1"),
    "get_run_statement_html": lambda c: c.get_run_statement_html("run_1"),
    "get_reservation": lambda c: c.get_reservation("res_1"),
    "cancel_reservation": lambda c: c.cancel_reservation("res_1", reason="It is not urgent."),
    "prioritize_reservation": lambda c: c.prioritize_reservation("res_1", 5, reason="It is urgent."),
    "create_experiment": lambda c: c.create_experiment("sweep", budget="bud_1", events=STEPS, mean=2.0, limit=LIMIT),
    "charge_experiment": lambda c: c.charge_experiment("exp_1"),
    "get_experiment": lambda c: c.get_experiment("exp_1"),
    "list_experiments": lambda c: c.list_experiments(budget="bud_1"),
    "get_limit": lambda c: c.get_limit("bud_1"),
    "change_limit": lambda c: c.change_limit("bud_1", LIMIT, reason="Enough.", **TAG),
    "get_allocation": lambda c: c.get_allocation("bud_1"),
    "replace_allocation": lambda c: c.replace_allocation("bud_1", UNLOCK, reason="Two trainers.", **TAG),
    "get_queue": lambda c: c.get_queue("bud_1"),
    "preview_wait": lambda c: c.preview_wait("bud_1", STEPS),
    "get_policy": lambda c: c.get_policy(),
    "get_policy of account": lambda c: c.get_policy("bud_1"),
    "replace_policy": lambda c: c.replace_policy({"max_delta": 1e-4}, reason="The board has met.", **TAG),
    "replace_policy of account": lambda c: c.replace_policy({"max_epsilon": 2.0}, reason="Here.", account="bud_1"),
    "list_proposals": lambda c: c.list_proposals(status="open", account="bud_1"),
    "get_proposal": lambda c: c.get_proposal("prp_1"),
    "approve_proposal": lambda c: c.approve_proposal("prp_1", reason="The board agrees."),
    "reject_proposal": lambda c: c.reject_proposal("prp_1"),
    "lift_quarantine": lambda c: c.lift_quarantine("bud_1", reason="It was restored."),
    "create_api_key": lambda c: c.create_api_key("viewer", name="dashboard", scope="bud_1", expires_at=NOW),
    "list_api_keys": lambda c: c.list_api_keys(page_size=1),
    "get_api_key": lambda c: c.get_api_key("key_1"),
    "rotate_api_key": lambda c: c.rotate_api_key("key_1", overlap_seconds=60),
    "revoke_api_key": lambda c: c.revoke_api_key("key_1", reason="Lost.", include_successors=True),
    "list_alerts": lambda c: c.list_alerts(account="bud_1", type="account.threshold_reached"),
    "get_alert_settings": lambda c: c.get_alert_settings("bud_1"),
    "replace_alert_settings": lambda c: c.replace_alert_settings("bud_1", thresholds=[0.5], forecast_days=3),
    "get_limit_equivalents": lambda c: c.get_limit_equivalents("bud_1", delta=1e-9),
    "get_forecast": lambda c: c.get_forecast("bud_1"),
    "create_receiver": lambda c: c.create_receiver(url="https://x.example.org", types=["account.threshold_reached"]),
    "list_receivers": lambda c: c.list_receivers(),
    "get_receiver": lambda c: c.get_receiver("rcv_1"),
    "enable_receiver": lambda c: c.enable_receiver("rcv_1"),
    "disable_receiver": lambda c: c.disable_receiver("rcv_1"),
    "delete_receiver": lambda c: c.delete_receiver("rcv_1"),
    "rotate_receiver_secret": lambda c: c.rotate_receiver_secret("rcv_1", overlap_seconds=60),
    "send_test_event": lambda c: c.send_test_event("rcv_1"),
    "list_deliveries": lambda c: c.list_deliveries(receiver="rcv_1", alert="evt_1", status="pending"),
    "retry_delivery": lambda c: c.retry_delivery("dlv_1"),
    "list_audit_events": lambda c: c.list_audit_events(action="population.*", since=NOW, until=NOW, order="oldest"),
    "export_audit_events": lambda c: c.export_audit_events(subject="run_1", order="oldest"),
    "list_decisions": lambda c: c.list_decisions(run="run_1", account="bud_1", decision="reported", since=NOW),
    "export_decisions": lambda c: c.export_decisions(run="run_1"),
    "create_verification": lambda c: c.create_verification(),
    "list_verifications": lambda c: c.list_verifications(),
    "get_verification": lambda c: c.get_verification("ver_1"),
    "get_signing_key": lambda c: c.get_signing_key(),
    "create_checkpoint": lambda c: c.create_checkpoint(),
    "list_checkpoints": lambda c: c.list_checkpoints(),
    "compute_epsilon": lambda c: c.compute_epsilon(STEPS, delta=1e-5, neighboring_relation="replace_one"),
    "compute_delta": lambda c: c.compute_delta(STEPS, epsilon=1.0),
    "compute_epsilon_trajectory": lambda c: c.compute_epsilon_trajectory(STEPS, delta=1e-5, max_points=9),
    "find_noise_multiplier": lambda c: c.find_noise_multiplier(gaussian(1.0), count=100, **AIM, other_events=STEPS),
    "find_sampling_probability": lambda c: c.find_sampling_probability(gaussian(1.0), count=100, **AIM),
    "find_max_steps": lambda c: c.find_max_steps(gaussian(1.0), **AIM, steps_per_epoch=20),
    "compute_laplace_cost": lambda c: c.compute_laplace_cost(l1_sensitivity=2.0, scale=1.0),
}
IN_STORY: Final = {"create_run", "get_run", "resume_run"}


def table() -> dict[str, set[str]]:
    """The operations of every method, as documented."""
    covered = PAGE.partition("## Methods")[2].partition("### Not covered")[0]
    return {row[1].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in ROW.finditer(covered)}


def test_each_operation_is_covered_or_left_out_for_reason() -> None:
    rows = ROW.findall(PAGE.partition("### Not covered")[2])
    assert all(reason.strip() for _, reason in rows)
    left_out = {operation for named, _ in rows for operation in re.findall(r"`(\w+)`", named)}
    covered = set[str]().union(*table().values())
    assert covered | left_out == OPERATIONS.keys()
    assert not covered & left_out
    assert left_out == {"getLiveness", "getReadiness", "getMetrics", "exchangeToken"}


def test_each_method_is_documented_and_called_here() -> None:
    public = {
        f"{prefix}{name}"
        for kind, prefix in ((LedgerClient, ""), (Run, "Run."))
        for base in kind.__mro__[:-1]
        for name, value in vars(base).items()
        if callable(value) and not name.startswith("_")
    }
    assert public - table().keys() == {"close", "Run.state_dict"}
    assert table().keys() <= public
    called = {name.partition(" ")[0] for name in CALLS}
    assert called | IN_STORY == {name for name in table() if "." not in name}


async def _finished(result: Any) -> Any:  # noqa: ANN401 - whatever the client answers
    if isinstance(result, AsyncIterator):
        return [item async for item in result]
    return await result


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
@pytest.mark.parametrize("name", CALLS)
def test_method_sends_what_document_takes_and_reads_what_it_describes(name: str, *, awaited: bool) -> None:
    api = DocumentedApi()
    if awaited:
        client = AsyncLedgerClient(URL, KEY, transport=httpx2.MockTransport(api))
        result = asyncio.run(_finished(CALLS[name](client)))
    else:
        with LedgerClient(URL, KEY, transport=httpx2.MockTransport(api)) as blocking:
            result = CALLS[name](blocking)
            result = list(result) if isinstance(result, Iterator) else result
    documented = table()[name.partition(" ")[0]]
    assert len(api.called) == 1
    assert set(api.called) <= documented
    returned = inspect.signature(getattr(LedgerClient, name.partition(" ")[0])).return_annotation
    assert (result is None) is (returned is type(None))


def test_change_that_another_person_has_to_approve_returns_its_proposal(admin: LedgerClient) -> None:
    budget = open_budget(admin, 1.0)
    assert admin.get_allocation(budget).allocation is None
    shared = admin.replace_allocation(budget, UNLOCK, reason="Two trainers.")
    assert isinstance(shared, AccountAllocation)
    assert admin.replace_allocation(budget, shared.allocation, reason="The same.") == shared
    admin.replace_policy({"max_epsilon": 2.0}, reason="Here.", account=budget)
    changed = [
        admin.replace_allocation(budget, None, reason="Back to steps."),
        admin.change_limit(budget, Limit(2.0, 1e-5), reason="The study goes on."),
        admin.replace_policy({}, reason="Free.", account=budget),
    ]
    proposed = [(each.kind, each.status) for each in changed if isinstance(each, Proposal)]
    assert proposed == [("allocation", "open"), ("limit", "open"), ("policy", "open")]
