"""The operations of the OpenAPI document, to be walked by tests, and a comparison of answers with them."""

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import httpx2
from jsonschema_rs import Draft202012Validator

from app.configuration.settings import Settings
from app.main import create_app
from tests.conftest import SAMPLED

APP = create_app(Settings(database_url="sqlite:///never-opened.db"))
DOCUMENT: dict[str, Any] = APP.openapi()
NEEDED_QUERY = {"removeBlockSchedule": "?reason=Over."}
PUBLIC = {"/healthz", "/metrics", "/readyz"}
PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    described: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.described["operationId"])

    def at(self, **ids: str) -> str:
        return self.path.format(**ids) + NEEDED_QUERY.get(self.id, "")

    def takes(self, method: str, path: str) -> bool:
        return method == self.method and self._paths.fullmatch(path) is not None

    @cached_property
    def _paths(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(self.path)))


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    reference = value.get("$ref")
    if reference is None:
        return value
    section, name = reference.removeprefix("#/components/").split("/")
    return dict(DOCUMENT["components"][section][name])


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return _compiled(json.dumps(schema, sort_keys=True))


@cache
def _compiled(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema) | {"components": DOCUMENT["components"]})


def errors(schema: dict[str, Any], value: object) -> list[str]:
    return [f"{error.instance_path}: {error.message}" for error in validator(schema).iter_errors(value)]


def check_answer(answer: httpx2.Response) -> None:
    """Compare an answer with the document; paths that the document does not know are left alone."""
    found = [each for each in OPERATIONS if each.takes(answer.request.method, answer.request.url.path)]
    status = str(answer.status_code)
    if not found or (status == "304" and "304" in found[0].described["responses"]):
        return
    (operation,) = found
    content = operation.described["responses"].get(status, {}).get("content")
    what = f"{operation.id} answers {status} {answer.text[:500]}"
    assert content is not None, f"{what}: undocumented"
    if not answer.content:
        assert (status, content) == ("204", {}) or answer.request.method == "HEAD", what
        return
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    assert media_type in content, f"{what} as {media_type}: undocumented"
    body: Any = answer.json() if media_type.endswith("json") else answer.text
    wrong = errors(content[media_type]["schema"], body)
    assert not wrong, f"{what}, but not as its schema says: {wrong}"
    if media_type == PROBLEM_JSON:
        assert body["status"] == answer.status_code
        assert body["code"] in content[media_type]["examples"], f"{what}: {body['code']} is undocumented"


def _resolved(operation: dict[str, Any]) -> dict[str, Any]:
    responses = {status: dict(resolved(response)) for status, response in operation["responses"].items()}
    for response in responses.values():
        response["content"] = {
            kind: of | {"examples": {name: resolved(each) for name, each in of.get("examples", {}).items()}}
            for kind, of in response.get("content", {}).items()
        }
    parameters = [resolved(parameter) for parameter in operation.get("parameters", [])]
    return operation | {"responses": responses} | ({"parameters": parameters} if parameters else {})


OPERATIONS = [
    Operation(method.upper(), path, _resolved(described))
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
]
GUARDED = [operation for operation in OPERATIONS if operation.path not in PUBLIC | {"/v1/token"}]
POSTS = [operation for operation in GUARDED if operation.method == "POST"]
WITH_BODY = [operation for operation in GUARDED if "requestBody" in operation.described]
ANEW = {
    *("getForecast", "exportRuns", "exportDecisions", "exportAuditEvents", "exportRunHistory", "exportAccountHistory"),
    *("getRunStatement", "getRunStatementHtml", "getPopulationStatement", "getPopulationStatementHtml"),
}
READS = [operation for operation in GUARDED if operation.method == "GET" and operation.id not in ANEW]
OPTIONAL_BODY = {each.id for each in WITH_BODY if not each.described["requestBody"].get("required")}
CONDITIONAL = {
    each.id for each in GUARDED for parameter in each.described.get("parameters", ()) if parameter["name"] == "If-Match"
}
_PREFIXES = {"run": "run", "budget": "bud", "population": "pop", "reservation": "res", "key": "key", "account": "bud"}
_PREFIXES |= {"proposal": "prp", "receiver": "rcv", "delivery": "dlv", "experiment": "exp", "verification": "ver"}
NOWHERE = {f"{kind}_id": f"{prefix}_nowhere" for kind, prefix in _PREFIXES.items()}

MONTHLY: dict[str, Any] = {"period": "month", "start": "2026-01-01"}
CHEAP = {"type": "gaussian", "noise_multiplier": 50.0}
"""What a planning question is about: what it costs is no matter of who asks it, or how."""


def valid_body(operation: Operation, name: str = "n") -> dict[str, Any] | None:
    limit, plan = {"epsilon": 1.0, "delta": 1e-5}, {"events": [{"event": CHEAP}]}
    limited: dict[str, Any] = {"name": name, "limit": limit}
    bodies: dict[str, dict[str, Any]] = {
        "createPopulation": limited | {"privacy_unit": "user", "neighboring_relation": "add_or_remove_one"},
        **{each: {"owner": name} for each in ("updatePopulation", "updateBudget", "updateRun")},
        "createBudget": limited | {"parent": "mimic"},
        "createBlocks": MONTHLY | {"count": 2, "limit": limit},
        "replaceBlockSchedule": {"schedule": MONTHLY | {"limit": limit}, "reason": "Each month has a budget."},
        "createRun": {"name": name, "budget": "mimic/icu-team"},
        "createExperiment": {"name": name, "budget": "mimic/icu-team", "charging_mode": "each_run"},
        "authorizeSteps": {"event": SAMPLED},
        "createAttempt": {},
        "changeAccountLimit": {"limit": {"epsilon": 1.5, "delta": 1e-5}, "reason": "Another study."},
        "requestLimit": {"account": "mimic/icu-team", "limit": {"epsilon": 9.0, "delta": 1e-5}, "reason": "Epochs."},
        **{each: {"reason": "It is over."} for each in ("liftQuarantine", "cancelReservation")},
        "replaceOrganisationPolicy": {"policy": {"max_delta": 0.25}, "reason": "The board has met."},
        "replaceAccountPolicy": {"policy": {"max_delta": 0.2}, "reason": "The board has met."},
        "createApiKey": {"name": name, "role": "viewer"},
        **{each: {"events": [{"event": SAMPLED}]} for each in ("createReservation", "previewWait")},
        "replaceAllocation": {"allocation": {"aging_seconds": 60}, "reason": "Teams share it."},
        "prioritizeReservation": {"priority": 1, "reason": "It is urgent."},
        "commitReservation": {"steps_executed": 0},
        "createReceiver": {"url": "https://alerts.example/privacy"},
        "replaceAlertSettings": {"thresholds": [0.5, 0.9], "forecast_days": 14},
        **{each: plan | {"delta": 1e-5} for each in ("computeEpsilon", "computeEpsilonTrajectory")},
        "computeDelta": plan | {"epsilon": 1.0},
        "findNoiseMultiplier": {"event": CHEAP, "count": 9} | limit,
        "findMaxSteps": {"event": CHEAP} | limit,
        "findSamplingProbability": {"event": SAMPLED, "count": 9} | limit,
        "computeLaplaceCost": {"bound": 1e-5, "l1_sensitivity": 2},
    }
    return bodies.get(operation.id)


def valid_headers(operation: Operation) -> dict[str, str]:
    return {"If-Match": "*"} if operation.id in CONDITIONAL else {}
