"""What GitHub reads: workflows that are valid and pinned, forms, and the file that says how to cite.

No workflow can be run here. Its schema, and zizmor, which knows how workflows are attacked, judge it instead.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_jsonschema
import yaml
from click.testing import CliRunner

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


def test_files_follow_their_schemas() -> None:
    for schema in sorted(set(SCHEMAS.values())):
        paths = [str(path) for path, named in SCHEMAS.items() if named == schema]
        done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", f"vendor.{schema}", *paths])
        assert done.exit_code == 0, done.output


def test_zizmor_finds_nothing_to_attack_and_an_unpinned_action(tmp_path: Path) -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    command: list[str | Path] = [zizmor, "--offline", "--no-progress", "--quiet", "--persona", "auditor"]
    done = subprocess.run([*command, GITHUB], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # It does find what is wrong: an action by its tag.
    unpinned = tmp_path / "unpinned.yml"
    unpinned.write_text(re.sub(r"(checkout)@\w+ # ", r"\1@", WORKFLOWS[0].read_text()))
    assert subprocess.run([*command, unpinned], capture_output=True, check=False).returncode != 0


def test_action_is_pinned_by_commit_and_names_its_version() -> None:
    used = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    pins: dict[str, set[str]] = {}
    for line in used:
        found = re.fullmatch(r"\s*(?:- )?uses: ([\w-]+/[\w-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line)
        assert found, line
        pins.setdefault(found[1], set()).add(found[2])
    assert len(used) > 20
    assert all(len(versions) == 1 for versions in pins.values()), pins


def test_image_is_built_from_pinned_images_for_both_processors_with_provenance_and_sbom() -> None:
    workflow = loaded(GITHUB / "workflows" / "image.yml")
    assert len(workflow["env"]) == 2
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in workflow["env"].values())
    steps = workflow["jobs"]["publish"]["steps"]
    (build,) = (step["with"] for step in steps if "build-push-action" in step.get("uses", ""))
    assert (build["platforms"], build["provenance"], build["sbom"]) == ("linux/amd64,linux/arm64", "mode=max", True)


def test_workflows_call_targets_of_make_and_ci_those_of_a_developer() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    called = {
        path.stem: [
            target
            for job in loaded(path)["jobs"].values()
            for step in job["steps"]
            for target in re.findall(r"make ([a-z-]+)", step.get("run", ""))
        ]
        for path in WORKFLOWS
    }
    assert {target for words in called.values() for target in words} <= targets
    local = re.findall(r"(?m)^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text())
    fixed = {"audit": ["audit"], "docs": ["docs"], "image": [], "release": ["dist", "sbom"]}
    assert called == {"checks": local, **fixed}


def test_jobs_that_publish_alone_may_write() -> None:
    jobs = {f"{path.stem} {name}": job for path in WORKFLOWS for name, job in loaded(path)["jobs"].items()}
    writing = {name for name, job in jobs.items() if "write" in job["permissions"].values()}
    assert writing == {"docs deploy", "image publish", "release attest", "release publish", "release announce"}
    assert all(loaded(path)["permissions"] == {} for path in WORKFLOWS)


def test_files_name_no_registry_and_no_secret() -> None:
    for path in [*GITHUB.rglob("*.*"), ROOT / ".pre-commit-config.yaml"]:
        text = path.read_text()
        assert not re.search(r"pypi\.org|pythonhosted|ghcr\.io|docker\.io|npmjs|debian\.org", text), path
        assert "${{ secrets." not in text, path


def test_hooks_run_the_commands_of_make_check() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    hooks = [hook["entry"] for hook in local["hooks"]]
    recipe = (ROOT / "Makefile").read_text().split("\ncheck: ")[1].split("\n\n")[0]
    checked = [line.strip().removeprefix("@$(BIN)/") for line in recipe.splitlines()[1:]]
    assert [entry.removeprefix(".venv/bin/") for entry in hooks] == ["ruff format", "ruff check", *checked[2:]]
    assert all(hook["language"] == "system" for hook in local["hooks"])
