"""Images for the trial: ours from the Dockerfile, and others where their registry cannot be reached.

Everything is built by buildah over a Debian of debootstrap, in a chroot. A stand-in has the user, the folders, the
variables and the signals of the image that it stands for, and Debian's program.
"""

import shutil
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from tests.deploy.engine.daemon import run
from tests.packaging.dockerfile import ROOT

RELEASE: Final = "trixie"
BASE: Final = f"localhost/epsilon-ledger-trial-base:{RELEASE}"
LEDGER: Final = "localhost/epsilon-ledger-trial"
_HERE: Final = Path(__file__).parent
_CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
_CLIENT_FILES: Final = (
    "/etc/apt/sources.list.d",
    "/etc/npmrc",
    "/etc/pip.conf",
    "/usr/share/keyrings",
    _CERTIFICATES,
)
"""What this machine's package clients read: builds see it, and the images do not have it."""


@dataclass(frozen=True)
class Images:
    """Names of the images that containers are started from.

    Args:
        ledger: ours.
        database: PostgreSQL, for `postgres:17-bookworm`.
        proxy: HAProxy, for `haproxy:3.2-alpine`.
    """

    ledger: str = LEDGER
    database: str = "localhost/epsilon-ledger-trial-postgres"
    proxy: str = "localhost/epsilon-ledger-trial-haproxy"

    def save(self, folder: Path) -> None:
        """Write an archive of each image."""
        for archive, name in self.archives(folder).items():
            archive.unlink(missing_ok=True)
            run(["buildah", "push", "--quiet", name, f"docker-archive:{archive}"])

    def archives(self, folder: Path) -> dict[Path, str]:
        """Return the archives with the names of their images."""
        return {folder / f"{field.name}.tar": getattr(self, field.name) for field in fields(self)}


def build(images: Images) -> None:
    """Build the images that the trial makes itself; unchanged layers are kept from earlier builds."""
    _build_base()
    defaults = Images()
    if images.ledger == defaults.ledger:
        _build_ledger(images.ledger)
    if images.database == defaults.database:
        _build(_HERE / "postgres", images.database)
    if images.proxy == defaults.proxy:
        _build(_HERE / "haproxy", images.proxy)


def size_of(image: str) -> int:
    """Return the bytes of an image, unpacked."""
    words = ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", image]
    number = run(words).stdout.strip()
    container = run(["buildah", "from", "--pull-never", number]).stdout.strip()
    try:
        mounted = run(["buildah", "mount", container]).stdout.strip()
        return int(run(["du", "--summarize", "--apparent-size", "--block-size=1", mounted]).stdout.split()[0])
    finally:
        run(["buildah", "rm", container])


def _build_base() -> None:
    if run(["buildah", "inspect", "--type", "image", BASE], check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory(prefix="debian-") as temporary:
        root = Path(temporary) / "root"
        packages = "--include=ca-certificates,netbase,python3,python3-venv,tzdata"
        run(["debootstrap", "--variant=minbase", packages, RELEASE, str(root), *_mirror()], timeout=1800)
        for folder in ("var/lib/apt/lists", "var/cache/apt", "usr/share/doc", "usr/share/locale", "usr/share/man"):
            shutil.rmtree(root / folder)
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        container = run(["buildah", "from", "scratch"]).stdout.strip()
        run(["buildah", "add", "--quiet", container, str(root), "/"])
        run(["buildah", "config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container])
        run(["buildah", "commit", "--quiet", "--rm", container, BASE])


def _mirror() -> list[str]:
    """The address from which this machine gets Debian's packages, if one is configured."""
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for line in file.read_text().splitlines():
            if line.startswith("URIs:"):
                return line.split()[1:2]
    return []


def _build_ledger(name: str) -> None:
    """Build the Dockerfile from what git has, over the stand-in for its base."""
    with tempfile.TemporaryDirectory(prefix="ledger-image-") as temporary:
        for listed in run(["git", "ls-files", "-z"], folder=ROOT).stdout.split("\0"):
            if listed and (ROOT / listed).is_file():
                (Path(temporary) / listed).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / listed, Path(temporary) / listed)
        dockerfile = Path(temporary) / "Dockerfile"
        lines = dockerfile.read_text().splitlines()
        dockerfile.write_text("\n".join(over_base(line) for line in lines) + "\n")
        _build(Path(temporary), name)


def over_base(line: str) -> str:
    """Replace the base image in a line of the Dockerfile."""
    if line.startswith("FROM python:"):
        _, _, stage = line.partition(" AS ")
        return f"FROM {BASE} AS {stage}"
    return line


def _build(context: Path, name: str) -> None:
    mounts = [f"--volume={path}:{path}:ro" for path in _CLIENT_FILES if Path(path).exists()]
    certificates = [f"--env={variable}={_CERTIFICATES}" for variable in ("NODE_EXTRA_CA_CERTS", "PIP_CERT")]
    how = ["--quiet", "--isolation=chroot", "--network=host", "--layers", "--format=docker", *mounts, *certificates]
    run(["buildah", "build", *how, f"--tag={name}", str(context)], timeout=3600)
