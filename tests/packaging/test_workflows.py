"""What GitHub reads: workflows that are valid and pinned, forms, and the file that says how to cite.

No workflow can be run here. Its schema, and zizmor, which knows how workflows are attacked, judge it instead.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.dockerfile import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
SCHEMAS = {
    **dict.fromkeys(WORKFLOWS, "github-workflows"),
    **dict.fromkeys(FORMS, "github-issue-forms"),
    GITHUB / "ISSUE_TEMPLATE" / "config.yml": "github-issue-config",
    GITHUB / "dependabot.yml": "dependabot",
    ROOT / "CITATION.cff": "citation-file-format",
}


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in loaded(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_each_file_follows_its_schema(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{SCHEMAS[path]}", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_workflows_for_checks_audit_release_image_and_documents() -> None:
    assert [path.stem for path in WORKFLOWS] == ["audit", "checks", "docs", "image", "release"]
    assert len(FORMS) == 2


def test_zizmor_finds_nothing_to_attack(tmp_path: Path) -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    command: list[str | Path] = [zizmor, "--offline", "--no-progress", "--quiet", "--persona", "auditor"]
    done = subprocess.run([*command, GITHUB], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # It does find what is wrong: an action by its tag.
    unpinned = tmp_path / "unpinned.yml"
    unpinned.write_text(re.sub(r"(checkout)@\w+ # ", r"\1@", WORKFLOWS[0].read_text()))
    assert subprocess.run([*command, unpinned], capture_output=True, check=False).returncode != 0


def test_each_action_is_pinned_by_commit_and_names_its_version() -> None:
    used = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    pins: dict[str, set[str]] = {}
    for line in used:
        found = re.fullmatch(r"\s*(?:- )?uses: ([\w-]+/[\w-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line)
        assert found, line
        pins.setdefault(found[1], set()).add(found[2])
    assert len(used) > 20
    assert all(len(versions) == 1 for versions in pins.values()), pins


def test_images_of_the_build_are_pinned_by_digest() -> None:
    images = loaded(GITHUB / "workflows" / "image.yml")["env"]
    assert len(images) == 2
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in images.values()), images


def test_the_image_is_built_for_amd64_and_arm64_with_provenance_and_an_sbom() -> None:
    published = loaded(GITHUB / "workflows" / "image.yml")["jobs"]["publish"]["steps"]
    (build,) = (step["with"] for step in published if "build-push-action" in step.get("uses", ""))
    assert build["platforms"] == "linux/amd64,linux/arm64"
    assert build["provenance"] == "mode=max"
    assert build["sbom"] is True


def test_workflows_call_targets_of_make_and_ci_calls_what_a_developer_calls() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    called = {
        path.stem: re.findall(r"make ([a-z-]+)", "\n".join(each.get("run", "") for each in steps(path)))
        for path in WORKFLOWS
    }
    assert {target for words in called.values() for target in words} <= targets
    local = re.findall(r"(?m)^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text())
    assert called["checks"] == local
    assert called["release"] == ["dist", "sbom"]
    assert called["audit"] == ["audit"]
    assert called["docs"] == ["docs"]


def test_pytest_alone_collects_every_folder_but_that_of_the_frameworks() -> None:
    collected = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    folders = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("test_*.py")}
    assert collected == [f"tests/{folder}" for folder in sorted(folders - {"frameworks"})]


def test_the_oldest_python_that_is_admitted_is_tested() -> None:
    pythons = loaded(GITHUB / "workflows" / "checks.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required == f">={pythons[0]}"
    assert pythons == sorted(pythons, key=lambda version: [int(part) for part in version.split(".")])


def test_only_the_jobs_that_publish_may_write() -> None:
    writing = {
        (path.stem, name)
        for path in WORKFLOWS
        for name, job in loaded(path)["jobs"].items()
        if "write" in job["permissions"].values()
    }
    assert writing == {
        ("docs", "deploy"),
        ("image", "publish"),
        ("release", "attest"),
        ("release", "publish"),
        ("release", "announce"),
    }
    assert all(loaded(path)["permissions"] == {} for path in WORKFLOWS)


def test_no_registry_is_named_and_no_secret_is_stored() -> None:
    for path in [*GITHUB.rglob("*.*"), ROOT / ".pre-commit-config.yaml"]:
        text = path.read_text()
        assert not re.search(r"pypi\.org|pythonhosted|ghcr\.io|docker\.io|npmjs|debian\.org", text), path
        assert "${{ secrets." not in text, path


def test_hooks_run_what_make_check_runs_from_the_environment() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    hooks = [hook["entry"] for hook in local["hooks"]]
    recipe = (ROOT / "Makefile").read_text().split("\ncheck: ")[1].split("\n\n")[0]
    checked = [line.strip().removeprefix("@$(BIN)/") for line in recipe.splitlines()[1:]]
    assert [entry.removeprefix(".venv/bin/") for entry in hooks] == ["ruff format", "ruff check", *checked[2:]]
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_the_version_to_cite_is_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert str(loaded(ROOT / "CITATION.cff")["version"]) == version
