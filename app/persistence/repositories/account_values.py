"""Read and write the JSON values in accounts' rows."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from app.accounting.events import event_from_dict, event_to_dict
from app.ledger.accounts.alerts import AlertSettings
from app.ledger.filter.filters import FilterWeights, PlanBound
from app.ledger.filter.limits import Limit, Unit
from app.ledger.settings.allocation import Allocation, allocation_of
from app.ledger.settings.policies import policy_of
from app.ledger.settings.policy_rules import Policy
from app.ledger.step_events import StepEvent
from app.persistence.tolerant_rows import json_object

LIMIT_COLUMNS: Final = ("limit_unit", "limit_value", "limit_delta")

SAME_NAMES: Final = (
    *("id", "parent_id", "population_id", "name", "path", "depth", "grid_version", "version"),
    *("limit_revision", "policy_revision", "allocation_revision"),
)
"""Fields of an account with a column of the same name and value."""


def limit_values(limit: Limit | None) -> dict[str, Any]:
    """Get the columns of a limit."""
    if limit is None:
        return dict.fromkeys(LIMIT_COLUMNS)
    return {"limit_unit": str(limit.unit), "limit_value": limit.value, "limit_delta": limit.delta}


def read_limit(row: Any) -> Limit | None:  # noqa: ANN401 - rows of any columns
    """Read the limit of a row, if it has one."""
    if row.limit_unit is None and row.limit_value is None and row.limit_delta is None:
        return None
    return Limit(row.limit_value, row.limit_delta, Unit(row.limit_unit))


def planned_text(planned: tuple[StepEvent, ...]) -> str:
    """Serialize a planned workload."""
    return json.dumps([{"event": event_to_dict(step.event), "count": step.count} for step in planned])


def planned_sha256(planned: tuple[StepEvent, ...]) -> str | None:
    """Compute the sha256 (hex) of a stored planned workload, if any."""
    return hashlib.sha256(planned_text(planned).encode()).hexdigest() if planned else None


def read_planned(text: str) -> tuple[StepEvent, ...]:
    """Parse a stored planned workload."""
    return tuple(StepEvent(event_from_dict(item["event"]), item["count"]) for item in json.loads(text))


def weights_facts(weights: FilterWeights | None) -> dict[str, Any] | None:
    """Convert frozen weights to JSON values."""
    if weights is None:
        return None
    plan = None if weights.plan is None else asdict(weights.plan)
    return {"indices": weights.indices, "deltas": weights.deltas, "reserve": weights.reserve, "plan": plan}


@lru_cache(maxsize=4096)
def weights_text(weights: FilterWeights | None) -> str | None:
    """Serialize frozen weights."""
    return None if weights is None else json.dumps(weights_facts(weights))


def read_weights(text: str | None) -> FilterWeights | None:
    """Parse stored frozen weights."""
    if text is None:
        return None
    return weights_of(json.loads(text))


def weights_of(facts: Mapping[str, Any]) -> FilterWeights:
    """Parse frozen weights that `weights_facts` wrote."""
    plan = facts["plan"]
    bound = None if plan is None else PlanBound(**plan)
    return FilterWeights(tuple(facts["indices"]), tuple(facts["deltas"]), facts["reserve"], bound)


@lru_cache(maxsize=1024)
def read_policy(text: str | None) -> Policy | None:
    """Parse a stored policy."""
    return None if text is None else policy_of(json_object(text))


@lru_cache(maxsize=1024)
def read_allocation(text: str | None) -> Allocation | None:
    """Parse a stored allocation."""
    return None if text is None else allocation_of(json_object(text))


@lru_cache(maxsize=256)
def read_alert_settings(thresholds: str, forecast_days: int) -> AlertSettings:
    """Parse the alert settings in an account's row."""
    return AlertSettings(tuple(json.loads(thresholds)), forecast_days)
