"""Files of organisations: every error has its line and says what would be right."""

import json

import jsonschema
import pytest

from app.provisioning.document import accounts_of, document_schema, read_document
from app.provisioning.errors import ProvisioningError
from app.provisioning.yaml_text import read_yaml
from tests.docs.markdown import ROOT

EXAMPLE = (ROOT / "examples" / "organisation.yaml").read_text()
START = """version: 1
populations:
  - name: mimic
    privacy_unit: patient
    neighboring_relation: add_or_remove_one
    limit: {epsilon: 8, delta: 1e-5}
"""


KEYS, VIEWER = "version: 1\napi_keys:\n", "  - {name: a, role: viewer}\n"
BUDGET = START + "    budgets:\n      - {limit: {epsilon: 1, delta: 1e-5}, "
EVENT = "\n      - event: {{type: {}, noise_multiplier: 1}}"


def refusal(text: str) -> str:
    with pytest.raises(ProvisioningError) as refused:
        read_document(text.encode(), "org.yaml")
    return str(refused.value)


def test_example_is_valid_by_the_schema_as_well() -> None:
    document = read_document(EXAMPLE.encode(), "organisation.yaml")
    paths = [account.path for account in accounts_of(document)]
    assert paths[:3] == ["mimic", "mimic/icu-team", "mimic/icu-team/sepsis"]
    schema = document_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(read_yaml(EXAMPLE.encode(), "").value, schema)


def test_json_is_a_file_as_well() -> None:
    value = read_yaml(EXAMPLE.encode(), "").value
    for indent in (None, 2):
        again = read_document(json.dumps(value, indent=indent).encode(), "organisation.json")
        assert again == read_document(EXAMPLE.encode(), "organisation.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "org.yaml: the file must be a mapping that begins with `version: 1`"),
        ("- 1", "the file must be a mapping"),
        ("populations: []", "org.yaml:1: version: is required"),
        ("version: 2", "org.yaml:1: version: must be 1"),
        ("version: 1\nkeys: []", "org.yaml:2: keys: unknown member; known here: api_keys, policy"),
        ("version: 1\npolcy: {}", "did you mean policy?"),
        ("version: 1\npolicy:\n  max_epsilon: '1'", "org.yaml:3: policy.max_epsilon: must be a number"),
        ("version: 1\npolicy: {max_epsilon: .nan}", "org.yaml:2: .nan is not a finite number"),
        ("version: 1\npolicy: {max_epsilon: -1}", "org.yaml:2: policy.max_epsilon: must be greater than 0"),
        ("version: 1\npolicy: {require_limit: yes}", "org.yaml:2: policy.require_limit: must be true or false"),
        ("version: 1\npopulations:\n  - mimic", "org.yaml:3: populations.0: must be a mapping"),
        (START + "    budgets:\n      - name: icu\n", "org.yaml:8: populations.0.budgets.0.limit: is required"),
        (START + "    size: 1.5\n", "org.yaml:7: populations.0.size: must be an integer"),
        (START + "    owner: ada\n    privacy_units: x\n", "did you mean privacy_unit?"),
        (START + "    policy: {approvers_to_create_population: 2}\n", "belongs to the organisation's policy"),
        (START + "    policy: {approvers_to_raise_limit: 1}\n", "belongs to the organisation's policy"),
        (START + "    alert_settings: {thresholds: [0.8, 0.5]}\n", "org.yaml:7: populations.0.alert_settings: Thre"),
        (START + "    alert_settings: {thresholds: [0]}\n", "alert_settings.thresholds.0: must be greater than 0"),
        (START + "    attestation: disjoint\n", "need parts"),
        (f"{BUDGET}name: a/b}}\n", "org.yaml:8: populations.0.budgets.0.name: A name has no slash"),
        (f"{BUDGET}name: q, opens_at: 2027-01-01T00:00:00Z, closes_at: 2026-01-01T00:00:00Z}}", "yaml:8: mimic/q: "),
        (f"{START}    planned:{EVENT.format('gausian')}", "planned.0.event.type: 'gausian' is no event type"),
        (f"{START}    planned:{EVENT.format('gaussian') * 2}", "org.yaml:3: mimic: planned[0] has no count"),
        (START + START.split("\n", 2)[2], "org.yaml:7: there is another account mimic in this file"),
        (KEYS + VIEWER * 2, "org.yaml:4: there is another API key 'a'"),
        ("version: 1\napi_keys: [{name: a, role: owner}]", "org.yaml:2: api_keys.0.role: "),
        ("version: 1\napi_keys: [{role: viewer}]", "api_keys.0.name: is required"),
        ("version: 1\napi_keys: [{name: a, role: viewer, key: secret}]", "api_keys.0.key: unknown member"),
        ("version: 1\napi_keys: [{name: a, role: viewer, expires_at: 2027-01-01}]", "a time with its zone"),
        ("version: 1\napi_keys: [{name: a, role: viewer, expires_at: '20270101'}]", "a time with its zone"),
        ("version: 1\napi_keys: [{name: 12, role: viewer}]", "api_keys.0.name: must be a string; put it into quotes"),
        ("version: 1\napi_keys: [{name: 695e05, role: viewer}]", "name: must be a string; put it into quotes"),
        ("version: 1\napi_keys:\n  - {role: viewer, name: 695e0514}", "yaml:3: 695e0514 is not a finite number; if"),
    ],
)
def test_error_has_its_line_and_the_right_form(text: str, said: str) -> None:
    assert said in refusal(text)


def test_errors_have_a_line_each_and_are_cut_after_twenty() -> None:
    lines = refusal(KEYS + "  - {nme: a, role: viewer}\n" * 50).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "org.yaml: and 80 more errors"
    assert [int(line.split(":")[1]) for line in lines[:-1]] == sorted(int(line.split(":")[1]) for line in lines[:-1])
