"""Entries of the public registry of deployments are right by its schema once people filled in what only they know.

`registry_shape.json` has the names, types and choices that the schema of opendp/deployments-registry-data demanded at
its commit 3e9c812a924cf01d228f26f6c462c59c391c3f2a, and none of its texts.
"""

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from app.ledger.accounts.deployments import DEPLOYMENT_FIELDS
from tests.api.conftest import SeededLedger
from tests.api.trainer import is_refused
from tests.service.tampering import shift_curve, tampering

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "registry_shape.json").read_text())
WRITTEN = {
    "data_curators": "ICU team; Hospital of Exampleton",
    "intended_use": "Beds are planned by expected stays.",
    "data_product_type": "Machine learning model",
    "data_product_region": "Switzerland",
    "publication_date": "2026-12-03",
    "data_product_sector": "Healthcare",
    "data_domain": "Stays of patients with at most 48 hours of measurements.",
    "unprotected_quantities": "The number of patients.",
    "model_name": "Central",
    "actors": "The hospital, which is trusted, and readers, who are not.",
    "release_type": "One release",
    "data_source_type": "Static",
    "access_type": "Non-interactive",
    "post_processing": "None.",
    "preprocessing_and_hyperparameter_tuning": "Fixed beforehand on public data.",
    "justification": "The ethics board has chosen the limit.",
    "sources": "https://hospital.example/models/stays",
    "registry_authors": "Dr. Osei",
}
"""A value for each field."""


def errors(entry: dict[str, Any]) -> list[str]:
    """What the registry's own check finds wrong."""
    checker = Draft7Validator(SCHEMA, format_checker=Draft7Validator.FORMAT_CHECKER)
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(entry)]


def answer(seeded: SeededLedger, path: str) -> dict[str, Any]:
    return dict(seeded.ledger.get(f"/v1/{path}/registry-entry").raise_for_status().json())


def properties(path: str) -> dict[str, Any]:
    """The part of the schema for a field of an entry, by its path."""
    found: dict[str, Any] = reduce(lambda part, name: part["properties"][name], path.split("."), SCHEMA)
    return found


def test_fields_are_those_of_the_schema() -> None:
    assert WRITTEN.keys() == DEPLOYMENT_FIELDS.keys()
    for name, field in DEPLOYMENT_FIELDS.items():
        said = properties(f"deployment.{field.part}.{name}")
        assert list(field.choices) == said.get("enum", []), name
        assert said["type"] == ("array" if field.is_list else "string"), name
        assert said.get("tier", 1) == field.tier, name
        parts = properties(f"deployment.{field.part}").get("required", [])
        assert field.required == (field.part == "basic" and name in parts), name


@pytest.mark.parametrize("kind", ["runs", "populations"])
def test_entry_with_all_fields_is_right(seeded: SeededLedger, kind: str) -> None:
    ledger, about = seeded.ledger, {"display_name": "Stays", "description": "Predicts a stay in intensive care."}
    shared = {name: value for name, value in WRITTEN.items() if name != "intended_use"} | {
        "release_type": "Many releases"
    }
    assert ledger.patch(f"/v1/populations/{seeded.population}", about | {"deployment": shared}).is_success
    own = {name: WRITTEN[name] for name in ("intended_use", "release_type")}
    target = f"{kind}/{seeded.run if kind == 'runs' else seeded.population}"
    assert ledger.patch(f"/v1/{target}", about | {"deployment": own}).is_success
    found = answer(seeded, target)
    entry = found["entry"]
    assert (errors(entry), found["missing"]) == ([], [])
    assert errors(yaml.safe_load(yaml.safe_dump(entry))) == []
    assert (entry["url_slug"], entry["tier"], entry["status"]) == (
        "stays-icu-team-hospital-of-exampleton-2026",
        3,
        "Draft",
    )
    parts = entry["deployment"]
    assert parts["basic"]["data_curators"] == ["ICU team", "Hospital of Exampleton"]
    assert parts["deployment_model"]["release_type"] == "One release", "the run's own, and not the population's"
    loss = parts["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 3.0, "delta": 1e-5}, (
        "of a run's model, too: the population's limit"
    )
    assert loss["privacy_unit"] == "patient"
    assert "with or without one patient's records" in loss["privacy_unit_details"]
    assert "random noise (Gaussian distribution)" in parts["implementation"]["mechanisms"]


def test_registry_misses_the_facts_that_were_not_written(seeded: SeededLedger) -> None:
    for path in (f"runs/{seeded.run}", f"populations/{seeded.population}"):
        found = answer(seeded, path)
        missing = {each["path"]: each for each in found["missing"]}
        assert missing.keys() == {
            "deployment.basic.description",
            *(f"deployment.{field.part}.{name}" for name, field in DEPLOYMENT_FIELDS.items()),
        }
        required = {path.rpartition(".")[2] for path, each in missing.items() if each["required"]}
        assert {each.split("'")[1] for each in errors(found["entry"])} == required
        assert missing["deployment.basic.intended_use"]["metadata"] == "deployment.intended_use"
        assert found["entry"]["tier"] == 1
        assert all(each["words"].endswith(".") for each in missing.values())


def test_exceeded_limit_gives_no_parameters(seeded: SeededLedger) -> None:
    assert seeded.steps(count=10**5, mode="report").json()["overdrawn"]
    loss = answer(seeded, f"runs/{seeded.run}")["entry"]["deployment"]["privacy_loss"]
    assert "privacy_parameters" not in loss
    assert loss["privacy_parameters_details"] == "The limit was exceeded, so no parameters are proven."


def test_quarantined_account_has_no_entry(seeded: SeededLedger) -> None:
    with tampering(seeded.ledger.database) as tx:
        shift_curve(tx, "mimic", 1)
    assert not seeded.ledger.post("/v1/verifications", None, "auditor").json()["sound"]
    is_refused(seeded.ledger.get(f"/v1/runs/{seeded.run}/registry-entry"), 409, "account_quarantined")
