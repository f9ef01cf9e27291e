"""What a run says of its origin, and what it keeps to itself."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from epsilon_ledger import LedgerClient, Link
from epsilon_ledger._run.provenance import MAX_LABELS, MAX_LINKS, Provenance, collect_provenance, find_commit
from tests.sdk.fake_ledger import FakeLedger


def nowhere() -> Path:
    raise FileNotFoundError("the working folder was deleted")


def collected(environment: dict[str, str] | None = None, **modules: object) -> Provenance:
    return collect_provenance(environment or {}, modules, nowhere)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments]
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_is_found_as_git_finds_it(tmp_path: Path) -> None:
    repository, worktree = tmp_path / "repository", tmp_path / "worktree"
    (repository / "inner").mkdir(parents=True)
    git(repository, "init", "-q", "-b", "feature/x")
    assert find_commit(repository) is None
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    head = git(repository, "rev-parse", "HEAD")
    assert find_commit(repository) == find_commit(repository / "inner") == head
    git(repository, "pack-refs", "--all")
    assert find_commit(repository) == head
    git(repository, "worktree", "add", "-q", "-b", "other", str(worktree))
    git(worktree, "commit", "-q", "--allow-empty", "-m", "second")
    second = git(worktree, "rev-parse", "HEAD")
    assert find_commit(worktree) == second != head
    git(repository, "pack-refs", "--all")
    assert find_commit(worktree) == second
    git(worktree, "checkout", "-q", "--detach", head)
    assert find_commit(worktree) == head
    assert collect_provenance({}, {}, lambda: repository).labels == {"git-commit": head}
    (repository / ".git" / "HEAD").write_text("../../etc/passwd")
    assert find_commit(repository) is None


def test_trackers_without_run_give_nothing() -> None:
    def fail() -> None:
        raise RuntimeError("a tracker's own trouble")

    for active_run, wandb in ((fail, SimpleNamespace(run=None)), (lambda: None, object())):
        assert collected(mlflow=SimpleNamespace(active_run=active_run), wandb=wandb) == Provenance()


def test_jobs_are_labelled_and_nothing_else_of_environment_is_taken() -> None:
    secret = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "EPSILON_LEDGER_API_KEY", "GITHUB_TOKEN"), "secret")
    private = {"SLURM_JOB_USER": "ada", "USER": "ada", "HOME": "/home/ada", "HOSTNAME": "adas-laptop"}
    found = collected(secret | private | {"SLURM_JOB_ID": "47", "SLURM_JOB_NAME": "train", "GITHUB_RUN_ID": "99"})
    assert found == Provenance({"github-run-id": "99", "slurm-job-id": "47", "slurm-job-name": "train"})
    unfit = {"SLURM_JOB_NAME": "a\nb", "SLURM_JOB_ID": "x" * 201, "PBS_JOBID": "1"}
    assert collected(unfit).labels == {"pbs-job-id": "1"}
    pod = collected({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-x7k2p"})
    assert pod.labels == {"kubernetes-pod": "train-x7k2p"}


ADDRESSES = {
    "https://mlflow.example.org/": "https://mlflow.example.org/#/experiments/7/runs/abc123",
    "http://localhost:5000": "http://localhost:5000/#/experiments/7/runs/abc123",
    **dict.fromkeys(("https://ada:secret@mlflow.example.org", "https://mlflow.example.org?token=secret")),
    **dict.fromkeys(("sqlite:///mlflow.db", "file:///home/ada/mlruns", "databricks")),
}
"""Of MLflow, with those of the run."""


def test_active_runs_of_trackers_are_labelled_and_linked_without_secrets() -> None:
    info = SimpleNamespace(run_id="abc123", experiment_id="7", run_name="bold-fox-1")
    for address, url in ADDRESSES.items():
        mlflow: Any = SimpleNamespace(active_run=lambda: SimpleNamespace(info=info))
        mlflow.get_tracking_uri = lambda address=address: address
        found = collected(mlflow=mlflow)
        assert found.labels == {"mlflow-run": "abc123"}
        assert found.links == (() if url is None else (Link("MLflow run bold-fox-1", url),))
    active = SimpleNamespace(id="x1", name=None, url="https://wandb.ai/team/project/runs/x1")
    found = collected(wandb=SimpleNamespace(run=active))
    assert found == Provenance({"wandb-run": "x1"}, (Link("W&B run x1", active.url),))
    offline = SimpleNamespace(run=SimpleNamespace(id="x1", name="n", url=None))
    assert collected(wandb=offline) == Provenance({"wandb-run": "x1"})


def test_given_metadata_takes_precedence_within_bounds() -> None:
    link = Link("W&B", "https://wandb.ai/1")
    found = Provenance({"git-commit": "c0", "slurm-job-id": "1"}, (link,))
    labels, links = {"git-commit": "mine", "slurm-job-id": "1"}, [{"title": "W&B", "url": link.url}]
    merged = found.merge({"owner": "ada", "labels": {"git-commit": "mine"}})
    assert merged == {"owner": "ada", "labels": labels, "links": links}
    labels, links = {str(n): "" for n in range(MAX_LABELS)}, [{"title": "", "url": str(n)} for n in range(MAX_LINKS)]
    assert found.merge({"labels": labels, "links": links}) == {"labels": labels, "links": links}
    assert found.merge({"links": [{"title": "mine", "url": link.url}]})["links"] == [{"title": "mine", "url": link.url}]
    assert Provenance().merge({"display_name": "x"}) == {"display_name": "x"}


SWITCHES: list[tuple[bool | None, str | None, bool]] = [
    *((None, None, True), (None, "1", True), (None, "0", False), (None, "False", False), (None, " no ", False)),
    *((True, "0", True), (False, None, False), (False, "1", False)),
]


def test_collection_can_be_switched_off(
    client: LedgerClient, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    for argument, variable, _ in SWITCHES:
        monkeypatch.delenv("EPSILON_LEDGER_COLLECT_METADATA", raising=False)
        if variable is not None:
            monkeypatch.setenv("EPSILON_LEDGER_COLLECT_METADATA", variable)
        client.create_run("model", budget="mimic/icu", collect_metadata=argument)
    labelled = ["'slurm-job-id': '4711'" in str(body.get("labels")) for body in ledger.bodies]
    assert labelled == [wanted for _, _, wanted in SWITCHES]
