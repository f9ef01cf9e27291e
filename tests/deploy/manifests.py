"""Kubernetes manifests as the tests ask about them."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.dockerfile import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(text) if document]


def rendered(folder: Path, overlay: str) -> list[Document]:
    """What kustomize makes of base, trial or another overlay, in a folder's copy with secrets of its own."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which renders kustomizations without a cluster")
    copy = folder / "kubernetes"
    if not copy.exists():
        shutil.copytree(KUBERNETES, copy, ignore=shutil.ignore_patterns("secrets"))
    if not (copy / "trial" / "secrets").exists():
        subprocess.run([ROOT / "deploy" / "secrets.sh", copy / "trial" / "secrets"], check=True, capture_output=True)
    done = subprocess.run(
        ["kubectl", "kustomize", copy / overlay], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


@dataclass(frozen=True)
class Pod:
    """A pod as some document would make it."""

    owner: Document
    template: Document

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.template["metadata"]["labels"]
        return labels

    @property
    def spec(self) -> Document:
        spec: Document = self.template["spec"]
        return spec

    @property
    def containers(self) -> list[Document]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for each in self.containers for port in each.get("ports", [])}


def pods(found: list[Document]) -> list[Pod]:
    """Every pod that the documents lead to."""
    specs = [(each, each.get("spec", {})) for each in found]
    specs = [(each, spec["jobTemplate"]["spec"] if each["kind"] == "CronJob" else spec) for each, spec in specs]
    return [Pod(each, spec["template"]) for each, spec in specs if "template" in spec]


def selected(chosen: dict[str, str], among: list[Pod]) -> list[Pod]:
    """The pods that have all these labels."""
    return [pod for pod in among if chosen.items() <= pod.labels.items()]


def of_kind(found: list[Document], kind: str) -> list[Document]:
    return [document for document in found if document["kind"] == kind]


def variables_of(found: list[Document], container: Document) -> dict[str, str]:
    """The environment of a container."""
    maps = {document["metadata"]["name"]: document["data"] for document in of_kind(found, "ConfigMap")}
    variables: dict[str, str] = {}
    for source in container.get("envFrom", []):
        variables |= maps[source["configMapRef"]["name"]]
    return variables | {each["name"]: each["value"] for each in container.get("env", [])}
