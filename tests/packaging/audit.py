"""Are weaknesses known of what is locked? `make audit` asks the Python Packaging Advisory Database, by pip-audit.

pip-audit ends well where it could look up nothing, so its report is judged here: every package that a lock pins for
this platform must have been looked up, or the audit has failed. Of the service's bill of materials, so must every
package for every platform.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.sbom import this_bill_of_materials

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = tuple(
    f"requirements{name}.lock"
    for name in ("", "-charts", "-dev", "-docs", "-generator", "-torch", "-cuda", "-frameworks", "-flower")
)
"""Not the lock of torch's CPU build: no database knows that build, and its version stands in the lock before it."""

PIP_AUDIT: Final = "pip-audit@2.10.1"
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of looking up one lock.

    Args:
        audited: how many packages were looked up.
        weaknesses: a line for each that is known.
        unknown: what is pinned for this platform and was not looked up, with the reason if there is one.
    """

    audited: int
    weaknesses: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything was looked up, and nothing found."""
        return self.audited > 0 and not self.weaknesses and not self.unknown


def pinned(lock: str) -> set[str]:
    """What a lock installs on this platform.

    Args:
        lock: its text.

    Returns:
        `name version`, names in their normal form.
    """
    found = [Requirement(line.removesuffix("\\")) for line in lock.splitlines() if line[:1].isalnum()]
    return {
        f"{canonicalize_name(one.name)} {next(iter(one.specifier)).version}"
        for one in found
        if one.marker is None or one.marker.evaluate()
    }


def requirements_of(bill: str) -> list[str]:
    """Turn a CycloneDX bill of materials into requirements files.

    Args:
        bill: JSON; each component has a name, a version and the hashes of its distribution.

    Returns:
        Texts that together name every Python package. Each names a package once at most, as pip-audit demands; a bill
        may have a package in several versions, for several Pythons.
    """
    files: list[dict[str, str]] = []
    for component in json.loads(bill)["components"]:
        if not component["purl"].startswith("pkg:pypi/"):
            continue  # the database knows Python's packages only
        name = component["name"]
        hashes = [each["content"] for link in component["externalReferences"] for each in link["hashes"]]
        line = " ".join([f"{name}=={component['version']}", *(f"--hash=sha256:{each}" for each in hashes)])
        free = next((file for file in files if name not in file), None)
        if free is None:
            files.append(free := {})
        free[name] = line
    return ["".join(f"{line}\n" for line in file.values()) for file in files]


def judged(pins: Iterable[str], report: str) -> Audit:
    """Judge a report.

    Args:
        pins: as `pinned` names them.
        report: what pip-audit wrote with `--format json`; anything else counts as nothing.

    Returns:
        What was found, and what was not looked up.
    """
    try:
        entries = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        entries = []
    skipped: dict[str, str] = {
        canonicalize_name(entry["name"]): entry["skip_reason"] for entry in entries if "skip_reason" in entry
    }
    looked_up = {
        f"{canonicalize_name(entry['name'])} {entry['version']}": entry["vulns"]
        for entry in entries
        if "skip_reason" not in entry
    }
    weaknesses = [
        f"{pin}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'no version'}"
        for pin, all_found in looked_up.items()
        for found in all_found
    ]
    missing = sorted(set(pins) - looked_up.keys())
    unknown = [f"{pin}: {skipped.get(pin.partition(' ')[0], 'not in the report')}" for pin in missing]
    return Audit(len(looked_up), tuple(weaknesses), tuple(unknown))


def answer(lock: str, audit: Audit) -> list[str]:
    """What a person reads about a lock."""
    found, missed = len(audit.weaknesses), len(audit.unknown)
    more = [f"and {missed - SHOWN} more"] if missed > SHOWN else []
    return [
        f"{lock}: {audit.audited} packages looked up, {found} weaknesses known, {missed} packages NOT looked up",
        *(f"  {line}" for line in (*audit.weaknesses, *audit.unknown[:SHOWN], *more)),
    ]


def report(lock: Path) -> str:
    """What pip-audit says of a lock; what it complains of goes to standard error if it says nothing else."""
    uv = Path(sys.executable).with_name("uv")
    options = ("--disable-pip", "--progress-spinner=off", "--format=json", f"--requirement={lock}")
    done = subprocess.run(
        [uv, "tool", "run", "--quiet", PIP_AUDIT, *options], capture_output=True, text=True, check=False
    )
    if not done.stdout:
        sys.stderr.write(done.stderr)
    return done.stdout


def audits(locks: Sequence[str]) -> Iterator[tuple[str, Audit]]:
    """Look up locks, and then the bill of materials; yield what was looked up, and what came of it."""
    for lock in locks:
        yield lock, judged(pinned((ROOT / lock).read_text()), report(ROOT / lock))
    with TemporaryDirectory() as folder:
        for number, text in enumerate(requirements_of(this_bill_of_materials()), 1):
            file = Path(folder, f"{number}.txt")
            file.write_text(text)
            pins = {line.split()[0].replace("==", " ") for line in text.splitlines()}
            yield f"bill of materials, part {number}", judged(pins, report(file))


def main(locks: Sequence[str] = LOCKS) -> None:
    """Look up everything, and say what was found; fail unless all was looked up and nothing found."""
    weaknesses = unknown = 0
    for name, audit in audits(locks):
        sys.stdout.write("\n".join([*answer(name, audit), ""]))
        sys.stdout.flush()
        weaknesses += len(audit.weaknesses)
        unknown += len(audit.unknown) if audit.audited else max(1, len(audit.unknown))
    if unknown:
        sys.stdout.write(f"\nNOT AUDITED: {unknown} packages could not be looked up. Without a network nothing can.\n")
    sys.exit(
        f"The audit failed: {weaknesses} weaknesses, {unknown} packages not looked up." if weaknesses + unknown else 0
    )


if __name__ == "__main__":
    main()
