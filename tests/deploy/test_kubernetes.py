"""The manifests: valid for Kubernetes, and true to each other, to the image, and to the service."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from sqlalchemy import make_url

from app.configuration.settings import PREFIX, Settings
from app.configuration.workload_issuers import read_workload_issuers
from app.persistence.database import POOL_SIZE, Database
from app.persistence.postgresql import STATEMENT_TIMEOUT_SECONDS
from app.version import VERSION
from tests.deploy.manifests import KUBERNETES, Document, documents, unknown_settings
from tests.docs.markdown import fences
from tests.packaging.dockerfile import ROOT, only, stages
from tests.programs import run

OURS = {"app.kubernetes.io/name": "epsilon-ledger"}
NEWEST = kubernetes_validate.latest_version()
OLDEST = "1.29"
MOST_CONNECTIONS = 100
"""PostgreSQL's own max_connections."""

FOREIGN = {"Kustomization", "Component", "ServiceMonitor"}
"""Kinds that are not Kubernetes' own."""

FILES = [path for folder in ("base", "trial", "backup") for path in sorted((KUBERNETES / folder).glob("[!k]*.yaml"))]


def rendered(folder: Path, overlay: str) -> list[Document]:
    """What kustomize makes of base, trial or another overlay, in a folder's copy with secrets of its own."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which renders kustomizations without a cluster")
    copy = folder / "kubernetes"
    if not copy.exists():
        shutil.copytree(KUBERNETES, copy, ignore=shutil.ignore_patterns("secrets"))
    if not (copy / "trial" / "secrets").exists():
        run([ROOT / "deploy" / "secrets.sh", copy / "trial" / "secrets"])
    return documents(run(["kubectl", "kustomize", copy / overlay], timeout=180).stdout)


@dataclass
class Pod:
    """A pod as some document would make it."""

    owner: Document
    template: Document

    def __post_init__(self) -> None:
        self.labels: dict[str, str] = self.template["metadata"]["labels"]
        self.spec: Document = self.template["spec"]
        self.containers: list[Document] = [*self.spec.get("initContainers", []), *self.spec["containers"]]

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
    named = [maps[source["configMapRef"]["name"]] for source in container.get("envFrom", [])]
    own = {each["name"]: each["value"] for each in container.get("env", [])}
    return {name: value for each in (*named, own) for name, value in each.items()}


def _validate(found: list[Document], version: str) -> None:
    assert found
    for document in found:
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the manifests, with an operator's own folder as the page shows it, components and rules."""
    folder = tmp_path_factory.mktemp("deploy")
    page = (ROOT / "docs" / "operations" / "deployment.md").read_text()
    [shown] = [yaml.safe_load(fence.text) for fence in fences(page) if fence.language == "yaml"]
    assert shown["resources"] == ["../epsilon-ledger/deploy/kubernetes/base"]
    shown |= {"resources": ["../base"], "components": ["../workload-identity", "../prometheus", "../backup"]}
    shown["configMapGenerator"].append({"name": "epsilon-ledger-workload-issuers", "files": ["issuers.yaml"]})
    shutil.copytree(KUBERNETES, folder / "kubernetes", ignore=shutil.ignore_patterns("secrets"))
    own = folder / "kubernetes" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(yaml.safe_dump(shown))
    rules = (KUBERNETES / "workload-identity" / "issuers.yaml").read_text()
    (own / "issuers.yaml").write_text(rules.replace("icu:trainer", "own:trainer"))
    return folder


@pytest.fixture(scope="module")
def own(folder: Path) -> list[Document]:
    """What `kubectl apply -k` would send of an operator's own folder."""
    return rendered(folder, "own")


@pytest.fixture(scope="module", params=("base", "trial"))
def made(request: pytest.FixtureRequest, folder: Path) -> list[Document]:
    """What it would send of another one."""
    return rendered(folder, request.param)


def _deployment(found: list[Document]) -> tuple[Document, Document]:
    """The pod of the service, and its container."""
    [deployment] = of_kind(found, "Deployment")
    pod: Document = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container


def _settings(found: list[Document], container: Document) -> Settings:
    """The settings of the service in a container."""
    variables = variables_of(found, container | {"env": []}).items()  # those of components name files that are not here
    return Settings.model_validate({name.removeprefix(PREFIX).lower(): v for name, v in variables if PREFIX in name})


def test_file_is_valid_for_the_oldest_version_and_its_kustomization_names_it() -> None:
    for file in FILES:
        _validate(documents(file.read_text()), OLDEST)
        [kustomization] = documents((file.parent / "kustomization.yaml").read_text())
        assert file.name in kustomization["resources"]


def test_rendered_manifests_are_valid_and_a_wrong_field_is_not(own: list[Document], folder: Path) -> None:
    known = {document["metadata"]["name"] for document in own}
    _validate([*own, *(each for each in rendered(folder, "trial") if each["metadata"]["name"] not in known)], NEWEST)
    [deployment] = of_kind(own, "Deployment")
    wrong = json.loads(json.dumps(deployment))
    wrong["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate([wrong], NEWEST)


def test_selectors_choose_the_pods_that_they_are_for(made: list[Document]) -> None:
    assert not [document for document in made if "namespace" in document["metadata"]]  # the operator's own
    among = pods(made)
    for pod in among:
        if "selector" in pod.owner["spec"]:
            assert selected(pod.owner["spec"]["selector"]["matchLabels"], among) == [pod]
        for spread in pod.spec.get("topologySpreadConstraints", []):
            assert selected(spread["labelSelector"]["matchLabels"], among) == [pod]
    for service in of_kind(made, "Service"):
        [pod] = selected(service["spec"]["selector"], among)
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= pod.ports().keys()
    for budget in of_kind(made, "PodDisruptionBudget"):
        [pod] = selected(budget["spec"]["selector"]["matchLabels"], among)
        assert budget["spec"]["minAvailable"] < pod.owner["spec"]["replicas"]


def test_service_reaches_its_database_names_and_public_receivers_only(made: list[Document]) -> None:
    [service] = selected({**OURS, "app.kubernetes.io/component": "service"}, pods(made))
    reached: dict[int, list[Any]] = {}
    for policy in of_kind(made, "NetworkPolicy"):
        if policy["spec"]["podSelector"]["matchLabels"].items() <= service.labels.items():
            for rule in policy["spec"].get("egress", []):
                for port in rule["ports"]:
                    reached.setdefault(port["port"], []).extend(rule.get("to", []))
    assert set(reached) == {53, 5432, 443}
    assert {block["ipBlock"]["cidr"] for block in reached[443]} == {"0.0.0.0/0", "::/0"}
    private = {inner for block in reached[443] for inner in block["ipBlock"]["except"]}
    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"} <= private


def test_variables_are_settings_whose_files_are_mounted(made: list[Document], own: list[Document]) -> None:
    for found in (made, own):
        for pod in selected(OURS, pods(found)):
            secrets = [volume["secret"] for volume in pod.spec["volumes"] if "secret" in volume]
            for each in pod.containers:
                variables = variables_of(found, each)
                assert unknown_settings(list(variables)) == []
                chosen = _settings(found, each)
                assert chosen.database_url.startswith("postgresql://ledger@")
                [mount] = [mount for mount in each["volumeMounts"] if mount["name"] == "secrets"]
                files = {f"{mount['mountPath']}/{item['path']}" for secret in secrets for item in secret["items"]}
                assert chosen.database_password_file in files
                assert each["name"] != "service" or chosen.signing_key_file in files


def test_liveness_does_not_depend_on_the_database_and_readiness_does(made: list[Document]) -> None:
    container = _deployment(made)[1]
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in asked.values()} <= {port["name"] for port in container["ports"]}
    assert [probe["path"] for probe in asked.values()] == ["/healthz", "/healthz", "/readyz"]


def test_image_user_port_and_command_are_those_of_the_dockerfile(made: list[Document]) -> None:
    *_, final = stages()
    user, group = (int(number) for number in only(final, "USER").arguments.split(":"))
    for pod in selected(OURS, pods(made)):
        assert {each["image"] for each in pod.containers} == {f"epsilon-ledger:{VERSION}"}
        context = pod.spec["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, group, group)
    container = _deployment(made)[1]
    assert [port["containerPort"] for port in container["ports"]] == [int(only(final, "EXPOSE").arguments)]
    assert container["command"] == only(final, "CMD").command
    for database in (pod for pod in pods(made) if pod.owner["kind"] == "StatefulSet"):
        assert re.fullmatch(r"postgres:\d+-[a-z]+@sha256:[0-9a-f]{64}", database.containers[0]["image"])


def test_every_container_is_locked_up_and_has_its_limits(made: list[Document], own: list[Document]) -> None:
    for pod in (*pods(made), *pods(own)):
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod.containers:
            context = each["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert each["resources"].keys() == {"requests", "limits"}
            assert all(part.keys() == {"cpu", "memory"} for part in each["resources"].values())
            assert "/tmp" in [mount["mountPath"] for mount in each["volumeMounts"]]  # noqa: S108 - in the container


def test_replicas_are_replaced_in_turns_and_finish_what_they_accepted(made: list[Document]) -> None:
    [deployment] = of_kind(made, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod, container = _deployment(made)
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause + STATEMENT_TIMEOUT_SECONDS + 10
    assert (deployment["spec"]["replicas"] + 1) * POOL_SIZE < MOST_CONNECTIONS


def test_kustomization_of_the_page_has_its_namespace_image_and_database(own: list[Document]) -> None:
    assert {document["metadata"]["namespace"] for document in own} == {"ledger"}
    images = {each["image"] for pod in pods(own) for each in pod.containers if "postgres" not in each["image"]}
    assert images == {"registry.example/epsilon-ledger:0.1.0"}
    chosen = _settings(own, _deployment(own)[1])
    assert make_url(chosen.database_url).host == "db.example"
    Database(chosen.database_url).dispose()  # its options are libpq's


def test_workloads_are_known_by_the_rules_of_an_overlay(own: list[Document], tmp_path: Path) -> None:
    pod, container = _deployment(own)
    variables = variables_of([], container | {"envFrom": []})
    assert unknown_settings(list(variables)) == []
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    folder, _, name = variables["EPSILON_LEDGER_WORKLOAD_ISSUERS_FILE"].rpartition("/")
    mounted = volumes[mounts[folder]]["configMap"]["name"]
    [kept] = [each for each in of_kind(own, "ConfigMap") if each["metadata"]["name"] == mounted]
    assert "own:trainer" in kept["data"][name]
    (tmp_path / name).write_text(kept["data"][name])
    [issuer] = read_workload_issuers(tmp_path / name)
    folder = next(path for path, volume in mounts.items() if volume == "cluster")
    sources = volumes["cluster"]["projected"]["sources"]
    items = [item for source in sources for item in source.get("configMap", {}).get("items", [])]
    items += [source["serviceAccountToken"] for source in sources if "serviceAccountToken" in source]
    assert {f"{folder}/{item['path']}" for item in items} == {issuer.access.ca_file, issuer.access.token_file}


def test_backup_has_its_script_images_and_scratch_database(own: list[Document]) -> None:
    [pod] = selected({**OURS, "app.kubernetes.io/component": "backup"}, pods(own))
    dump, verification = pod.containers
    assert dump["image"] in (KUBERNETES / "trial" / "postgres.yaml").read_text()
    assert verification["image"] == _deployment(own)[1]["image"]
    [volume] = [volume for volume in pod.spec["volumes"] if volume["name"] == "script"]
    scripts = [
        each["data"] for each in of_kind(own, "ConfigMap") if each["metadata"]["name"] == volume["configMap"]["name"]
    ]
    folder, _, name = dump["command"][1].rpartition("/")
    assert folder in [mount["mountPath"] for mount in dump["volumeMounts"]]
    assert scripts == [{name: (KUBERNETES / "backup" / name).read_text()}]
    assert variables_of(own, verification) == variables_of(own, dump)
    scratch = make_url(variables_of(own, dump)["SCRATCH_DATABASE_URL"])
    created = f"CREATE DATABASE {scratch.database} OWNER {scratch.username}"
    assert created in (KUBERNETES / "trial" / "create-ledger.sh").read_text()
