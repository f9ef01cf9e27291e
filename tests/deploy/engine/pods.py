"""Pods as containers of the engine: what the kubelet would start, probe and stop."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.deploy.engine.daemon import Engine, run
from tests.deploy.engine.images import Images
from tests.deploy.engine.report import wait_for
from tests.deploy.engine.volumes import quantity
from tests.deploy.manifests import Document, Pod
from tests.packaging.dockerfile import ROOT

BRIDGE: Final = "pods"
NODE: Final = "10.244.0.1"
_PROBE_SECONDS: Final = 1.0


@dataclass
class RunningPod:
    """A pod that was started.

    Args:
        engine: that runs its containers.
        name: of the pod, unique.
        pod: what it is made from.
        address: its own.
        ready: whether its Services name it.
    """

    engine: Engine
    name: str
    pod: Pod
    address: str
    ready: bool = False
    _containers: dict[str, str] = field(default_factory=dict)

    @property
    def sandbox(self) -> int:
        """A process of its network."""
        process: int = self.engine.inspect(self.name)["State"]["Pid"]
        return process

    def connect(self) -> None:
        """Connect it to the bridge."""
        port, inside = f"p{self.address.rpartition('.')[2]}", ["nsenter", f"--target={self.sandbox}", "--net", "ip"]
        run(["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(self.sandbox)])
        run(["ip", "link", "set", port, "master", BRIDGE, "up"])
        run([*inside, "address", "add", f"{self.address}/24", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "route", "add", "default", "via", NODE])

    def create(self, container: Document, volumes: dict[str, Path], variables: dict[str, str], images: Images) -> str:
        """Create a container, and return its name."""
        name = f"{self.name}.{container['name']}"
        command = container.get("command", [])
        entry = ["--entrypoint", command[0]] if command else []
        image = image_for(container["image"], images)
        always = self.pod.spec.get("restartPolicy", "Always") == "Always"
        lasting = always and container in self.pod.spec["containers"]
        self.engine.run(
            *("create", "--name", name, "--network", f"container:{self.name}", "--no-healthcheck", *entry),
            *("--restart", "always" if lasting else "no"),
            *security_options(self.pod.spec["securityContext"], container["securityContext"]),
            *limit_options(container["resources"]["limits"]),
            *(word for key, value in variables.items() for word in ("--env", f"{key}={value}")),
            *(word for mount in _mounts(container, volumes) for word in ("--volume", mount)),
            *(image, *command[1:], *container.get("args", [])),
        )
        self._containers[container["name"]] = name
        return name

    def container(self, name: str) -> str:
        """Return the engine's name of a container."""
        return self._containers[name]

    def probe(self, container: Document, kind: str) -> bool:
        """Ask a probe once."""
        probe = container[f"{kind}Probe"]
        patience = probe.get("timeoutSeconds", _PROBE_SECONDS)
        if "httpGet" in probe:
            port = self.pod.ports()[probe["httpGet"]["port"]]
            try:
                url = f"http://{self.address}:{port}{probe['httpGet']['path']}"
                return httpx2.get(url, timeout=patience, trust_env=False).is_success
            except httpx2.TransportError:
                return False
        words = ["timeout", str(patience), *probe["exec"]["command"]]
        return self.engine.run("exec", self.container(container["name"]), *words, check=False).returncode == 0

    def await_ready(self) -> float:
        """Wait for its probes as long as they allow; return the seconds.

        Raises:
            TimeoutError: the startup probe failed as often as it may.
        """
        [container] = self.pod.spec["containers"]
        started = container["startupProbe"]
        allowed = started["periodSeconds"] * started.get("failureThreshold", 3)
        took = wait_for(lambda: self.probe(container, "startup"), f"{self.name} does not start", allowed)
        took += wait_for(lambda: self.probe(container, "readiness"), f"{self.name} does not become ready")
        self.ready = True
        return took

    def stop(self) -> tuple[float, list[int]]:
        """End it as the kubelet does; return the seconds, and how its containers ended."""
        self.ready = False
        began = time.monotonic()
        grace = self.pod.spec.get("terminationGracePeriodSeconds", 30)
        for container in self.pod.spec["containers"]:
            name = self.container(container["name"])
            if hook := container.get("lifecycle", {}).get("preStop"):
                self.engine.run("exec", name, *hook["exec"]["command"])
            left = max(1, int(grace - (time.monotonic() - began)))
            self.engine.run("stop", "--time", str(left), name)
        took = time.monotonic() - began
        return took, [self.engine.inspect(name)["State"]["ExitCode"] for name in self._containers.values()]

    def remove(self) -> None:
        """Remove its containers."""
        self.engine.run("rm", "--force", *self._containers.values(), self.name)

    def logs(self, container: str) -> str:
        """Return what a container printed."""
        done = self.engine.run("logs", self.container(container))
        return done.stdout + done.stderr


def image_for(named: str, images: Images) -> str:
    """Choose the image that stands for the one which a manifest names.

    Raises:
        ValueError: it is none that the deployment files have.
    """
    version = re.search(r'(?m)^version = "(.*)"$', (ROOT / "pyproject.toml").read_text())
    assert version is not None
    if named == f"epsilon-ledger:{version[1]}":
        return images.ledger
    if re.fullmatch(r"postgres:[\w-]+@sha256:[0-9a-f]{64}", named):
        return images.database
    raise ValueError(f"the image {named} is not known")


def security_options(pod: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    """Options of `docker create` for the security contexts of a pod and of a container."""
    context = pod | container
    user = context["runAsUser"]
    if context.get("runAsNonRoot") and user == 0:
        raise ValueError("the container would run as root")
    yield f"--user={user}:{context['runAsGroup']}"
    if "fsGroup" in pod:
        yield f"--group-add={pod['fsGroup']}"
    if context.get("readOnlyRootFilesystem"):
        yield "--read-only"
    if not context.get("allowPrivilegeEscalation", True):
        yield "--security-opt=no-new-privileges:true"
    yield from (f"--cap-drop={name}" for name in context.get("capabilities", {}).get("drop", []))
    yield from (f"--cap-add={name}" for name in context.get("capabilities", {}).get("add", []))


def limit_options(limits: dict[str, str]) -> Iterator[str]:
    """Options of `docker create` for the limits of a container."""
    memory = int(quantity(limits["memory"]))
    yield from (f"--memory={memory}", f"--memory-swap={memory}", f"--cpus={quantity(limits['cpu'])}")


def _mounts(container: Document, volumes: dict[str, Path]) -> Iterator[str]:
    for mount in container["volumeMounts"]:
        yield f"{volumes[mount['name']]}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"
