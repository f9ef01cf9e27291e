"""The audit passes only if it has looked up everything and found nothing; reports as pip-audit 2.10.1 writes them."""

import json

import pytest

from tests.packaging import audit
from tests.packaging.audit import LOCKS, ROOT, Audit, answer, judged, pinned
from tests.packaging.sbom import LOCK, locked_packages, this_bill_of_materials

PINS = {"jinja2 2.4.1", "flask-cors 3.0.0"}
SOUND = {
    "dependencies": [
        {"name": "jinja2", "version": "2.4.1", "vulns": []},
        {"name": "Flask_Cors", "version": "3.0.0", "vulns": []},
    ],
    "fixes": [],
}
# Of a machine that reaches an index, but not its database of weaknesses: pip-audit exited with 0.
OFFLINE = {
    "dependencies": [
        {
            "name": "jinja2",
            "skip_reason": "Dependency not found on PyPI and could not be audited: jinja2 (2.4.1)",
        },
        {
            "name": "flask-cors",
            "skip_reason": "Dependency not found on PyPI and could not be audited: flask-cors (3.0.0)",
        },
    ],
    "fixes": [],
}
WEAK = {
    "dependencies": [
        {
            "name": "jinja2",
            "version": "2.4.1",
            "vulns": [
                {"id": "PYSEC-2019-217", "fix_versions": ["2.10.1"], "aliases": ["CVE-2019-10906"], "description": "…"},
                {"id": "PYSEC-2099-1", "fix_versions": [], "aliases": [], "description": "…"},
            ],
        },
        {"name": "flask-cors", "version": "3.0.0", "vulns": []},
    ],
    "fixes": [],
}


def test_all_looked_up_and_nothing_found_passes() -> None:
    found = judged(PINS, json.dumps(SOUND))
    assert found == Audit(2, (), ())
    assert found.passed
    assert answer("a.lock", found) == ["a.lock: 2 packages looked up, 0 weaknesses known, 0 packages NOT looked up"]


def test_a_weakness_fails_and_is_named_with_its_mend() -> None:
    found = judged(PINS, json.dumps(WEAK))
    assert not found.passed
    assert answer("a.lock", found) == [
        "a.lock: 2 packages looked up, 2 weaknesses known, 0 packages NOT looked up",
        "  jinja2 2.4.1: PYSEC-2019-217, mended in 2.10.1",
        "  jinja2 2.4.1: PYSEC-2099-1, mended in no version",
    ]


def test_a_machine_without_the_database_fails() -> None:
    found = judged(PINS, json.dumps(OFFLINE))
    assert (found.audited, found.passed) == (0, False)
    assert answer("a.lock", found)[1].startswith("  flask-cors 3.0.0: Dependency not found on PyPI")


@pytest.mark.parametrize("report", ["", "null", "[]", "{}", "Traceback (most recent call last):", "[[1]]"])
def test_no_report_fails(report: str) -> None:
    found = judged(PINS, report)
    assert found.unknown == ("flask-cors 3.0.0: not in the report", "jinja2 2.4.1: not in the report")
    assert not found.passed


def test_one_package_or_version_that_was_left_out_fails() -> None:
    assert judged([*PINS, "idna 3.10"], json.dumps(SOUND)).unknown == ("idna 3.10: not in the report",)
    assert not judged(["jinja2 2.4.2"], json.dumps(SOUND)).passed


def test_an_empty_lock_fails() -> None:
    assert not judged([], json.dumps({"dependencies": []})).passed


def test_a_long_list_is_cut() -> None:
    lines = answer("a.lock", judged({f"p{number} 1" for number in range(200)}, ""))
    assert (len(lines), lines[-1]) == (12, "  and 190 more")


def test_a_lock_is_read_for_this_platform() -> None:
    lock = (
        "Flask_Cors==3.0.0 \\\n    --hash=sha256:00\n"
        "uvloop==0.22.1 ; sys_platform != 'plan9' \\\n    --hash=sha256:00\n"
        "colorama==0.4.6 ; sys_platform == 'plan9' \\\n    --hash=sha256:00\n    # via x\n"
    )
    assert pinned(lock) == {"flask-cors 3.0.0", "uvloop 0.22.1"}


def test_every_lock_is_audited() -> None:
    named = {path.name for path in ROOT.glob("requirements*.lock")}
    assert named == {*LOCKS, "requirements-torch-cpu.lock"}
    assert all(len(pinned((ROOT / lock).read_text())) >= 9 for lock in LOCKS)


BILL = json.dumps(
    {
        "components": [
            {
                "name": "jinja2",
                "version": "2.4.1",
                "purl": "pkg:pypi/jinja2@2.4.1",
                "externalReferences": [{"hashes": [{"content": "0a"}, {"content": "0b"}]}],
            },
            {
                "name": "jinja2",
                "version": "3.0",
                "purl": "pkg:pypi/jinja2@3.0",
                "externalReferences": [{"hashes": [{"content": "0c"}]}],
            },
            {
                "name": "flask-cors",
                "version": "3.0.0",
                "purl": "pkg:pypi/flask-cors@3.0.0",
                "externalReferences": [{"hashes": [{"content": "0d"}]}],
            },
            {"name": "chart.js", "version": "4.6.1", "purl": "pkg:npm/chart.js@4.6.1"},
        ]
    }
)


def test_a_bill_of_materials_is_looked_up_whole_and_each_file_names_a_package_once() -> None:
    assert audit.requirements_of(BILL) == [
        "jinja2==2.4.1 --hash=sha256:0a --hash=sha256:0b\nflask-cors==3.0.0 --hash=sha256:0d\n",
        "jinja2==3.0 --hash=sha256:0c\n",
    ]


def test_every_package_of_the_bill_of_materials_is_looked_up() -> None:
    names = [line.split()[0] for text in audit.requirements_of(this_bill_of_materials()) for line in text.splitlines()]
    assert sorted(names) == sorted({f"{each.name}=={each.version}" for each in locked_packages(LOCK.read_text())})


@pytest.mark.parametrize(("wrote", "status"), [(SOUND, 0), (OFFLINE, 1), (WEAK, 1)])
def test_it_says_what_it_audited_and_ends_accordingly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrote: object, status: int
) -> None:
    monkeypatch.setattr(audit, "pinned", lambda _: PINS)
    monkeypatch.setattr(audit, "report", lambda _: json.dumps(wrote))
    monkeypatch.setattr(audit, "requirements_of", lambda _: ["jinja2==2.4.1 --hash=sha256:0a\n"])
    with pytest.raises(SystemExit) as end:
        audit.main(LOCKS[:2])
    assert bool(end.value.code) is bool(status)
    said = capsys.readouterr().out
    audited = [line.split(":")[0] for line in said.splitlines() if "looked up," in line]
    assert audited == [*LOCKS[:2], "bill of materials, part 1"]
    assert ("NOT AUDITED: 5 packages" in said) is (wrote is OFFLINE)
