"""Build Citus from its source, beside a copy of the server's programs, so that nothing is installed in the system."""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "v13.2.2"
"""The newest release for PostgreSQL 15, which Debian 12 has; it is also for 16 and 17."""

HEADER: Final = Path("src/include/pg_version_compat.h")
EXPORTED: Final = "have_createdb_privilege"
"""A function that newer minor releases of PostgreSQL 15 export, and Citus has a copy of."""

PACKAGES: Final = (
    "postgresql-server-dev-15 libcurl4-openssl-dev liblz4-dev libzstd-dev libkrb5-dev libicu-dev libxml2-dev "
    "libxslt1-dev libpam0g-dev libselinux1-dev libreadline-dev make gcc"
)


class NoSourceError(Exception):
    """There is no source of Citus, or nothing to build it with."""


def programs(source: str, version: str = VERSION) -> Path:
    """Build Citus, if that is not done, and return the folder of a server's programs that has it.

    Args:
        source: a folder with the source, or a git repository or its `.git` folder.
        version: the tag to take from a repository.

    Raises:
        NoSourceError: there is no source, or a program is missing.
        subprocess.CalledProcessError: a step of the build failed.
    """
    if not source or not Path(source).is_dir():
        found = f"{source!r} is no folder" if source else "none is given"
        raise NoSourceError(
            f"The source of Citus: {found}. Fetch it (git clone --branch {version} "
            "https://github.com/citusdata/citus), and give its folder by CITUS_SOURCE."
        )
    config = _config()
    binaries, shared = Path(_ask(config, "--bindir")), Path(_ask(config, "--sharedir"))
    prefix = Path(tempfile.gettempdir()) / f"citus-{version}-{_ask(config, '--version').split()[1]}-{os.geteuid()}"
    built = prefix / binaries.relative_to("/")
    if (prefix / "complete").exists() and prefix.stat().st_uid == os.geteuid():
        return built
    shutil.rmtree(prefix, ignore_errors=True)
    prefix.mkdir(mode=0o755)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "citus"
        _copy_source(Path(source), version, tree)
        _drop_what_is_exported(tree / HEADER, Path(_ask(config, "--includedir-server")))
        _run([tree / "configure", f"PG_CONFIG={config}"], tree)
        _run(["make", "-s", f"-j{os.cpu_count() or 1}", "with_llvm=no"], tree)
        # A server looks for its libraries and files beside its programs, wherever they are.
        for part in (binaries.parent, shared):
            shutil.copytree(part, prefix / part.relative_to("/"), ignore=shutil.ignore_patterns("pgxs"))
        _run(["make", "-s", "install", "with_llvm=no", f"DESTDIR={prefix}"], tree)
    (prefix / "complete").touch()
    return built


def _config() -> str:
    for name in ("/usr/lib/postgresql/15/bin/pg_config", "pg_config"):
        found = shutil.which(name)
        if found and (Path(_ask(found, "--includedir-server")) / "postgres.h").exists():
            return found
    raise NoSourceError(f"The headers of PostgreSQL's server are not installed: apt-get install {PACKAGES}")


def _ask(config: str, option: str) -> str:
    return subprocess.run([config, option], capture_output=True, check=True, text=True).stdout.strip()


def _copy_source(source: Path, version: str, tree: Path) -> None:
    """Copy a folder with the source, or a version of a repository."""
    git = source if (source / "objects").is_dir() else source / ".git"
    if not git.exists():
        if not (source / "configure").exists():
            raise NoSourceError(f"{source} has neither a configure of Citus, nor is it a git repository.")
        shutil.copytree(source, tree)
        return
    tree.mkdir()
    archive = tree.with_suffix(".tar")
    made = subprocess.run(
        [shutil.which("git") or "git", f"--git-dir={git}", "archive", f"--output={archive}", version],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        raise NoSourceError(f"{source} has no {version}: {made.stderr.decode().strip()}")
    with tarfile.open(archive) as tar:
        tar.extractall(tree, filter="data")


def _drop_what_is_exported(header: Path, includes: Path) -> None:
    """Drop Citus's own copy of a function that the server exports by now."""
    exported = (includes / "commands" / "dbcommands.h").read_text()
    text = header.read_text()
    if EXPORTED in exported:
        copy = rf"static inline bool\n{EXPORTED}\(void\)\n\{{.*?\n\}}\n"
        header.write_text(re.sub(copy, "", text, flags=re.DOTALL))


def _run(command: list[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode != 0:
        raise NoSourceError(
            f"{' '.join(map(str, command))} failed: {done.stderr.decode(errors='replace')[-2000:]}\n"
            f"Are these installed? apt-get install {PACKAGES}"
        )
