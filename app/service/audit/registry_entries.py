"""Entries of the public registry of deployments (github.com/opendp/deployments-registry-data), out of statements.

What the ledger knows is filled in; `DEPLOYMENT_FIELDS` are what people wrote, and what is still missing is listed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.ledger.accounts.deployments import DEPLOYMENT_FIELDS
from app.ledger.accounts.metadata import title_of
from app.ledger.filter.limits import Limit, Unit
from app.ledger.wording import joined
from app.service.audit.limit_standing import largest
from app.service.audit.statements import population_payload, run_payload
from app.service.auth.request_context import RequestContext

_UNIT_DETAILS: Final = "Neighbouring data sets: a result is computed {difference}."
_GUARANTEE: Final = (
    "Bound on all releases about these people together, whatever was decided while looking at earlier results: {limit}."
)
_NOTHING_PROVEN: Final = "The limit was exceeded, so no parameters are proven."
_COMPOSITION: Final = (
    "Privacy filters with limits that were fixed beforehand, for adaptively chosen mechanisms: by Rényi divergences, "
    "and by privacy loss distributions for planned events. Everything is charged to the population; a run adds to it."
)
_SLUG: Final = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class MissingField:
    """A field that only people can fill in, and have not.

    Args:
        path: its place in the entry.
        metadata: the member of an account's metadata that fills it in.
        words: what it asks for.
        tier: from which tier of entries on it is expected.
        required: whether the registry refuses the entry without it.
    """

    path: str
    metadata: str
    words: str
    tier: int
    required: bool


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """An entry as JSON, which is also YAML, and what it still lacks."""

    entry: Mapping[str, Any]
    missing: Sequence[MissingField]


def run_entry(context: RequestContext, run_id: str) -> RegistryEntry:
    """Build the entry of a run; raises as `run_statement`."""
    payload = run_payload(context, run_id, None)
    return _entry(payload, payload["run"], payload["totals"])


def population_entry(context: RequestContext, population_id: str) -> RegistryEntry:
    """Build the entry of all that was released about a population; raises as `population_statement`."""
    payload = population_payload(context, population_id, None)
    return _entry(payload, payload["population"], [payload["loss"]])


def _entry(payload: Mapping[str, Any], about: Mapping[str, Any], totals: Sequence[Mapping[str, Any]]) -> RegistryEntry:
    written: Mapping[str, str] = payload["deployment"]
    missing = [
        MissingField(f"deployment.{field.part}.{name}", f"deployment.{name}", field.words, field.tier, field.required)
        for name, field in DEPLOYMENT_FIELDS.items()
        if name not in written
    ]
    name = about["display_name"] or title_of(about["name"], about.get("number", 1))
    parts = _known_parts(payload, totals)
    parts["basic"] = {"name": name} | ({"description": about["description"]} if about["description"] else {})
    if not about["description"]:
        missing.insert(0, MissingField("deployment.basic.description", "description", "What it is.", 1, required=True))
    for key, value in written.items():
        field = DEPLOYMENT_FIELDS[key]
        parts.setdefault(field.part, {})[key] = field.items(value) if field.is_list else value
    if "registry_authors" not in written:  # the registry refuses the part without them
        parts.pop("administrative", None)
    slug = "-".join(_slug(each) for each in (name, written.get("data_curators"), _year(written)) if each)
    tier = min((each.tier for each in missing), default=4) - 1
    entry = {"url_slug": slug, "status": "Draft", "tier": max(1, tier), "deployment": parts}
    return RegistryEntry(entry, missing)


def _known_parts(payload: Mapping[str, Any], totals: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Build what the ledger knows of a deployment, by the parts of an entry."""
    proven = [Limit.of(each["proven"]) for each in totals if each["proven"]]
    loss: dict[str, Any] = {
        "privacy_unit": joined(dict.fromkeys(each["privacy_unit"] for each in payload["protected"])),
        "privacy_unit_details": " ".join(_UNIT_DETAILS.format_map(each) for each in payload["protected"]),
    }
    if len(proven) == len(totals):  # each person is in one of the populations
        bound = _of_all(proven)
        variant, loss["privacy_parameters"] = _parameters(bound)
        loss["privacy_parameters_details"] = _GUARANTEE.format(limit=str(bound))
    else:
        variant, loss["privacy_parameters_details"] = "Approximate DP", _NOTHING_PROVEN
    words = "; ".join(f"{each['releases']:,} times {each['words']}" for each in payload["mechanisms_in_words"])
    kept = f"Accounted by Epsilon Ledger {payload['versions']['service']}."
    return {
        "dp_variant": {"variant_name": variant},
        "privacy_loss": loss,
        "accounting": {"composition": _COMPOSITION},
        "implementation": {"mechanisms": f"{words}. {kept}" if words else kept},
    }


def _of_all(limits: Sequence[Limit]) -> Limit:
    """Find a limit that holds for each of some: in their unit, or else the epsilon and delta that follow."""
    if not all(each.has_rule_of(limits[0]) for each in limits):
        limits = [Limit(each.epsilon, each.shown_delta) for each in limits]
    return largest(limits)


def _parameters(limit: Limit) -> tuple[str, Mapping[str, float]]:
    """Get the registry's name for the kind of a limit, and its parameters; of mu, the rho that follows."""
    if limit.unit is Unit.EPSILON:
        return ("Approximate DP", limit.facts()) if limit.delta else ("Pure DP", {"epsilon": limit.value})
    assert limit.rho is not None, "it follows from mu"
    return "Zero-concentrated DP", {"rho": limit.rho} | ({"delta": limit.delta} if limit.delta else {})


def _slug(text: str) -> str:
    """Write a text as the registry's own script does."""
    return _SLUG.sub("-", text.lower().replace("_", "-")).strip("-")


def _year(written: Mapping[str, str]) -> str | None:
    day = written.get("publication_date")
    return None if day is None else day.split("-", maxsplit=1)[0]
