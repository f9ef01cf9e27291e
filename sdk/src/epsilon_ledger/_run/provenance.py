"""What a run's metadata says of its origin: commit, job, and run of an experiment tracker.

Only ids and job names are collected, and addresses of trackers without credentials: no names of users or hosts, no
arguments, no other variables.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

from epsilon_ledger._wire.metadata import Link

VARIABLE: Final = "EPSILON_LEDGER_COLLECT_METADATA"
"""Set to 0, false or no, nothing is collected."""

MLFLOW_LABEL: Final = "mlflow-run"
WANDB_LABEL: Final = "wandb-run"
MAX_LABELS: Final = 32
MAX_LINKS: Final = 16
_MAX_VALUE: Final = 200
_MAX_URL: Final = 2000
_COMMIT: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")

_VARIABLES: Final = {
    "slurm-job-id": "SLURM_JOB_ID",
    "slurm-job-name": "SLURM_JOB_NAME",
    "slurm-array-task-id": "SLURM_ARRAY_TASK_ID",
    "pbs-job-id": "PBS_JOBID",
    "lsf-job-id": "LSB_JOBID",
    "ray-job-id": "RAY_JOB_ID",
    "github-run-id": "GITHUB_RUN_ID",
    "gitlab-job-id": "CI_JOB_ID",
    MLFLOW_LABEL: "MLFLOW_RUN_ID",
    WANDB_LABEL: "WANDB_RUN_ID",
}
"""The variable of each label that needs nothing else."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Labels and links of a run's origin."""

    labels: dict[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] = ()

    def merge(self, given: Mapping[str, object]) -> dict[str, object]:
        """Add the labels and links to serialized metadata, which takes precedence, as far as there is room."""
        labels = dict(cast("dict[str, str]", given.get("labels") or {}))
        links = list(cast("list[dict[str, str]]", given.get("links") or []))
        for key, value in self.labels.items():
            if len(labels) < MAX_LABELS:
                labels.setdefault(key, value)
        known = {link["url"] for link in links}
        links += [asdict(link) for link in self.links if link.url not in known][: max(0, MAX_LINKS - len(links))]
        found = {"labels": labels, "links": links}
        return {**given, **{name: value for name, value in found.items() if value}}


def provenance(*, collect: bool | None) -> Provenance:
    """Collect the provenance of a run of this process.

    Args:
        collect: whether to; None: unless the environment variable says no.

    Returns:
        What was found; a failure finds nothing, and never raises.
    """
    if collect is None:
        collect = os.environ.get(VARIABLE, "").strip().lower() not in {"0", "false", "no"}
    return collect_provenance(os.environ, sys.modules, Path.cwd) if collect else Provenance()


def collect_provenance(
    environment: Mapping[str, str], modules: Mapping[str, Any], folder: Callable[[], Path]
) -> Provenance:
    """Collect the provenance of a run.

    Args:
        environment: variables of the process.
        modules: imported modules; none is imported for this.
        folder: returns the working folder, whose repository's commit counts.
    """
    labels = {label: environment[variable] for label, variable in _VARIABLES.items() if environment.get(variable)}
    if environment.get("KUBERNETES_SERVICE_HOST"):
        # In a pod the host name is the pod's; anywhere else it could name a person's machine.
        labels["kubernetes-pod"] = environment.get("POD_NAME") or environment.get("HOSTNAME") or ""
    links: list[Link] = []
    # Trackers are other people's code, and a folder can vanish: nothing of it may keep a run from being created.
    with suppress(Exception):
        labels["git-commit"] = find_commit(folder()) or ""
    for tracker in (_mlflow_run, _wandb_run):
        with suppress(Exception):
            found = tracker(modules)
            labels |= found.labels
            links += found.links
    kept = {key: value for key, value in sorted(labels.items()) if _is_line(value)}
    return Provenance(kept, tuple(link for link in links if _is_public(link.url)))


def find_commit(folder: Path) -> str | None:
    """Find the commit of the repository that a folder is in, by its files; None without one.

    Raises:
        OSError: a file cannot be read.
    """
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if git.is_file():  # a worktree or a submodule
            git = (parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()).resolve()
        if (git / "HEAD").is_file():
            return _head(git)
    return None


def mlflow_link(module: Any, run: Any) -> Link | None:  # noqa: ANN401 - of a module that may be of any version
    """Build the link to an MLflow run; None unless its tracking server has an address without credentials."""
    address = module.get_tracking_uri().rstrip("/")
    place = f"#/experiments/{quote(run.info.experiment_id, safe='')}/runs/{quote(run.info.run_id, safe='')}"
    link = Link(f"MLflow run {run.info.run_name or run.info.run_id}", f"{address}/{place}")
    return link if _is_public(link.url) and _is_line(link.title) else None


def wandb_link(run: Any) -> Link | None:  # noqa: ANN401 - as above
    """Build the link to a Weights & Biases run; None offline."""
    if getattr(run, "offline", False):  # it would print that it has no address
        return None
    link = Link(f"W&B run {run.name or run.id}", run.url or "")
    return link if _is_public(link.url) and _is_line(link.title) else None


def _head(git: Path) -> str | None:
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref: "):
        return head if _COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref: ")
    common = git / "commondir"
    folders = [git, (git / common.read_text(encoding="utf-8").strip()).resolve()] if common.is_file() else [git]
    for folder in folders:
        if (folder / name).is_file():
            commit = (folder / name).read_text(encoding="utf-8").strip()
            return commit if _COMMIT.fullmatch(commit) else None
    for folder in folders:
        packed = folder / "packed-refs"
        for line in packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else ():
            commit, _, reference = line.partition(" ")
            if reference == name and _COMMIT.fullmatch(commit):
                return commit
    return None


def _mlflow_run(modules: Mapping[str, Any]) -> Provenance:
    module = modules.get("mlflow")
    active = None if module is None else module.active_run()
    if active is None:
        return Provenance()
    link = mlflow_link(module, active)
    return Provenance({MLFLOW_LABEL: active.info.run_id}, () if link is None else (link,))


def _wandb_run(modules: Mapping[str, Any]) -> Provenance:
    module = modules.get("wandb")
    active = None if module is None else module.run
    if active is None:
        return Provenance()
    link = wandb_link(active)
    return Provenance({WANDB_LABEL: active.id}, () if link is None else (link,))


def _is_line(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_VALUE and value.isprintable() and value.strip() == value


def _is_public(url: str) -> bool:
    """Check whether a link can be shown to everybody who may read the run."""
    parts = urlsplit(url)
    readable = len(url) <= _MAX_URL and url.isprintable() and not set(url) & set(' "<>\\^`{|}')
    return (
        readable
        and parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and not parts.query
    )
