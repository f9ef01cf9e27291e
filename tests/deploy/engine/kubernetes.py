"""The Kubernetes manifests, started by a small kubelet over the engine."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Final

import httpx2

from benchmarks.failover.load import Load
from tests.deploy.engine.cluster import Cluster
from tests.deploy.engine.daemon import Engine, process_status, run
from tests.deploy.engine.images import Images
from tests.deploy.engine.pods import RunningPod
from tests.deploy.engine.report import Report, wait_for
from tests.deploy.engine.world import PRIVATE, PROBE, PUBLIC
from tests.deploy.manifests import KUBERNETES, Document, Pod, of_kind, rendered

NAME: Final = "epsilon-ledger"
STEPS_BETWEEN: Final = 60
OWN: Final = """
resources: [../trial]
components: [../backup, ../prometheus, ../workload-identity]
secretGenerator:
  - {name: epsilon-ledger, behavior: merge, literals: [metrics-token=the-token-of-the-trial]}
configMapGenerator:
  - {name: epsilon-ledger-workload-issuers, files: [issuers.yaml]}
"""
"""An operator's own folder, with the components."""


def try_kubernetes(engine: Engine, folder: Path, images: Images, report: Report) -> None:
    """Apply the trial, step runs, lose and replace pods, add the components, and run the scheduled jobs."""
    report.title("Kubernetes")
    folder.mkdir()
    own = folder / "kubernetes" / "own"
    documents = rendered(folder, "trial")
    own.mkdir()
    (own / "issuers.yaml").write_text((KUBERNETES / "workload-identity" / "issuers.yaml").read_text())
    (own / "kustomization.yaml").write_text(OWN)
    cluster = Cluster(engine, folder, images, documents)
    try:
        began = time.monotonic()
        cluster.apply()
        report.note("all is available", f"{time.monotonic() - began:.1f} s after `apply`")
        _check_first_start(cluster, report)
        for pod in cluster.running:
            _check_confinement(cluster, pod, report)
        _check_policies(cluster, report)
        _check_load(cluster, report)
        _check_components(cluster, rendered(folder, "own"), report)
        _check_jobs(cluster, report)
    finally:
        cluster.close()


def _check_first_start(cluster: Cluster, report: Report) -> None:
    replicas = cluster.of(NAME)
    report.check("two replicas are ready", holds=[pod.ready for pod in replicas] == [True, True])
    said = "".join(pod.logs("service") for pod in replicas)
    links = re.findall(r"https?://\S+/sign-in/link#lnk_\S+", said)
    report.check("one sign-in link is printed", holds=len(links) == 1, found=len(links))
    waited = [pod.logs("await-migration") for pod in replicas]
    report.check("the replicas wait for the migration", holds=all(waited), found=waited[0].splitlines()[0])


def _check_confinement(cluster: Cluster, pod: RunningPod, report: Report) -> None:
    """What the kernel says of a pod's containers, and what they may do."""
    for container in pod.pod.spec["containers"]:
        name = pod.container(container["name"])
        status = process_status(cluster.engine.inspect(name)["State"]["Pid"])
        facts = [status[key] for key in ("CapBnd", "NoNewPrivs", "Seccomp")]
        report.check(f"{name} has no capability, and gains none", holds=facts == [f"{0:016x}", "1", "2"], found=facts)
        user, stated = status["Uid"].split("\t")[1], pod.pod.spec["securityContext"]["runAsUser"]
        report.check(f"{name} runs as stated", holds=int(user) == stated, found=user)
        written = cluster.engine.run("exec", name, "sh", "-c", "touch /usr/written", check=False).returncode
        report.check(f"{name} writes nothing to its file system", holds=written != 0)
        kept = cluster.engine.run("exec", name, "sh", "-c", "touch /tmp/written", check=False).returncode
        report.check(f"{name} writes to its scratch volume", holds=kept == 0)
        listing = cluster.engine.run("exec", name, "find", "/run/secrets/", "-type", "f").stdout.split()
        # Not by `docker exec --user`, which keeps the group of the pod.
        as_another = ["--mount", "setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", "cat"]
        process = cluster.engine.inspect(name)["State"]["Pid"]
        other = [run(["nsenter", f"--target={process}", *as_another, file], check=False).returncode for file in listing]
        report.check(f"{name} keeps its secrets from other users", holds=bool(other) and 0 not in other, found=listing)


def _pod_of_a_client(service: Pod) -> Pod:
    """A pod of somebody else in the namespace: no policy chooses it."""
    spec = {key: service.spec[key] for key in ("securityContext", "automountServiceAccountToken")}
    context = {key: service.containers[0][key] for key in ("securityContext", "resources", "image")}
    container = {"name": "client", "command": ["sleep", "infinity"], "volumeMounts": [], **context}
    template = {"metadata": {"labels": {"app": "trainer"}}, "spec": {**spec, "containers": [container], "volumes": []}}
    return Pod({"metadata": {"name": "trainer"}, "spec": {}, "kind": "Deployment"}, template)


def _reaches(pod: RunningPod, host: str, port: int) -> bool:
    """Try a connection in a pod, by a name or an address."""
    container = pod.container(pod.pod.spec["containers"][0]["name"])
    words = ["exec", container, "python", "-c", PROBE, host, str(port)]
    return pod.engine.run(*words, check=False).returncode == 0


def _reaches_by_address(pod: RunningPod, host: str, port: int) -> bool:
    """Try a connection in a pod's network, with this machine's Python: the database's image has none."""
    probe = [sys.executable, "-c", PROBE, host, str(port)]
    return run(["nsenter", f"--target={pod.sandbox}", "--net", *probe], check=False).returncode == 0


def _check_policies(cluster: Cluster, report: Report) -> None:
    [database] = cluster.of("postgres")
    service, other = cluster.of(NAME)
    client = cluster.start(_pod_of_a_client(service.pod))
    expected = [
        (service, "postgres", 5432, True),
        (service, PUBLIC, 443, True),
        (service, PUBLIC, 80, False),
        (service, PRIVATE, 443, False),
        (service, PRIVATE, 6443, False),
        (service, other.address, 8000, False),
        (client, NAME, 80, True),
        (client, service.address, 8000, True),
        (client, "postgres", 5432, False),
        (client, PRIVATE, 443, True),
    ]
    for pod, host, port, allowed in expected:
        what = f"{pod.name} {'reaches' if allowed else 'does not reach'} {host}:{port}"
        report.check(what, holds=_reaches(pod, host, port) == allowed)
    for host, port in ((PUBLIC, 443), (service.address, 8000)):
        what = f"{database.name} does not reach {host}:{port}"
        report.check(what, holds=not _reaches_by_address(database, host, port))
    cluster.remove(client)


def _ledger(cluster: Cluster, *arguments: str) -> str:
    """Run `epsilon-ledger` in a replica, as `kubectl exec deployment/epsilon-ledger` does."""
    return cluster.engine.run("exec", cluster.of(NAME)[0].container("service"), "epsilon-ledger", *arguments).stdout


def _database_url(cluster: Cluster) -> str:
    [secret] = [name for kind, name in cluster.volumes.data if kind == "Secret" and name.startswith(NAME)]
    password = cluster.volumes.data["Secret", secret]["database-password"].decode().strip()
    return f"postgresql://ledger:{password}@{cluster.of('postgres')[0].address}:5432/ledger"


def _check_load(cluster: Cluster, report: Report) -> None:
    """Step runs through the Service while pods are killed, replaced and hung, and the database is replaced."""
    keys = {
        role: json.loads(_ledger(cluster, "keys", "create", "--org", "default", "--role", role, "--json"))["key"]
        for role in ("admin", "trainer")
    }
    load = Load(f"http://{cluster.address_of(NAME)}", keys, "trial")
    with load.at_work():
        load.await_answers(STEPS_BETWEEN)
        _kill_container(cluster, load, report)
        _replace_database(cluster, load, report)
        began = time.monotonic()
        stopped = cluster.roll(NAME)
        load.await_answers(STEPS_BETWEEN)
        found = ", ".join(f"{took:.1f} s" for took, _ in stopped)
        report.check(
            "replicas stop in time when they are replaced", holds=all(took < 60 for took, _ in stopped), found=found
        )
        report.check(
            "they end with 0", holds=all(not any(codes) for _, codes in stopped), found=[c for _, c in stopped]
        )
        pause = load.pause(began)
        report.check("nobody waits for the replacement", holds=pause < 3, found=f"longest pause {pause:.1f} s")
    tally = load.tally(_database_url(cluster))
    found = f"{tally.acknowledged} steps, lost {tally.lost}, doubled {tally.doubled}"
    report.check("acknowledged steps are in the ledger, once", holds=(tally.lost, tally.doubled) == (0, 0), found=found)
    report.check("no budget is exceeded", holds=load.over_budget() == 0)
    report.check("the ledger agrees with the clients", holds=not tally.problems, found="; ".join(tally.problems[:3]))


def _kill_container(cluster: Cluster, load: Load, report: Report) -> None:
    began = time.monotonic()
    pod = cluster.of(NAME)[0]
    [container] = pod.pod.spec["containers"]
    name = pod.container("service")
    run(["kill", "-9", str(cluster.engine.inspect(name)["State"]["Pid"])])
    wait_for(lambda: pod.probe(container, "readiness"), "a killed container does not come back")
    load.await_answers(STEPS_BETWEEN)
    report.note("a killed container comes back", f"longest pause {load.pause(began):.1f} s")
    process = str(cluster.engine.inspect(name)["State"]["Pid"])
    run(["kill", "-STOP", process])
    noticed = not pod.probe(container, "liveness")
    run(["kill", "-CONT", process])
    report.check("a hung service is noticed by its liveness probe", holds=noticed)


def _replace_database(cluster: Cluster, load: Load, report: Report) -> None:
    """Delete the pod of the database; another one takes its volume."""
    began = time.monotonic()
    [old] = cluster.of("postgres")
    took, codes = old.stop()
    pod = cluster.of(NAME)[0]
    [container] = pod.pod.spec["containers"]
    alive = pod.probe(container, "liveness")
    ready = pod.probe(container, "readiness")
    report.check("without a database a replica lives, and is not ready", holds=alive and not ready)
    report.check("the database stops in time", holds=took < 120, found=f"{took:.1f} s, {codes}")
    cluster.remove(old)
    cluster.launch(cluster.made_by("StatefulSet", "postgres"))
    load.await_answers(STEPS_BETWEEN)
    report.note("another pod serves its volume", f"longest pause {load.pause(began):.1f} s")


def _check_components(cluster: Cluster, documents: list[Document], report: Report) -> None:
    """Add the components, and read metrics with and without the token."""
    cluster.change(documents)
    cluster.roll(NAME)
    url = f"http://{cluster.address_of(NAME)}/metrics"
    [monitor] = of_kind(documents, "ServiceMonitor")
    key = monitor["spec"]["endpoints"][0]["authorization"]["credentials"]["key"]
    [secret] = [name for kind, name in cluster.volumes.data if kind == "Secret" and name.startswith(NAME)]
    token = cluster.volumes.data["Secret", secret][key].decode()
    codes = [
        httpx2.get(url, headers=headers, trust_env=False).status_code
        for headers in ({}, {"Authorization": f"Bearer {token}"})
    ]
    report.check("metrics are read with the token only", holds=codes == [401, 200], found=codes)
    service = cluster.of(NAME)[0]
    report.check(f"{service.name} reaches the API server", holds=_reaches(service, PRIVATE, 6443))
    reply = httpx2.post(f"http://{cluster.address_of(NAME)}/v1/token", trust_env=False, data={})
    report.check("tokens of workloads are heard", holds=reply.status_code in {400, 401, 422}, found=reply.status_code)


def _check_jobs(cluster: Cluster, report: Report) -> None:
    for job in of_kind(cluster.documents, "CronJob"):
        name = job["metadata"]["name"]
        code, said = cluster.run_job(cluster.made_by("CronJob", name))
        report.check(f"{name} ends with 0", holds=code == 0, found=said.strip().splitlines()[-1:])
