"""The operations of the OpenAPI document, to be walked by tests."""

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from jsonschema_rs import Draft202012Validator

from app.main import create_app
from app.settings import Settings
from tests.conftest import SAMPLED

APP = create_app(Settings(database_url="sqlite:///never-opened.db"))
DOCUMENT: dict[str, Any] = APP.openapi()
NEEDED_QUERY = {"removeBlockSchedule": "?reason=Over."}
PUBLIC = {"/healthz", "/metrics", "/readyz"}
WITH_TOKENS = {"/v1/token"}
"""Operations of callers who have a token of somebody else, in the body."""


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    described: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.described["operationId"])

    def at(self, **ids: str) -> str:
        """The path with ids in it, and with a query if one is needed."""
        return self.path.format(**ids) + NEEDED_QUERY.get(self.id, "")

    def takes(self, method: str, path: str) -> bool:
        """Whether a request belongs to this operation."""
        return method == self.method and self._paths.fullmatch(path) is not None

    @cached_property
    def _paths(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(self.path)))


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    """A part of the document, or what its reference points to."""
    reference = value.get("$ref")
    if reference is None:
        return value
    section, name = reference.removeprefix("#/components/").split("/")
    found: dict[str, Any] = DOCUMENT["components"][section][name]
    return found


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """What compares values with a schema of the document."""
    return _compiled(json.dumps(schema, sort_keys=True))


@cache
def _compiled(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema) | {"components": DOCUMENT["components"]})


def errors(schema: dict[str, Any], value: object) -> list[str]:
    """What is wrong with a value by a schema of the document."""
    return [f"{error.instance_path}: {error.message}" for error in validator(schema).iter_errors(value)]


def _resolved(operation: dict[str, Any]) -> dict[str, Any]:
    """An operation with its parameters, responses and examples in it."""
    responses = {status: dict(resolved(response)) for status, response in operation["responses"].items()}
    for response in responses.values():
        response["content"] = {
            media_type: content
            | {"examples": {name: resolved(example) for name, example in content.get("examples", {}).items()}}
            for media_type, content in response.get("content", {}).items()
        }
    parameters = [resolved(parameter) for parameter in operation.get("parameters", [])]
    return operation | {"responses": responses} | ({"parameters": parameters} if parameters else {})


OPERATIONS = [
    Operation(method.upper(), path, _resolved(described))
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
]
GUARDED = [operation for operation in OPERATIONS if operation.path not in PUBLIC | WITH_TOKENS]
POSTS = [operation for operation in GUARDED if operation.method == "POST"]
WITH_BODY = [operation for operation in GUARDED if "requestBody" in operation.described]
ANEW = {
    "getForecast",
    *("exportRuns", "exportDecisions", "exportAuditEvents", "exportRunHistory", "exportAccountHistory"),
    *("getRunStatement", "getRunStatementHtml", "getPopulationStatement", "getPopulationStatementHtml"),
}
"""Reads that are made anew each time."""
READS = [operation for operation in GUARDED if operation.method == "GET" and operation.id not in ANEW]
"""What an asker may have already."""
OPTIONAL_BODY = {
    *("completeRun", "abortRun", "rotateApiKey", "revokeApiKey", "approveProposal", "rejectProposal"),
    *("rotateReceiverSecret", "archiveAccount", "unarchiveAccount"),
}


NOWHERE = {
    "run_id": "run_nowhere",
    "budget_id": "bud_nowhere",
    "population_id": "pop_nowhere",
    "reservation_id": "res_nowhere",
    "key_id": "key_nowhere",
    "account_id": "bud_nowhere",
    "proposal_id": "prp_nowhere",
    "receiver_id": "rcv_nowhere",
    "delivery_id": "dlv_nowhere",
    "experiment_id": "exp_nowhere",
    "verification_id": "ver_nowhere",
}
"""Ids that mean nothing, by the names of path parameters."""

CONDITIONAL = {
    *("changeAccountLimit", "replaceOrganisationPolicy", "replaceAccountPolicy"),
    *("replaceBlockSchedule", "removeBlockSchedule", "replaceAllocation"),
}
"""Operations that need If-Match."""

CHEAP = {"type": "gaussian", "noise_multiplier": 50.0}
"""What a planning question is about: what such a question costs is no matter of who asks it, or how."""


def valid_body(operation: Operation, name: str = "n") -> dict[str, Any] | None:
    """A body that the operation takes; None if it needs none."""
    limit = {"epsilon": 1.0, "delta": 1e-5}
    bodies: dict[str, dict[str, Any]] = {
        "createPopulation": {
            "name": name,
            "privacy_unit": "user",
            "neighboring_relation": "add_or_remove_one",
            "limit": limit,
        },
        "updatePopulation": {"owner": name},
        "updateBudget": {"owner": name},
        "updateRun": {"owner": name},
        "createBudget": {"name": name, "parent": "mimic", "limit": limit},
        "createBlocks": {"period": "month", "start": "2026-01-01", "count": 2, "limit": limit},
        "replaceBlockSchedule": {
            "schedule": {"period": "month", "start": "2026-01-01", "limit": limit},
            "reason": "Each month has a budget of its own.",
        },
        "createRun": {"name": name, "budget": "mimic/icu-team"},
        "createExperiment": {"name": name, "budget": "mimic/icu-team", "charging_mode": "each_run"},
        "authorizeSteps": {"event": SAMPLED},
        "createAttempt": {},
        "changeAccountLimit": {"limit": {"epsilon": 1.5, "delta": 1e-5}, "reason": "Another study."},
        "requestLimit": {"account": "mimic/icu-team", "limit": {"epsilon": 9.0, "delta": 1e-5}, "reason": "Epochs."},
        "liftQuarantine": {"reason": "The rows were restored."},
        "replaceOrganisationPolicy": {"policy": {"max_delta": 0.25}, "reason": "The board has met."},
        "replaceAccountPolicy": {"policy": {"max_delta": 0.2}, "reason": "The board has met."},
        "createApiKey": {"name": name, "role": "viewer"},
        "createReservation": {"plan": [{"event": SAMPLED}]},
        "previewWait": {"plan": [{"event": SAMPLED}]},
        "replaceAllocation": {"allocation": {"aging_seconds": 60}, "reason": "Teams share it."},
        "cancelReservation": {"reason": "It is not needed."},
        "prioritizeReservation": {"priority": 1, "reason": "It is urgent."},
        "commitReservation": {"steps_executed": 0},
        "createReceiver": {"url": "https://alerts.example/privacy"},
        "replaceAlertSettings": {"thresholds": [0.5, 0.9], "forecast_days": 14},
        "computeEpsilon": {"events": [{"event": CHEAP}], "delta": 1e-5},
        "computeDelta": {"events": [{"event": CHEAP}], "epsilon": 1.0},
        "computeEpsilonTrajectory": {"events": [{"event": CHEAP}], "delta": 1e-5},
        "findNoiseMultiplier": {"event": CHEAP, "count": 9} | limit,
        "findMaxSteps": {"event": CHEAP} | limit,
        "findSamplingProbability": {"event": SAMPLED, "count": 9} | limit,
        "computeLaplaceCost": {"bound": 1e-5, "l1_sensitivity": 2},
    }
    return bodies.get(operation.id)


def valid_headers(operation: Operation) -> dict[str, str]:
    """Headers without which the operation does nothing."""
    return {"If-Match": "*"} if operation.id in CONDITIONAL else {}
