"""Every form that scripts send is a call that the API describes: address, fields, and what is said of the answer."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import Ledger, open_ledger
from tests.dashboard.page_visitor import fields_of, visitor
from tests.dashboard.sample_hospital import Hospital
from tests.ledgers import schedule_blocks
from tests.waiting_reservations import OVER_TEN_DAYS, allocate, ask

DESCRIPTION: dict[str, Any] = json.loads((Path(__file__).parents[2] / "openapi" / "openapi.json").read_text())
PARTS = {"composition": "parallel", "attestation": "Each visit has one date."}
NUMBER, TEXT = {"number", "integer"}, {"string"}
TYPES = dict.fromkeys(("", "day", "moment"), TEXT) | dict.fromkeys(("number", "days", "percent"), NUMBER)
TYPES |= {"boolean": {"boolean"}, "list": {"array"}, "links": {"array"}}
TYPES |= {"labels": {"object"}, "json": {"object", "array"}}
"""Types of JSON that fields of a kind become."""

Operation = dict[str, Any]


def variants(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every schema that a value may have."""
    if "$ref" in schema:
        yield from variants(DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    elif inner := [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        for each in inner:
            yield from variants(each)
    else:
        yield schema


def within(schema: dict[str, Any], parts: list[str]) -> Iterator[dict[str, Any]]:
    """The schemas of a part of a value."""
    for each in variants(schema):
        if not parts:
            yield each
        elif parts[0].isdecimal() and "items" in each:
            yield from within(each["items"], parts[1:])
        elif parts[0] in each.get("properties", {}):
            yield from within(each["properties"][parts[0]], parts[1:])


def content(answer: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return schema


def operation_of(form: ET.Element) -> tuple[str, Operation]:
    """The operation that a form calls, and its name."""
    method, _, address = form.get("data-call", "").partition(" ")
    path = re.sub(r"/(\{\w+\}|[a-z]{3}_\w+)", "/{}", address.partition("?")[0])
    found = [known for known in DESCRIPTION["paths"] if re.sub(r"\{\w+\}", "{}", known) == path]
    assert found, f"no path is {path}"
    operation: Operation = DESCRIPTION["paths"][found[0]][method.lower()]
    return operation["operationId"], operation


@pytest.fixture(scope="module")
def forms(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[ET.Element]]:
    """The forms of all pages, by the operation that they call."""
    with open_ledger(hospital.copy(tmp_path_factory.mktemp("forms")).folder) as ledger:
        found = defaultdict(list)
        for page in (visitor(ledger, role).open(path) for role, path in places(ledger, hospital)):
            assert page.status == 200, page.path
            for form in page.forms().values():
                found[operation_of(form)[0]].append(form)
        return found


def places(ledger: Ledger, hospital: Hospital) -> Iterator[tuple[str, str]]:
    """Pages with forms: roles and addresses, of accounts and runs in every state that has some of its own."""
    visits = ledger.population("visits", **PARTS, neighboring_relation="replace_one", replacement_assumption=STAY)["id"]
    assert schedule_blocks(ledger, str(visits)).is_success
    shared = str(ledger.population("shared")["id"])
    over = str(ledger.budget("over", "shared")["id"])
    allocate(ledger, shared, rule="first_come", unlock=OVER_TEN_DAYS)
    ask(ledger, "waits", 400, budget="shared/over")
    assert ledger.post(f"/v1/accounts/{hospital.ids['staff-survey/burnout']}/archive", {}).status_code in {200, 409}
    paused = hospital.ids["imaging/segmentation/unet"]
    assert ledger.post(f"/v1/runs/{paused}/pause", None).is_success
    [receiver] = ledger.get("/v1/receivers", "admin").json()["items"]
    assert ledger.post(f"/v1/receivers/{receiver['id']}/test", None).is_success
    ids = hospital.ids
    accounts = [visits, shared, over, ids["mimic"], ids["mimic/icu-team"], ids["stroke-registry/outcome-models"]]
    runs = [paused, hospital.refused, ids["mimic/readmission/gradient-boosting"]]
    others = ["/", "/experiments", "/policies", "/policies?account=mimic", "/keys", "/alerts?account=mimic", "/audit"]
    for path in (*(f"/accounts/{each}" for each in accounts), *(f"/runs/{each}" for each in runs), *others):
        yield "admin", path
    yield "privacy_officer", "/approvals?account=mimic"
    yield "planner", "/approvals"
    assert ledger.post(f"/v1/receivers/{receiver['id']}/disable", None).is_success
    yield "admin", "/alerts"


STAY = "stay_in_their_parts"


def test_forms_have_the_fields_of_their_operation(forms: dict[str, list[ET.Element]]) -> None:
    assert len(forms) >= 30, sorted(forms)
    for name, form in ((name, form) for name, each in forms.items() for form in each):
        operation, address = operation_of(form)[1], form.get("data-call", "")
        body = content(operation.get("requestBody", {}))
        named = [each for each in fields_of(form) if f"{{{each.get('name')}}}" not in address]
        for field in named:
            found = list(within(body, field.get("name", "").split(".")))
            assert found, (name, field.attrib)
            check_field(field, found)
        there = {each.get("name", "").partition(".")[0] for each in named} | {form.get("data-reason", "")}
        there |= set(form.get("data-with", "").split())
        assert {each for one in variants(body) for each in one.get("required", [])} <= there, name
        assert ("428" in operation["responses"]) is ("data-if-match" in form.attrib), name


def check_field(field: ET.Element, schemas: list[dict[str, Any]]) -> None:
    """Hold that what a field becomes has the type, and a value, that is expected."""
    kind, value, boxed = field.get("data-type", ""), field.get("value", ""), field.get("type") == "checkbox"
    types = TYPES["boolean"] if boxed and kind != "list" else TYPES[kind]
    types = types | {"null"} if "data-null" in field.attrib else types
    expected = [each.get("type", "string") for each in schemas]
    assert types & {one for each in expected for one in ([each] if isinstance(each, str) else each)}, field.attrib
    if boxed and kind == "list":
        schemas = [inner for each in schemas for inner in variants(each.get("items", {}))]
    allowed = {one for each in schemas for one in each.get("enum", [each["const"]] if "const" in each else [])}
    chosen = [each.get("value", "") for each in field.iter("option")] or [value] * (
        boxed or field.get("type") == "hidden"
    )
    assert not allowed or {each for each in chosen if each} <= allowed, (field.attrib, allowed)


def test_forms_fill_in_what_they_know(forms: dict[str, list[ET.Element]]) -> None:
    for name, form in ((name, form) for name, each in forms.items() for form in each):
        fields = {each.get("name") for each in fields_of(form)}
        answers = [content(each) for status, each in operation_of(form)[1]["responses"].items() if status < "300"]
        for attribute, said in form.attrib.items():
            for place in re.findall(r"\{([\w.]+)\}", said):
                if attribute in {"data-confirm", "data-call"}:
                    inside = any(str(field).startswith(f"{place}.") for field in fields)
                    assert place in fields or inside, (name, attribute, place)
                else:
                    assert any(list(within(answer, place.split("."))) for answer in answers), (name, attribute, place)
        shown = form.get("data-shows")
        assert not shown or any(list(within(answer, [shown])) for answer in answers), name
        assert form.get("data-done"), name
        assert form.get("method") == "dialog", "without script it sends nothing"
