"""The manifests: valid for Kubernetes, and true to each other, to the image, and to the service."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from fastapi.routing import APIRoute
from sqlalchemy import make_url

from app.api.routers import health
from app.persistence.database import POOL_SIZE, Database
from app.persistence.postgresql import STATEMENT_TIMEOUT_SECONDS
from app.settings import PREFIX, Settings
from app.version import VERSION
from app.workload_settings import read_workload_issuers
from tests.deploy.container_commands import unknown_settings
from tests.deploy.manifests import KUBERNETES, Document, documents, of_kind, pods, rendered, selected, variables_of
from tests.docs.markdown import fences
from tests.packaging.dockerfile import ROOT, only, stages

OURS = {"app.kubernetes.io/name": "epsilon-ledger"}
OVERLAYS = ("base", "trial")
NEWEST = kubernetes_validate.latest_version()
OLDEST = "1.29"
MOST_CONNECTIONS = 100
"""PostgreSQL's own max_connections."""

FOREIGN = {"Kustomization", "Component", "ServiceMonitor"}
"""Kinds that are not Kubernetes' own."""

FILES = [path for folder in (*OVERLAYS, "backup") for path in sorted((KUBERNETES / folder).glob("[!k]*.yaml"))]


def _validate(found: list[Document], version: str) -> None:
    assert found
    for document in found:
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.fixture(scope="module", params=OVERLAYS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """What `kubectl apply -k` would send."""
    return rendered(tmp_path_factory.mktemp("deploy"), request.param)


def _own(folder: Path, *components: str) -> list[Document]:
    """The folder of an operator's own, as the page shows it, with components and rules of their own."""
    page = (ROOT / "docs" / "operations" / "deployment.md").read_text()
    [shown] = [yaml.safe_load(fence.text) for fence in fences(page) if fence.language == "yaml"]
    assert shown["resources"] == ["../epsilon-ledger/deploy/kubernetes/base"]
    shown |= {"resources": ["../base"], "components": [f"../{name}" for name in components]}
    shown["configMapGenerator"].append({"name": "epsilon-ledger-workload-issuers", "files": ["issuers.yaml"]})
    own = folder / "kubernetes" / "own"
    shutil.copytree(KUBERNETES, folder / "kubernetes", ignore=shutil.ignore_patterns("secrets"))
    own.mkdir()
    (own / "kustomization.yaml").write_text(yaml.safe_dump(shown))
    rules = (KUBERNETES / "workload-identity" / "issuers.yaml").read_text()
    (own / "issuers.yaml").write_text(rules.replace("icu:trainer", "own:trainer"))
    return rendered(folder, "own")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    return _own(tmp_path_factory.mktemp("own"), "workload-identity", "prometheus", "backup")


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


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(KUBERNETES).as_posix())
def test_file_is_valid_for_the_oldest_version_and_its_kustomization_names_it(file: Path) -> None:
    _validate(documents(file.read_text()), OLDEST)
    [kustomization] = documents((file.parent / "kustomization.yaml").read_text())
    assert file.name in kustomization["resources"]


def test_rendered_manifests_are_valid_and_a_wrong_field_is_not(own: list[Document], tmp_path: Path) -> None:
    known = {document["metadata"]["name"] for document in own}
    _validate([*own, *(each for each in rendered(tmp_path, "trial") if each["metadata"]["name"] not in known)], NEWEST)
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


def test_network_policies_open_the_ports_of_each_pod_and_no_other(made: list[Document]) -> None:
    among = pods(made)
    opened: dict[str, set[object]] = {}
    for policy in of_kind(made, "NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        chosen = selected(policy["spec"]["podSelector"]["matchLabels"], among)
        assert chosen
        for rule in policy["spec"].get("ingress", []):
            assert all(selected(source["podSelector"]["matchLabels"], among) for source in rule.get("from", []))
        for pod in chosen:
            ports = opened.setdefault(pod.owner["metadata"]["name"], set())
            ports |= {port["port"] for rule in policy["spec"].get("ingress", []) for port in rule["ports"]}
    assert opened == {pod.owner["metadata"]["name"]: set(pod.ports().values()) for pod in among}


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


def test_volumes_come_from_objects_that_exist(made: list[Document]) -> None:
    keys = {
        (document["kind"], document["metadata"]["name"]): set(document["data"])
        for kind in ("Secret", "ConfigMap")
        for document in of_kind(made, kind)
    }
    # Whose secrets are made by their operator: docs/operations/deployment.md says how.
    keys.setdefault(("Secret", "epsilon-ledger"), {"database-password", "signing.pem"})
    for pod in pods(made):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        claims = {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", [])}
        mounted = {mount["name"] for each in pod.containers for mount in each["volumeMounts"]}
        assert mounted == volumes.keys() | claims
        for volume in volumes.values():
            if "secret" in volume:
                held = keys["Secret", volume["secret"]["secretName"]]
                assert {item["key"] for item in volume["secret"]["items"]} <= held
                assert volume["secret"]["defaultMode"] == 0o440
            assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in keys


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
    assert asked["liveness"]["path"] == asked["startup"]["path"] == "/healthz"
    assert asked["readiness"]["path"] == "/readyz"


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
    spec = deployment["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod, container = _deployment(made)
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause + STATEMENT_TIMEOUT_SECONDS + 10
    assert (spec["replicas"] + 1) * POOL_SIZE < MOST_CONNECTIONS


def test_kustomization_of_the_page_has_its_namespace_image_and_database(own: list[Document]) -> None:
    assert {document["metadata"]["namespace"] for document in own} == {"ledger"}
    images = {each["image"] for pod in pods(own) for each in pod.containers if "postgres" not in each["image"]}
    assert images == {"registry.example/epsilon-ledger:0.1.0"}
    chosen = _settings(own, _deployment(own)[1])
    assert make_url(chosen.database_url).host == "db.example"
    Database(chosen.database_url).dispose()  # its options are libpq's


def test_prometheus_reads_each_replica_with_the_token_of_the_secret(own: list[Document]) -> None:
    [monitor], [service] = of_kind(own, "ServiceMonitor"), of_kind(own, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in {route.path for route in health.routes.routes if isinstance(route, APIRoute)}
    pod, container = _deployment(own)
    [secret] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    key = endpoint["authorization"]["credentials"]
    assert key["name"] == secret["secretName"]
    file = variables_of([], container | {"envFrom": []})["EPSILON_LEDGER_METRICS_TOKEN_FILE"]
    [mount] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "secrets"]
    assert {f"{mount}/{item['path']}": item["key"] for item in secret["items"]}[file] == key["key"]
    assert len(secret["items"]) == 3


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


def test_components_do_the_same_in_any_order(own: list[Document], tmp_path: Path) -> None:
    pod, container = _deployment(_own(tmp_path, "prometheus", "backup", "workload-identity"))
    first_pod, first = _deployment(own)
    for part, one, other in (
        ("volumes", pod, first_pod),
        ("env", container, first),
        ("volumeMounts", container, first),
    ):
        assert sorted(map(json.dumps, one[part])) == sorted(map(json.dumps, other[part]))


def test_backup_has_its_script_images_volume_and_scratch_database(own: list[Document]) -> None:
    [pod] = selected({**OURS, "app.kubernetes.io/component": "backup"}, pods(own))
    dump, verification = pod.containers
    trial = KUBERNETES / "trial"
    assert dump["image"] in (trial / "postgres.yaml").read_text()
    assert verification["image"] == _deployment(own)[1]["image"]
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    mounted = volumes["script"]["configMap"]["name"]
    [script] = [each["data"] for each in of_kind(own, "ConfigMap") if each["metadata"]["name"] == mounted]
    folder, _, name = dump["command"][1].rpartition("/")
    assert folder in [mount["mountPath"] for mount in dump["volumeMounts"]]
    assert script == {name: (KUBERNETES / "backup" / name).read_text()}
    [claim] = of_kind(own, "PersistentVolumeClaim")
    assert volumes["backups"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert variables_of(own, verification) == variables_of(own, dump)
    scratch = make_url(variables_of(own, dump)["SCRATCH_DATABASE_URL"])
    created = f"CREATE DATABASE {scratch.database} OWNER {scratch.username}"
    assert created in (trial / "create-ledger.sh").read_text()
    assert pod.owner["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
