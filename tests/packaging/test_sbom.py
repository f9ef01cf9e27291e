"""The bill of materials lists all that the service's lock installs, and a program that knows CycloneDX can read it."""

import base64
import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.sbom import LOCK, SCRIPTS, bill_of_materials, locked_packages, this_bill_of_materials

SMALL = (
    "anyio==4.0 ; sys_platform != 'plan9' \\\n    --hash=sha256:"
    + "0a" * 32
    + " \\\n    --hash=sha256:"
    + "0b" * 32
    + "\n"
    "    # via\n    #   epsilon-ledger (pyproject.toml)\n    #   Trio_X\n"
    "trio-x==1.0 \\\n    --hash=sha256:" + "0c" * 32 + "\n    # via epsilon-ledger (pyproject.toml)\n"
)


NO_SCRIPTS = '{"packages": {"": {}}}'


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(this_bill_of_materials())
    return found


def test_it_is_valid_cyclonedx() -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(this_bill_of_materials()) is None


def test_it_lists_every_locked_package_with_its_version_and_hashes(bill: dict[str, Any]) -> None:
    locked: dict[tuple[str, str], set[str]] = {}
    for line in LOCK.read_text().splitlines():
        if line[:1].isalnum():
            requirement = Requirement(line.removesuffix("\\"))
            (version,) = (each.version for each in requirement.specifier)
            hashes = locked.setdefault((canonicalize_name(requirement.name), version), set())
        elif "--hash=sha256:" in line:
            hashes.add(line.split("sha256:")[1].split()[0])
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


def test_it_lists_the_scripts_that_the_wheel_carries_with_their_hashes(bill: dict[str, Any]) -> None:
    locked = json.loads(SCRIPTS.read_text())["packages"]
    listed = {each["name"]: each for each in bill["components"] if each["purl"].startswith("pkg:npm/")}
    assert set(listed) == {place.removeprefix("node_modules/") for place in locked if place}
    chart = listed["chart.js"]
    (digest,) = chart["externalReferences"][0]["hashes"]
    integrity = base64.b64encode(bytes.fromhex(digest["content"])).decode()
    assert f"sha512-{integrity}" == locked["node_modules/chart.js"]["integrity"]
    assert chart["version"] == locked["node_modules/chart.js"]["version"]


def test_each_package_is_reached_from_the_service(bill: dict[str, Any]) -> None:
    edges = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    reached, open_refs = set(), [bill["metadata"]["component"]["bom-ref"]]
    while open_refs:
        ref = open_refs.pop()
        if ref not in reached:
            reached.add(ref)
            open_refs += edges[ref]
    assert reached == {"epsilon-ledger", *(each["bom-ref"] for each in bill["components"])}


def test_most_packages_have_their_licence(bill: dict[str, Any]) -> None:
    without = {each["name"] for each in bill["components"] if "licenses" not in each}
    # Of some, this environment has another version or none.
    assert len(without) < len(bill["components"]) / 5


def test_it_names_no_registry() -> None:
    found = {line for line in this_bill_of_materials().splitlines() if "://" in line}
    assert all("cyclonedx.org/schema/" in line for line in found)


def test_a_lock_is_read_with_markers_hashes_and_reasons() -> None:
    anyio, trio = locked_packages(SMALL)
    assert (anyio.name, anyio.version, anyio.marker) == ("anyio", "4.0", 'sys_platform != "plan9"')
    assert anyio.hashes == ("0a" * 32, "0b" * 32)
    assert anyio.needed_by == ("epsilon-ledger", "trio-x")
    assert (trio.marker, trio.needed_by) == ("", ("epsilon-ledger",))


def test_a_package_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match=r"anyio==4\.0 has no hash"):
        bill_of_materials("anyio==4.0\n    # via epsilon-ledger (pyproject.toml)\n", NO_SCRIPTS, "1.0")


def test_the_same_lock_gives_the_same_bytes() -> None:
    assert bill_of_materials(SMALL, NO_SCRIPTS, "1.0") == bill_of_materials(SMALL, NO_SCRIPTS, "1.0")
    assert bill_of_materials(SMALL, NO_SCRIPTS, "1.0") != bill_of_materials(SMALL, NO_SCRIPTS, "1.1")
