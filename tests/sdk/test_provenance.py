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


def collected(environment: dict[str, str] | None = None, modules: dict[str, Any] | None = None) -> Provenance:
    return collect_provenance(environment or {}, modules or {}, nowhere)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments]
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "feature/x")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_commit_is_found_as_git_finds_it(repository: Path, tmp_path: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert find_commit(repository) == find_commit(repository / "inner") == head
    git(repository, "pack-refs", "--all")
    assert find_commit(repository) == head
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "worktree"))
    git(tmp_path / "worktree", "commit", "-q", "--allow-empty", "-m", "second")
    second = git(tmp_path / "worktree", "rev-parse", "HEAD")
    assert find_commit(tmp_path / "worktree") == second != head
    git(repository, "pack-refs", "--all")
    assert find_commit(tmp_path / "worktree") == second
    git(tmp_path / "worktree", "checkout", "-q", "--detach", head)
    assert find_commit(tmp_path / "worktree") == head
    assert collect_provenance({}, {}, lambda: repository).labels == {"git-commit": head}


def test_folder_and_trackers_without_run_give_nothing(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert find_commit(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text("../../etc/passwd")
    assert find_commit(tmp_path) is None

    def fail() -> None:
        raise RuntimeError("a tracker's own trouble")

    for active_run, wandb in ((fail, SimpleNamespace(run=None)), (lambda: None, object())):
        assert collected(modules={"mlflow": SimpleNamespace(active_run=active_run), "wandb": wandb}) == Provenance()


def test_jobs_are_labelled_and_nothing_else_of_environment_is_taken() -> None:
    environment = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_USER": "ada",
        "USER": "ada",
        "HOME": "/home/ada",
        "HOSTNAME": "adas-laptop",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "EPSILON_LEDGER_API_KEY": "key_1.secret",
        "GITHUB_RUN_ID": "99",
        "GITHUB_TOKEN": "secret",
    }
    found = collected(environment)
    assert found == Provenance({"github-run-id": "99", "slurm-job-id": "4711", "slurm-job-name": "train"})
    unfit = {"SLURM_JOB_NAME": "a\nb", "SLURM_JOB_ID": "x" * 201, "PBS_JOBID": "1"}
    assert collected(unfit).labels == {"pbs-job-id": "1"}
    pod = collected({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-x7k2p"})
    assert pod.labels == {"kubernetes-pod": "train-x7k2p"}


def mlflow(address: str) -> SimpleNamespace:
    info = SimpleNamespace(run_id="abc123", experiment_id="7", run_name="bold-fox-1")
    return SimpleNamespace(active_run=lambda: SimpleNamespace(info=info), get_tracking_uri=lambda: address)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("https://mlflow.example.org/", "https://mlflow.example.org/#/experiments/7/runs/abc123"),
        ("http://localhost:5000", "http://localhost:5000/#/experiments/7/runs/abc123"),
        ("https://ada:secret@mlflow.example.org", None),
        ("https://mlflow.example.org?token=secret", None),
        ("sqlite:///mlflow.db", None),
        ("file:///home/ada/mlruns", None),
        ("databricks", None),
    ],
)
def test_active_mlflow_run_is_labelled_and_linked_without_secrets(address: str, url: str | None) -> None:
    found = collected(modules={"mlflow": mlflow(address)})
    assert found.labels == {"mlflow-run": "abc123"}
    assert found.links == (() if url is None else (Link("MLflow run bold-fox-1", url),))


def test_active_run_of_weights_and_biases_is_labelled_and_linked() -> None:
    active = SimpleNamespace(id="x1", name=None, url="https://wandb.ai/team/project/runs/x1")
    found = collected(modules={"wandb": SimpleNamespace(run=active)})
    assert found == Provenance({"wandb-run": "x1"}, (Link("W&B run x1", active.url),))
    offline = SimpleNamespace(run=SimpleNamespace(id="x1", name="n", url=None))
    assert collected(modules={"wandb": offline}) == Provenance({"wandb-run": "x1"})


def test_given_metadata_takes_precedence_within_bounds() -> None:
    link = Link("W&B", "https://wandb.ai/1")
    found = Provenance({"git-commit": "c0", "slurm-job-id": "1"}, (link,))
    merged = found.merge({"owner": "ada", "labels": {"git-commit": "mine"}})
    assert merged == {
        "owner": "ada",
        "labels": {"git-commit": "mine", "slurm-job-id": "1"},
        "links": [{"title": "W&B", "url": link.url}],
    }
    labels, links = {str(n): "" for n in range(MAX_LABELS)}, [{"title": "", "url": str(n)} for n in range(MAX_LINKS)]
    assert found.merge({"labels": labels, "links": links}) == {"labels": labels, "links": links}
    assert found.merge({"links": [{"title": "mine", "url": link.url}]})["links"] == [{"title": "mine", "url": link.url}]
    assert Provenance().merge({"display_name": "x"}) == {"display_name": "x"}


@pytest.mark.parametrize(("argument", "variable", "labelled"), [
    (None, None, True), (None, "1", True), (None, "0", False), (None, "False", False), (None, " no ", False),
    (True, "0", True), (False, None, False), (False, "1", False),
])  # fmt: skip
def test_collection_can_be_switched_off(
    client: LedgerClient,
    ledger: FakeLedger,
    monkeypatch: pytest.MonkeyPatch,
    argument: bool | None,  # noqa: FBT001 - a case
    variable: str | None,
    labelled: bool,  # noqa: FBT001 - a case
) -> None:
    monkeypatch.delenv("EPSILON_LEDGER_COLLECT_METADATA", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    if variable is not None:
        monkeypatch.setenv("EPSILON_LEDGER_COLLECT_METADATA", variable)
    client.create_run("model", budget="mimic/icu", collect_metadata=argument)
    [body] = ledger.bodies
    assert ("'slurm-job-id': '4711'" in str(body.get("labels"))) is labelled
