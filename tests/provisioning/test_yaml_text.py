"""YAML as it is read: strictly, by version 1.2, and never as more than data."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.provisioning.errors import ProvisioningError
from app.provisioning.yaml_text import MAX_DEPTH, read_yaml, write_yaml
from tests.each import for_each


def read(text: str | bytes) -> Any:  # noqa: ANN401 - YAML is anything
    return read_yaml(text if isinstance(text, bytes) else text.encode(), "file.yaml").value


SCALARS: list[tuple[str, object]] = [
    *((text, 1e-5) for text in ("1e-5", "1E-05", "1.0e-5")),
    *((text, text) for text in ("no", "on", "1_000", "12:30:45", "2027-01-01", "2027-01-01T00:00:00Z", "1e", ".")),
    *(("-.5", -0.5), ("8.", 8.0), ("8", 8), ("010", 10), ("0o10", 8), ("0x10", 16), ("'1e-5'", "1e-5")),
    *(("true", True), ("~", None), ("", None), ("a:", {"a": None}), ("<<: 1", {"<<": 1})),
    ("a: [1, {b: c}]", {"a": [1, {"b": "c"}]}),
]


@for_each(SCALARS)
def test_plain_scalars_are_of_yaml_1_2(case: tuple[str, object]) -> None:
    text, value = case
    found = read(text)
    assert (found, type(found)) == (value, type(value))


# PyYAML takes some control characters for line breaks, as YAML 1.1 did; no name and no reason of a ledger has any.
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"], include_characters="\n\t"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_written_value_is_read_as_the_same_value(value: object) -> None:
    found = read(write_yaml(value))
    assert json.dumps(found) == json.dumps(value)


@given(JSON.filter(lambda value: not yaml.reader.Reader.NON_PRINTABLE.search(json.dumps(value, ensure_ascii=False))))
def test_json_is_read_as_json_reads_it(value: object) -> None:
    assert json.dumps(read(json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8"))) == json.dumps(value)


@given(
    st.sampled_from(
        [
            "1e-5",
            "no",
            "1e5",
            "010",
            "null",
            "~",
            "2027-01-01",
            "1_0",
            "=",
            "<<",
            "0o7",
            ".5",
            "1:30",
            "695e0514",
            "695e05",
        ]
    )
)
def test_text_that_looks_like_another_type_stays_text_for_both_versions(text: str) -> None:
    written = write_yaml({"name": text})
    assert read(written) == {"name": text}
    assert yaml.safe_load(written) == {"name": text}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcde", "bcdef", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "file.yaml:3: the key 'a' is given twice; first on line 1"),
        ("x:\n  - a: 1\n    a: 1", "file.yaml:3: the key 'a' is given twice; first on line 2"),
        ("1: x", "file.yaml:1: a key must be text; put it into quotes"),
        ("a: 1\ntrue: x", "file.yaml:2: a key must be text"),
        ("? [a]\n: x", "file.yaml:1: a key must be text"),
        (BOMB, "values, aliases expanded"),
        ("&a [*a]", "nested more than 64 deep"),
        ("&a {b: *a}", "nested more than 64 deep"),
        ("a: *missing", "file.yaml:1: not YAML: found undefined alias"),
        ("[" * 1000, "nested more than 64 deep"),
        ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "nested more than 64 deep"),
        ("a: !!python/object/apply:os.system [ls]", "file.yaml:1: the tag 'tag:yaml.org,2002:python/object/apply"),
        ("a: !secret x", "file.yaml:1: the tag '!secret' is not supported"),
        ("a: !!binary aGk=", "is not supported"),
        ("a: !!timestamp 2027-01-01", "is not supported"),
        ("!!set {a, b}", "is not supported"),
        ("a: !!int x", "'x' is no integer"),
        ("a: !!float x", "is not a finite number"),
        ("a: .inf", "file.yaml:1: .inf is not a finite number"),
        ("a: 1\nb: -.INF", "file.yaml:2: -.INF is not a finite number"),
        ("a: .nan", ".nan is not a finite number"),
        ("a: 1e400", "1e400 is not a finite number"),
        ("a: " + "9" * 5000, "is too large"),
        ("a: 1\n---\nb: 1", "but found another document"),
        ("a: 1\n\tb: 1", "file.yaml:2: not YAML"),
        ("a: 'x", "not YAML"),
        ("a: x\0y", "file.yaml:1: the character 0x00 is not allowed"),
        ("a: 1\nb: \x07", "file.yaml:2: the character 0x07 is not allowed"),
        (b"a: 1\nb: \xff", "file.yaml:2: the file is not UTF-8"),
        ('a: "\\ud800"', "half of a surrogate pair"),
        (b"a" * (5 << 20), "larger than 4 MiB"),
    ],
)
def test_other_than_plain_data_is_refused_with_its_line(text: str | bytes, said: str) -> None:
    with pytest.raises(ProvisioningError) as refused:
        read(text)
    assert said in str(refused.value)


def test_keys_and_items_have_their_lines() -> None:
    document = read_yaml(b"version: 1\npopulations:\n  - name: a\n    limit:\n      epsilon: 1\n  - name: b\n", "f")
    assert document.lines["populations",] == 2
    assert document.lines["populations", 0, "limit", "epsilon"] == 5
    assert document.lines["populations", 1] == 6
    assert document.line_of(("populations", 1, "limit", "delta")) == 6
