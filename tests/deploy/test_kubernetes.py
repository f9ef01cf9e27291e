"""The manifests: valid for Kubernetes, and true to each other, to the image, and to the service."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from fastapi.routing import APIRoute
from sqlalchemy import make_url

from app.api.routers import health
from app.persistence.database import POOL_SIZE, Database
from app.persistence.postgresql import STATEMENT_TIMEOUT_SECONDS
from app.settings import PREFIX, Settings
from app.workload_settings import read_workload_issuers
from tests.deploy.container_commands import commands_in, require_command, unknown_settings
from tests.deploy.manifests import KUBERNETES, Document, Pod, documents, of_kind, pods, rendered, selected
from tests.docs.markdown import fences
from tests.packaging.dockerfile import ROOT, only, stages

OURS = {"app.kubernetes.io/name": "epsilon-ledger"}
OVERLAYS = ("base", "trial")
NEWEST = kubernetes_validate.latest_version()
OLDEST = "1.29"
MOST_CONNECTIONS = 100
"""PostgreSQL's own max_connections."""

FILES = [path for overlay in OVERLAYS for path in sorted((KUBERNETES / overlay).glob("[!k]*.yaml"))]


@pytest.fixture(scope="module", params=OVERLAYS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """What `kubectl apply -k` would send."""
    return rendered(tmp_path_factory.mktemp("deploy"), request.param)


@pytest.fixture(scope="module")
def ours(made: list[Document]) -> list[Pod]:
    return selected(OURS, pods(made))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(KUBERNETES).as_posix())
def test_a_file_is_valid_as_it_stands(file: Path, version: str) -> None:
    found = documents(file.read_text())
    assert found
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_file_is_named_by_its_kustomization(overlay: str) -> None:
    [kustomization] = documents((KUBERNETES / overlay / "kustomization.yaml").read_text())
    named = {name for name in kustomization["resources"] if not name.startswith("..")}
    assert named == {path.name for path in FILES if path.parent.name == overlay}


def test_what_is_rendered_is_valid(made: list[Document]) -> None:
    for document in made:
        kubernetes_validate.validate(document, NEWEST, strict=True)


def test_a_field_that_does_not_exist_would_be_noticed(made: list[Document]) -> None:
    [deployment] = of_kind(made, "Deployment")
    wrong = json.loads(json.dumps(deployment))
    wrong["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_no_namespace_stands_in_the_way_of_the_operators_own(made: list[Document]) -> None:
    assert not [document for document in made if "namespace" in document["metadata"]]


def test_selectors_choose_the_pods_that_they_are_for(made: list[Document]) -> None:
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


def test_every_pod_is_under_a_policy_that_lets_in_only_what_its_ports_are_for(made: list[Document]) -> None:
    among = pods(made)
    open_ports: dict[str, set[object]] = {pod.owner["metadata"]["name"]: set() for pod in among}
    governed = set()
    for policy in of_kind(made, "NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        chosen = selected(policy["spec"]["podSelector"]["matchLabels"], among)
        assert chosen
        for pod in chosen:
            governed.add(pod.owner["metadata"]["name"])
            for rule in policy["spec"].get("ingress", []):
                open_ports[pod.owner["metadata"]["name"]] |= {port["port"] for port in rule["ports"]}
                for source in rule.get("from", []):
                    assert selected(source["podSelector"]["matchLabels"], among)
    assert governed == open_ports.keys()
    assert open_ports == {pod.owner["metadata"]["name"]: set(pod.ports().values()) for pod in among}


def test_the_service_reaches_its_database_names_and_receivers_and_nothing_else(made: list[Document]) -> None:
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


def test_what_is_mounted_or_read_exists(made: list[Document]) -> None:
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
        mounted = [mount["name"] for each in pod.containers for mount in each["volumeMounts"]]
        assert set(mounted) == volumes.keys() | claims
        for volume in volumes.values():
            if "secret" in volume:
                held = keys["Secret", volume["secret"]["secretName"]]
                assert {item["key"] for item in volume["secret"]["items"]} <= held
                assert volume["secret"]["defaultMode"] == 0o440
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in keys
        for each in pod.containers:
            for source in each.get("envFrom", []):
                assert ("ConfigMap", source["configMapRef"]["name"]) in keys


def _ours_of(made: list[Document]) -> list[dict[str, str]]:
    """The settings that the service gets."""
    return [
        {name.removeprefix(PREFIX).lower(): value for name, value in document["data"].items()}
        for document in of_kind(made, "ConfigMap")
        if f"{PREFIX}DATABASE_URL" in document["data"]
    ]


def _variables(made: list[Document], container: Document) -> dict[str, str]:
    """The environment of a container."""
    maps = {document["metadata"]["name"]: document["data"] for document in of_kind(made, "ConfigMap")}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    return found | {each["name"]: each["value"] for each in container.get("env", [])}


def test_variables_are_settings_and_the_files_that_they_name_are_mounted(made: list[Document], ours: list[Pod]) -> None:
    for pod in ours:
        secrets = [volume["secret"] for volume in pod.spec["volumes"] if "secret" in volume]
        for each in pod.containers:
            variables = _variables(made, each)
            assert unknown_settings(list(variables)) == []
            [chosen] = map(Settings.model_validate, _ours_of(made))
            assert chosen.database_url.startswith("postgresql://ledger@")
            [mount] = [mount for mount in each["volumeMounts"] if mount["name"] == "secrets"]
            files = {f"{mount['mountPath']}/{item['path']}" for secret in secrets for item in secret["items"]}
            assert chosen.database_password_file in files
            if each["name"] == "service":
                assert chosen.signing_key_file in files


def test_the_database_of_the_trial_is_the_one_that_is_asked(made: list[Document]) -> None:
    databases = selected({"app.kubernetes.io/name": "postgres"}, pods(made))
    asked = make_url(next(map(Settings.model_validate, _ours_of(made))).database_url)
    for pod in databases:
        [service] = [each for each in of_kind(made, "Service") if each["metadata"]["name"] == asked.host]
        assert selected(service["spec"]["selector"], databases) == [pod]
        assert service["spec"]["ports"][0]["port"] == asked.port
        [container] = pod.containers
        assert re.fullmatch(r"postgres:\d+-[a-z]+@sha256:[0-9a-f]{64}", container["image"])
        folders = [mount["mountPath"] for mount in container["volumeMounts"]]
        for name, value in _variables(made, container).items():
            assert name == "PGDATA" or str(Path(value).parent) in folders


def test_every_command_is_one_that_the_command_line_takes(ours: list[Pod]) -> None:
    started = []
    for pod in ours:
        for each in pod.containers:
            shell = each["command"][:2] == ["sh", "-c"]
            asked = commands_in(each["command"][2]) if shell else [each["command"]]
            assert asked
            for words in asked:
                require_command(words)
                started.append(words[1])
    assert set(started) == {"serve", "migrate", "verify"}


def test_probes_ask_what_the_service_answers(made: list[Document]) -> None:
    answered = json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]
    [deployment] = of_kind(made, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    ports = {port["name"] for port in container["ports"]}
    assert {probe["port"] for probe in asked.values()} <= ports
    assert {probe["path"] for probe in asked.values()} <= answered.keys()
    # A database that is down is no reason to end a process that waits for it.
    assert asked["liveness"]["path"] == asked["startup"]["path"] == "/healthz"
    assert asked["readiness"]["path"] == "/readyz"


def test_the_image_is_the_one_that_the_dockerfile_makes(made: list[Document], ours: list[Pod]) -> None:
    *_, final = stages()
    version = re.search(r'(?m)^version = "(.*)"$', (ROOT / "pyproject.toml").read_text())
    assert version
    user, group = (int(number) for number in only(final, "USER").arguments.split(":"))
    for pod in ours:
        assert {each["image"] for each in pod.containers} == {f"epsilon-ledger:{version[1]}"}
        context = pod.spec["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, group, group)
    [service] = selected({"app.kubernetes.io/component": "service"}, ours)
    assert list(service.ports().values()) == [int(only(final, "EXPOSE").arguments)]
    assert service.spec["containers"][0]["command"] == only(final, "CMD").command
    assert made


def test_every_container_is_locked_up_and_has_its_limits(made: list[Document]) -> None:
    for pod in pods(made):
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


def test_two_replicas_take_turns_in_being_replaced_and_finish_what_they_accepted(made: list[Document]) -> None:
    [deployment] = of_kind(made, "Deployment")
    spec = deployment["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = spec["template"]["spec"]
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause + STATEMENT_TIMEOUT_SECONDS + 10
    assert (spec["replicas"] + 1) * POOL_SIZE < MOST_CONNECTIONS


def test_a_kustomization_of_ones_own_is_made_as_the_page_shows(tmp_path: Path) -> None:
    [shown] = [
        fence.text
        for fence in fences((ROOT / "docs" / "operations" / "deployment.md").read_text())
        if fence.language == "yaml"
    ]
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    own = tmp_path / "kubernetes" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(shown.replace("../epsilon-ledger/deploy/kubernetes/base", "../base"))
    made = rendered(tmp_path, "own")
    assert {document["metadata"]["namespace"] for document in made} == {"ledger"}
    assert {each["image"] for pod in pods(made) for each in pod.containers} == {"registry.example/epsilon-ledger:0.1.0"}
    [chosen] = map(Settings.model_validate, _ours_of(made))
    assert chosen.signing_key_file
    assert make_url(chosen.database_url).host == "db.example"
    Database(chosen.database_url).dispose()  # its options are libpq's


def test_prometheus_reads_each_replica_with_the_token_that_the_secret_has(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    own = tmp_path / "kubernetes" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text("resources: [../base]\ncomponents: [../prometheus]\n")
    made = rendered(tmp_path, "own")
    [deployment] = of_kind(made, "Deployment")
    kubernetes_validate.validate(deployment, NEWEST, strict=True)
    [monitor] = of_kind(made, "ServiceMonitor")
    [service] = of_kind(made, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in {route.path for route in health.routes.routes if isinstance(route, APIRoute)}

    pod = deployment["spec"]["template"]["spec"]
    [secret] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    key = endpoint["authorization"]["credentials"]
    assert key["name"] == secret["secretName"]
    [container] = pod["containers"]
    [(name, file)] = _variables([], container | {"envFrom": []}).items()
    assert unknown_settings([name]) == []
    [mount] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "secrets"]
    assert {f"{mount}/{item['path']}": item["key"] for item in secret["items"]}[file] == key["key"]
    assert len(secret["items"]) == 3


@pytest.mark.parametrize(
    "components", ["[../workload-identity, ../prometheus]", "[../prometheus, ../workload-identity]"]
)
def test_workloads_are_known_by_the_rules_of_an_overlay(tmp_path: Path, components: str) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    own = tmp_path / "kubernetes" / "own"
    own.mkdir()
    rules = (KUBERNETES / "workload-identity" / "issuers.yaml").read_text().replace("icu:trainer", "own:trainer")
    (own / "issuers.yaml").write_text(rules)
    (own / "kustomization.yaml").write_text(
        f"resources: [../base]\ncomponents: {components}\nconfigMapGenerator:\n"
        "  - {name: epsilon-ledger-workload-issuers, files: [issuers.yaml]}\n"
    )
    made = rendered(tmp_path, "own")
    [deployment] = of_kind(made, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    for document in (deployment, *of_kind(made, "NetworkPolicy")):
        kubernetes_validate.validate(document, NEWEST, strict=True)
    variables = _variables([], container | {"envFrom": []})
    assert set(variables) == {"EPSILON_LEDGER_METRICS_TOKEN_FILE", "EPSILON_LEDGER_WORKLOAD_ISSUERS_FILE"}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    folder, _, name = variables["EPSILON_LEDGER_WORKLOAD_ISSUERS_FILE"].rpartition("/")
    [kept] = [
        each
        for each in of_kind(made, "ConfigMap")
        if each["metadata"]["name"] == volumes[mounts[folder]]["configMap"]["name"]
    ]
    assert kept["data"] == {name: rules}
    file = tmp_path / "issuers.yaml"
    file.write_text(kept["data"][name])
    [issuer] = read_workload_issuers(file)
    [projected] = [volume["projected"] for volume in volumes.values() if "projected" in volume]
    folder = next(path for path, volume in mounts.items() if volume == "cluster")
    paths = {f"{folder}/{each['path']}" for source in projected["sources"] for each in _files(source)}
    assert paths == {issuer.access.ca_file, issuer.access.token_file}


def _files(source: Document) -> list[Document]:
    return [source["serviceAccountToken"]] if "serviceAccountToken" in source else source["configMap"]["items"]


def test_a_backup_is_dumped_restored_and_compared(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    own = tmp_path / "kubernetes" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text("resources: [../base]\ncomponents: [../backup]\n")
    made = rendered(tmp_path, "own")
    for document in documents((KUBERNETES / "backup" / "backup.yaml").read_text()):
        kubernetes_validate.validate(document, OLDEST, strict=True)
    for document in made:
        kubernetes_validate.validate(document, NEWEST, strict=True)
    [pod] = selected({**OURS, "app.kubernetes.io/component": "backup"}, pods(made))
    dump, verification = pod.containers
    assert dump["image"] in (KUBERNETES / "trial" / "postgres.yaml").read_text()
    [deployment] = of_kind(made, "Deployment")
    assert verification["image"] == deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    [script] = [
        document["data"]
        for document in of_kind(made, "ConfigMap")
        if document["metadata"]["name"] == volumes["script"]["configMap"]["name"]
    ]
    folder, _, name = dump["command"][1].rpartition("/")
    assert folder in [mount["mountPath"] for mount in dump["volumeMounts"]]
    assert script == {name: (KUBERNETES / "backup" / name).read_text()}
    [claim] = of_kind(made, "PersistentVolumeClaim")
    assert volumes["backups"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    variables = _variables(made, verification)
    assert variables == _variables(made, dump)
    assert unknown_settings(list(variables)) == []
    used = set(re.findall(r"\$\{?(?!BACKUP)([A-Z_]{4,})", script[name] + verification["command"][2]))
    assert used - {"PGPASSWORD"} <= variables.keys()
    live, scratch = (make_url(variables[key]) for key in ("EPSILON_LEDGER_DATABASE_URL", "SCRATCH_DATABASE_URL"))
    assert (live.host, live.username) == (scratch.host, scratch.username)
    assert (
        f"CREATE DATABASE {scratch.database} OWNER {scratch.username}"
        in (KUBERNETES / "trial" / "create-ledger.sh").read_text()
    )
    [command] = commands_in(verification["command"][2])
    require_command(command)
    assert pod.owner["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
