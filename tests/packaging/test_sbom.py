"""The bill of materials lists all that the service's lock installs, and a program that knows CycloneDX can read it."""

import base64
import json
import re
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from deploy.sbom import LOCK, SCRIPTS, bill_of_materials, locked_packages, this_bill_of_materials

SMALL = f"""\
anyio==4.0 ; sys_platform != 'plan9' \\
    --hash=sha256:{"0a" * 32} \\
    --hash=sha256:{"0b" * 32}
    # via
    #   epsilon-ledger (pyproject.toml)
    #   Trio_X
trio-x==1.0 \\
    --hash=sha256:{"0c" * 32}
    # via epsilon-ledger (pyproject.toml)
"""
NO_SCRIPTS = '{"packages": {"": {}}}'


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(this_bill_of_materials())
    return found


def test_bill_is_valid_cyclonedx_without_a_registry() -> None:
    text = this_bill_of_materials()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert all("cyclonedx.org/schema/" in line for line in text.splitlines() if "://" in line)


def test_bill_lists_every_locked_package_with_its_version_and_hashes(bill: dict[str, Any]) -> None:
    locked: dict[tuple[str, str], set[str]] = {}
    for name, version, hashes in re.findall(r"(?m)^([\w.-]+)==(\S+).*\n((?:    --hash=\S+.*\n)+)", LOCK.read_text()):
        locked[canonicalize_name(name), version] = set(re.findall(r"sha256:(\w+)", hashes))
    listed = {
        (each["name"], each["version"]): {
            digest["content"] for link in each["externalReferences"] for digest in link["hashes"]
        }
        for each in bill["components"]
        if each["purl"].startswith("pkg:pypi/")
    }
    assert listed == locked
    assert len(listed) > 40
    assert all(listed.values())


def test_bill_lists_the_scripts_of_the_wheel_with_their_hashes(bill: dict[str, Any]) -> None:
    locked = json.loads(SCRIPTS.read_text())["packages"]
    listed = {each["name"]: each for each in bill["components"] if each["purl"].startswith("pkg:npm/")}
    assert set(listed) == {place.removeprefix("node_modules/") for place in locked if place}
    chart = listed["chart.js"]
    (digest,) = chart["externalReferences"][0]["hashes"]
    integrity = base64.b64encode(bytes.fromhex(digest["content"])).decode()
    assert f"sha512-{integrity}" == locked["node_modules/chart.js"]["integrity"]
    assert chart["version"] == locked["node_modules/chart.js"]["version"]


def test_packages_are_reached_from_the_service(bill: dict[str, Any]) -> None:
    edges = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    reached, open_refs = set(), [bill["metadata"]["component"]["bom-ref"]]
    while open_refs:
        ref = open_refs.pop()
        if ref not in reached:
            reached.add(ref)
            open_refs += edges[ref]
    assert reached == {"epsilon-ledger", *(each["bom-ref"] for each in bill["components"])}


def test_lock_is_read_with_markers_hashes_and_reasons() -> None:
    anyio, trio = locked_packages(SMALL)
    assert (anyio.name, anyio.version, anyio.marker) == ("anyio", "4.0", 'sys_platform != "plan9"')
    assert anyio.hashes == ("0a" * 32, "0b" * 32)
    assert anyio.needed_by == ("epsilon-ledger", "trio-x")
    assert (trio.marker, trio.needed_by) == ("", ("epsilon-ledger",))


def test_package_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match=r"anyio==4\.0 has no hash"):
        bill_of_materials("anyio==4.0\n    # via epsilon-ledger (pyproject.toml)\n", NO_SCRIPTS, "1.0")


def test_same_lock_gives_the_same_bytes() -> None:
    assert bill_of_materials(SMALL, NO_SCRIPTS, "1.0") == bill_of_materials(SMALL, NO_SCRIPTS, "1.0")
    assert bill_of_materials(SMALL, NO_SCRIPTS, "1.0") != bill_of_materials(SMALL, NO_SCRIPTS, "1.1")
