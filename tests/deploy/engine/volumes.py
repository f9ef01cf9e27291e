"""Volumes of pods, as the kubelet makes them."""

import base64
import os
from pathlib import Path
from typing import Any, Final

from tests.deploy.engine.daemon import run
from tests.deploy.manifests import Document, Pod

UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
TOKEN: Final = "a token of the trial"


def quantity(text: str) -> float:
    """Read a quantity of Kubernetes: `64Mi`, `500m`, `2`."""
    if text[-2:] in UNITS:
        return float(text[:-2]) * UNITS[text[-2:]]
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


class Volumes:
    """The volumes of one namespace.

    Args:
        folder: where they are made.
        documents: with ConfigMaps and Secrets.
    """

    def __init__(self, folder: Path, documents: list[Document]) -> None:
        self.folder = folder
        self.data: dict[tuple[str, str], dict[str, bytes]] = {
            ("ConfigMap", "kube-root-ca.crt"): {"ca.crt": b"the cluster's certificate\n"}
        }
        for document in documents:
            name = document["metadata"]["name"]
            if document["kind"] == "ConfigMap":
                self.data["ConfigMap", name] = {key: text.encode() for key, text in document["data"].items()}
            elif document["kind"] == "Secret":
                self.data["Secret", name] = {key: base64.b64decode(text) for key, text in document["data"].items()}

    def variables(self, container: Document) -> dict[str, str]:
        """Return a container's environment."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            held = self.data["ConfigMap", source["configMapRef"]["name"]]
            found |= {key: value.decode() for key, value in held.items()}
        return found | {each["name"]: each["value"] for each in container.get("env", [])}

    def make(self, name: str, pod: Pod) -> dict[str, Path]:
        """Make the volumes of a pod; return their folders by name."""
        group = pod.spec["securityContext"]["fsGroup"]
        made = {volume["name"]: self._make(self.folder / name, volume, group) for volume in pod.spec["volumes"]}
        for claim in pod.owner["spec"].get("volumeClaimTemplates", []):
            made[claim["metadata"]["name"]] = self._claim(claim["metadata"]["name"], group)
        return made

    def _make(self, folder: Path, volume: dict[str, Any], group: int) -> Path:
        made = folder / str(volume["name"])
        if "persistentVolumeClaim" in volume:
            return self._claim(volume["persistentVolumeClaim"]["claimName"], group)
        made.mkdir(parents=True)
        if "emptyDir" in volume:
            size = int(quantity(volume["emptyDir"]["sizeLimit"]))
            run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=2777,gid={group}", "tmpfs", str(made)])
        for source in volume.get("projected", {}).get("sources", [volume]):
            self._write(made, source, group)
        return made

    def _write(self, folder: Path, source: dict[str, Any], group: int) -> None:
        """Write files of a Secret, a ConfigMap or a token: root's, and readable by the group."""
        if "serviceAccountToken" in source:
            files, mode = {source["serviceAccountToken"]["path"]: TOKEN.encode()}, 0o600
        elif "secret" in source or "configMap" in source:
            kind, key = ("Secret", "secretName") if "secret" in source else ("ConfigMap", "name")
            chosen = source[kind[0].lower() + kind[1:]]
            held, mode = self.data[kind, chosen[key]], chosen.get("defaultMode", 0o644)
            items = chosen.get("items", [{"key": name, "path": name} for name in held])
            files = {item["path"]: held[item["key"]] for item in items}
        else:
            return
        for path, data in files.items():
            (folder / path).write_bytes(data)
            (folder / path).chmod(mode | 0o040)
            os.chown(folder / path, 0, group)

    def _claim(self, name: str, group: int) -> Path:
        """Open a volume that stays; its files are given to the group each time, as by default."""
        folder = self.folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, -1, group)
            path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))
        return folder
