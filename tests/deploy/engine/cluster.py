"""A namespace of Kubernetes on one node: pods, Services, NetworkPolicies and names, from rendered manifests."""

import itertools
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.deploy.engine.daemon import Engine, run
from tests.deploy.engine.images import Images
from tests.deploy.engine.network_policies import rules_of
from tests.deploy.engine.pods import BRIDGE, NODE, RunningPod
from tests.deploy.engine.report import wait_for
from tests.deploy.engine.volumes import Volumes
from tests.deploy.manifests import Document, Pod, of_kind, pods, selected

PODS: Final = "10.244.0"
SERVICES: Final = "10.96.0"
RETRY_SECONDS: Final = 300.0
"""How long an init container or a job may be repeated."""


class Cluster:
    """The running manifests.

    Args:
        engine: that runs the containers.
        folder: of volumes.
        images: in place of those that the manifests name.
        documents: rendered by kustomize.
    """

    def __init__(self, engine: Engine, folder: Path, images: Images, documents: list[Document]) -> None:
        self.engine, self.folder, self.images, self.documents = engine, folder, images, documents
        self.volumes = Volumes(folder, documents)
        self.running: list[RunningPod] = []
        self._numbers = itertools.count(10)
        self._changing = threading.RLock()
        self._hosts = folder / "hosts"
        self._hosts.write_text("")
        # A fixed address: a bridge takes another one with a new port, and pods would send to the old one for a while.
        run(["ip", "link", "add", BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge"])
        run(["ip", "address", "add", f"{NODE}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        run(["ip", "route", "add", f"{SERVICES}.0/24", "dev", BRIDGE])
        for side in ("--in-interface", "--out-interface"):
            run(["iptables", "--insert", "DOCKER-USER", side, BRIDGE, "--jump", "ACCEPT"])
        source = ["--source", f"{PODS}.0/24", "!", "--out-interface", BRIDGE]
        run(["iptables", "--table", "nat", "--append", "POSTROUTING", *source, "--jump", "MASQUERADE"])
        listen = ["--listen-address", NODE, "--bind-interfaces", "--no-hosts", "--no-resolv"]
        self._names = subprocess.Popen(
            ["dnsmasq", "--keep-in-foreground", *listen, "--addn-hosts", str(self._hosts), "--user=root", "--pid-file"],
            stdin=subprocess.DEVNULL,
        )

    def close(self) -> None:
        """Stop answering names."""
        self._names.terminate()
        self._names.wait()

    def change(self, documents: list[Document]) -> None:
        """Take other manifests; running pods stay until they are replaced."""
        self.documents = documents
        self.volumes = Volumes(self.folder, documents)
        self.refresh()

    def made_by(self, kind: str, name: str) -> Pod:
        """Return the pod that a document of this kind and name makes."""
        [found] = [
            pod for pod in pods(self.documents) if (pod.owner["kind"], pod.owner["metadata"]["name"]) == (kind, name)
        ]
        return found

    def of(self, name: str) -> list[RunningPod]:
        """List the running pods of a workload."""
        return [each for each in self.running if each.pod.owner["metadata"]["name"] == name]

    def apply(self) -> None:
        """Start everything at once, as `kubectl apply` would, and wait until it is available; jobs until they ended."""
        made = pods(self.documents)
        lasting = [pod for pod in made for _ in range(pod.owner["spec"].get("replicas", 0))]
        jobs = [pod for pod in made if pod.owner["kind"] == "Job"]
        with ThreadPoolExecutor(len(lasting) + len(jobs)) as pool:
            started = [pool.submit(self.launch, pod) for pod in lasting]
            started += [pool.submit(self._complete, pod) for pod in jobs]
            for each in started:
                each.result()

    def launch(self, pod: Pod) -> None:
        """Start a pod, wait until it is ready, and let its Services name it."""
        self.start(pod).await_ready()
        self.refresh()

    def start(self, pod: Pod) -> RunningPod:
        """Start a pod: its network under its policies, init containers one by one, then its containers."""
        with self._changing:
            number = next(self._numbers)
            owner = pod.owner["metadata"]["name"]
            started = RunningPod(self.engine, f"{owner}-{number}", pod, f"{PODS}.{number}")
            names = ["--no-healthcheck", "--network", "none", "--dns", NODE, "--hostname", started.name]
            entry = ["--entrypoint", "sleep", self.images.ledger, "infinity"]
            self.engine.run("run", "--detach", "--name", started.name, *names, *entry)
            started.connect()
            self.running.append(started)
            self.refresh()
        volumes = self.volumes.make(started.name, pod)
        containers = [
            started.create(each, volumes, self.volumes.variables(each), self.images) for each in pod.containers
        ]
        lasting = len(pod.spec["containers"])
        for name in containers[:-lasting]:
            self._run_to_its_end(name, RETRY_SECONDS if pod.spec.get("restartPolicy") != "Never" else 0)
        for name in containers[-lasting:]:
            self.engine.run("start", name)
        return started

    def run_job(self, pod: Pod) -> tuple[int, str]:
        """Run a job, repeated as its policy says; return the exit code of its container, and what it printed."""
        spec = pod.owner["spec"].get("jobTemplate", pod.owner)["spec"]
        started = self.start(pod)
        [container] = pod.spec["containers"]
        name = started.container(container["name"])
        code = self._end_of(name)
        for _ in range(spec["backoffLimit"]):
            if code == 0:
                break
            self.engine.run("start", name)
            code = self._end_of(name)
        said = started.logs(container["name"])
        self.remove(started)
        return code, said

    def remove(self, pod: RunningPod) -> None:
        """Remove a pod that ended."""
        pod.remove()
        with self._changing:
            self.running.remove(pod)
            self.refresh()

    def roll(self, name: str) -> list[tuple[float, list[int]]]:
        """Replace the pods of a Deployment one by one, each after a new one is ready; return how they stopped."""
        stopped = []
        for old in self.of(name):
            self.launch(self.made_by("Deployment", name))
            old.ready = False
            self.refresh()
            stopped.append(old.stop())
            self.remove(old)
        return stopped

    def address_of(self, service: str) -> str:
        """Return the address of a Service."""
        names = [each["metadata"]["name"] for each in of_kind(self.documents, "Service")]
        return f"{SERVICES}.{names.index(service) + 10}"

    def refresh(self) -> None:
        """Write names, Services and policies anew, from the pods that run."""
        with self._changing:
            addresses = {each.address: each.pod for each in self.running}
            policies = of_kind(self.documents, "NetworkPolicy")
            for each in self.running:
                process = str(each.sandbox)
                rules = rules_of(each.pod, policies, addresses, NODE)
                _load(["nsenter", f"--target={process}", "--net"], rules)
            self._write_services()

    def _write_services(self) -> None:
        hosts, rules = [], []
        for service in of_kind(self.documents, "Service"):
            name = service["metadata"]["name"]
            chosen = selected(service["spec"]["selector"], [each.pod for each in self.running])
            ready = [each for each in self.running if each.pod in chosen and each.ready]
            if service["spec"].get("clusterIP") == "None":
                hosts += [f"{each.address} {name}" for each in ready]
                continue
            address = self.address_of(name)
            hosts.append(f"{address} {name}")
            for port in service["spec"]["ports"]:
                match = f"ip daddr {address} tcp dport {port['port']}"
                for place, each in enumerate(ready):
                    target = f"{each.address}:{each.pod.ports()[port['targetPort']]}"
                    rules.append(f"{match} numgen random mod {len(ready) - place} 0 dnat to {target}")
                if not ready:
                    rules.append(f"{match} drop")
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in hosts))
        new.replace(self._hosts)
        self._names.send_signal(1)  # read the names anew
        lines = "\n".join(f"    {rule}" for rule in rules)
        chains = "".join(
            f"  chain {hook} {{\n    type nat hook {hook} priority -100;\n{lines}\n  }}\n"
            for hook in ("prerouting", "output")
        )
        hairpin = f"    ip saddr {PODS}.0/24 ct status dnat masquerade"
        back = f"  chain postrouting {{\n    type nat hook postrouting priority 100;\n{hairpin}\n  }}\n"
        _load([], f"table ip services\ndelete table ip services\ntable ip services {{\n{chains}{back}}}\n")

    def _run_to_its_end(self, name: str, patience: float) -> None:
        """Run an init container, repeated for so many seconds until it succeeds."""

        def succeeds() -> bool:
            self.engine.run("start", name)
            return self._end_of(name) == 0

        try:
            wait_for(succeeds, f"{name} does not succeed", patience)
        except TimeoutError as error:
            raise RuntimeError(self.engine.run("logs", name).stderr) from error

    def _complete(self, pod: Pod) -> None:
        """Run a job that must succeed."""
        code, said = self.run_job(pod)
        if code != 0:
            raise RuntimeError(said)

    def _end_of(self, name: str) -> int:
        return int(self.engine.run("wait", name).stdout)


def _load(where: list[str], rules: str) -> None:
    done = subprocess.run([*where, "nft", "-f", "-"], input=rules, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{done.stderr}\n{rules}")
