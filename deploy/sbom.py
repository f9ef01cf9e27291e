"""Write the software bill of materials of the service: `make sbom` lists what requirements.lock installs, and Chart.js.

The format is CycloneDX 1.6, as JSON. The same lock gives the same bytes in the same environment: that one knows the
licences of what it has installed.
"""

import base64
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements.lock"
SCRIPTS: Final = ROOT / "web" / "package-lock.json"
"""What npm fetches at the build; the wheel carries it."""

PROJECT: Final = "epsilon-ledger"


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """Package of a lock: names are normalised, and an empty marker means that it is always installed."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]


def locked_packages(lock: str) -> Iterator[LockedPackage]:
    """Read the packages of a lock that `uv pip compile` wrote; without a version or a hash it is a ValueError."""
    for entry in re.split(r"(?m)^(?=[a-zA-Z0-9])", lock):
        if not entry[:1].isalnum():
            continue
        requirement = Requirement(entry.splitlines()[0].removesuffix("\\"))
        (version,) = (each.version for each in requirement.specifier if each.operator == "==")
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        if not hashes:
            raise ValueError(f"{requirement} has no hash.")
        needed_by = re.findall(r"(?m)^    #(?: via|  ) +([A-Za-z0-9][\w.-]*)", entry)
        yield LockedPackage(
            canonicalize_name(requirement.name),
            version,
            str(requirement.marker or ""),
            tuple(hashes),
            tuple(canonicalize_name(name) for name in needed_by),
        )


def bill_of_materials(lock: str, scripts: str, version: str) -> str:
    """Describe what Python's and npm's lock name as CycloneDX 1.6: JSON, without the time of writing."""
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"{PROJECT} {version}\n{lock}\n{scripts}"))
    service = Component(
        name=PROJECT,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=PROJECT,
        purl=PackageURL("pypi", name=PROJECT, version=version),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bom.metadata.component = service
    # A lock may pin a package twice: once for each range of Pythons.
    components = [(package, _component(package)) for package in locked_packages(lock)]
    carried = list(_scripts(scripts))
    bom.components.update([*(each for _, each in components), *carried])
    for needing in (service, *(each for _, each in components)):
        needed = [each for package, each in components if needing.name in package.needed_by]
        bom.register_dependency(needing, [*needed, *carried] if needing is service else needed)
    written = json.loads(JsonV1Dot6(bom).output_as_string())
    del written["metadata"]["timestamp"]
    return json.dumps(written, indent=2, sort_keys=True)


def _scripts(lock: str) -> Iterator[Component]:
    for place, package in json.loads(lock)["packages"].items():
        if place:  # the first one is the project itself
            name, version = place.removeprefix("node_modules/"), package["version"]
            algorithm, _, digest = package["integrity"].partition("-")
            if algorithm != "sha512":
                raise ValueError(f"{name} {version} has no SHA-512 in npm's lock.")
            hashed = HashType(alg=HashAlgorithm.SHA_512, content=base64.b64decode(digest).hex())
            namespace, _, plain = name.rpartition("/")
            purl = PackageURL("npm", namespace=namespace, name=plain, version=version)
            yield _distributed(
                purl, name, hashes=[hashed], licenses=[LicenseFactory().make_from_string(package["license"])]
            )


def _component(package: LockedPackage) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in package.hashes]
    purl = PackageURL("pypi", name=package.name, version=package.version)
    return _distributed(purl, package.name, hashes=hashes, licenses=_licenses(package), marker=package.marker)


def _distributed(
    purl: PackageURL, name: str, *, hashes: Iterable[HashType], licenses: Iterable[License], marker: str = ""
) -> Component:
    url, comment = XsUri(purl.to_string()), "the files that may be installed"
    files = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=url, comment=comment, hashes=hashes)
    return Component(
        name=name,
        version=purl.version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        licenses=licenses,
        external_references=[files],
        properties=[Property(name="environment-marker", value=marker)] if marker else [],
    )


def _licenses(package: LockedPackage) -> Iterable[License]:
    """Read the licence that the installed package declares; none: another version or none is installed."""
    try:
        found = metadata(package.name)
    except PackageNotFoundError:
        return []
    classified = [
        each.rpartition(" :: ")[2] for each in found.get_all("Classifier", []) if each.startswith("License :: ")
    ]
    declared = [*found.get_all("License-Expression", []), *classified, *found.get_all("License", [])]
    # Without the first two, some packages have the whole text of their licence, whose name no program could read.
    if found["Version"] != package.version or not declared or "\n" in declared[0]:
        return []
    return [LicenseFactory().make_from_string(declared[0], license_acknowledgement=LicenseAcknowledgement.DECLARED)]


def this_bill_of_materials() -> str:
    """Describe the lock of this checkout, as CycloneDX 1.6 in JSON."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return bill_of_materials(LOCK.read_text(), SCRIPTS.read_text(), version)


if __name__ == "__main__":
    sys.stdout.write(this_bill_of_materials() + "\n")
