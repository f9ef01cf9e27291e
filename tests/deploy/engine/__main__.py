"""Start the compose file and the Kubernetes manifests as a whole: `python -m tests.deploy.engine`.

A Docker Engine of its own runs them, in namespaces that end with this command. It needs root and Debian's packages.
Images of other projects are stood in for unless they are given by name. Exit 1 if anything is not as it should be.
"""

import argparse
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from tests.deploy.engine.compose import try_compose
from tests.deploy.engine.container import try_container
from tests.deploy.engine.daemon import EngineMissingError, engine, require_programs, run_in_namespaces
from tests.deploy.engine.images import Images, build, size_of
from tests.deploy.engine.kubernetes import try_kubernetes
from tests.deploy.engine.report import Report
from tests.deploy.engine.world import world

SCENES = {"container": try_container, "compose": try_compose, "kubernetes": try_kubernetes}


def main(asked: argparse.Namespace, images: Images) -> int:
    """Build the images, enter the namespaces, and play the scenes there."""
    require_programs()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}; images are built ...", flush=True)
    build(images)
    print(f"{images.ledger}: {size_of(images.ledger) / 1e6:.0f} MB unpacked", flush=True)
    with tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        images.save(folder)
        return run_in_namespaces(["--inside", *sys.argv[1:], "--folder", str(folder)])


def play(asked: argparse.Namespace, images: Images) -> int:
    """Play the scenes, and return the exit code."""
    report = Report()
    with world(), engine(asked.folder) as running:
        for archive, name in images.archives(asked.folder).items():
            running.load(archive, name)
        for name in asked.scene or SCENES:
            try:
                SCENES[name](running, asked.folder / name, images, report)
            except (AssertionError, RuntimeError, TimeoutError, httpx2.HTTPError) as error:
                report.check(f"{name} comes to its end", holds=False, found=error)
            running.remove_containers()
    print(f"\n{report.count} checks, {len(report.failed)} failed", *report.failed, sep="\n  ")
    return int(bool(report.failed))


if __name__ == "__main__":
    default = Images()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", action="append", choices=list(SCENES), help="repeatable; default: all")
    parser.add_argument("--ledger", default=default.ledger, help="an image of buildah's, instead of building ours")
    parser.add_argument("--database", default=default.database, help="an image of buildah's for PostgreSQL")
    parser.add_argument("--proxy", default=default.proxy, help="an image of buildah's for HAProxy")
    parser.add_argument("--folder", type=Path, help="for data and logs, which stay; default: a temporary one")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = Images(arguments.ledger, arguments.database, arguments.proxy)
    try:
        sys.exit((play if arguments.inside else main)(arguments, chosen))
    except EngineMissingError as error:
        sys.exit(f"SKIPPED, nothing was tried: {error}")
