"""How manifests become containers and packet filters in `python -m tests.deploy.engine`, which starts them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.engine.images import Images, over_base
from tests.deploy.engine.network_policies import rules_of
from tests.deploy.engine.pods import image_for, limit_options, security_options
from tests.deploy.engine.volumes import Volumes, quantity
from tests.deploy.manifests import Document, Pod, of_kind, pods, rendered
from tests.packaging.dockerfile import ROOT

NODE = "10.244.0.1"


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    return rendered(tmp_path_factory.mktemp("trial"), "trial")


@pytest.fixture(scope="module")
def addresses(documents: list[Document]) -> dict[str, Pod]:
    return {f"10.244.0.{place}": pod for place, pod in enumerate(pods(documents), 10)}


def _rules(documents: list[Document], addresses: dict[str, Pod], name: str) -> tuple[list[str], list[str]]:
    """The lines of a pod's rules for what comes in and what goes out, after the general ones."""
    [pod] = [pod for pod in addresses.values() if pod.owner["metadata"]["name"] == name]
    text = rules_of(pod, of_kind(documents, "NetworkPolicy"), addresses, NODE)
    before, after = text.split("chain pod_egress")
    lines = ([line.strip() for line in part.splitlines()] for part in (before, after))
    incoming, outgoing = ([line for line in part if "dport" in line or line == "drop"] for part in lines)
    return incoming, outgoing


def test_the_service_takes_one_port_and_reaches_public_addresses(
    documents: list[Document], addresses: dict[str, Pod]
) -> None:
    incoming, outgoing = _rules(documents, addresses, "epsilon-ledger")
    assert incoming == ["tcp dport 8000 accept", "drop"]
    assert outgoing[:3] == ["udp dport 53 accept", "tcp dport 53 accept", "tcp dport 5432 accept"]
    assert outgoing[3].startswith("ip daddr 0.0.0.0/0 ip daddr != { 10.0.0.0/8, ")
    assert outgoing[3].endswith("} tcp dport 443 accept")
    assert outgoing[4].startswith("ip6 daddr ::/0 ")
    assert outgoing[5:] == ["drop"]


def test_the_database_is_reached_by_the_pods_of_the_service_only(
    documents: list[Document], addresses: dict[str, Pod]
) -> None:
    incoming, outgoing = _rules(documents, addresses, "postgres")
    ours = sorted(address for address, pod in addresses.items() if pod.owner["metadata"]["name"] != "postgres")
    assert incoming == [f"ip saddr {{ {', '.join(ours)} }} tcp dport 5432 accept", "drop"]
    assert outgoing == ["drop"]


def test_a_pod_that_no_policy_chooses_is_not_bounded(documents: list[Document], addresses: dict[str, Pod]) -> None:
    template = {"metadata": {"labels": {"app": "other"}}, "spec": {}}
    text = rules_of(Pod({}, template), of_kind(documents, "NetworkPolicy"), addresses, NODE)
    assert "drop" not in text


def test_what_is_not_understood_is_refused(addresses: dict[str, Pod]) -> None:
    pod = addresses["10.244.0.10"]
    for selector, peers in (({"matchExpressions": []}, []), ({}, [{"namespaceSelector": {}}])):
        spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]}
        with pytest.raises(NotImplementedError):
            rules_of(pod, [{"spec": spec}], addresses, NODE)


@pytest.mark.parametrize(("text", "number"), [("64Mi", 64 << 20), ("1Gi", 1 << 30), ("500m", 0.5), ("2", 2)])
def test_quantities_are_read_as_kubernetes_does(text: str, number: float) -> None:
    assert quantity(text) == number


def test_contexts_become_options_and_root_is_refused() -> None:
    pod = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
    container = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert list(security_options(pod, container)) == [
        "--user=10001:10001",
        "--group-add=10001",
        "--read-only",
        "--security-opt=no-new-privileges:true",
        "--cap-drop=ALL",
    ]
    with pytest.raises(ValueError, match="as root"):
        list(security_options(pod | {"runAsUser": 0}, container))
    options = list(limit_options({"memory": "64Mi", "cpu": "500m"}))
    assert options == ["--memory=67108864", "--memory-swap=67108864", "--cpus=0.5"]


def test_an_image_without_a_version_is_refused() -> None:
    images = Images("ours", "theirs", "proxy")
    assert image_for("epsilon-ledger:0.1.0", images) == "ours"
    assert image_for(f"postgres:17-bookworm@sha256:{'0' * 64}", images) == "theirs"
    for name in ("epsilon-ledger", "postgres:17-bookworm", "busybox:1"):
        with pytest.raises(ValueError, match="not known"):
            image_for(name, images)


def test_variables_come_from_the_config_map(documents: list[Document], tmp_path: Path) -> None:
    [service] = [pod for pod in pods(documents) if pod.owner["kind"] == "Deployment"]
    variables = Volumes(tmp_path, documents).variables(service.spec["containers"][0])
    assert variables["EPSILON_LEDGER_DATABASE_URL"] == "postgresql://ledger@postgres:5432/ledger"


def test_every_stage_over_python_gets_the_stand_in() -> None:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM ")]
    changed = [over_base(line) for line in lines]
    assert [line.rpartition(" ")[2] for line in changed] == ["system", "build", "scratch"]
    assert not any("python:" in line for line in changed)


def test_where_programs_are_missing_it_says_so_loudly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.deploy.engine"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("SKIPPED, nothing was tried: buildah, ")
    assert "apt-get install" in done.stderr
