"""What can be known about the image without an engine to build it."""

import re
import subprocess
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.packaging.dockerfile import ROOT, only, run_with, stages
from tests.packaging.test_installed import closure


def test_stages_begin_with_one_base_and_the_image_keeps_no_layer_of_it() -> None:
    system, build, final = stages()
    base = only(system, "FROM").arguments.removesuffix(" AS system")
    assert only(build, "FROM").arguments == f"{base} AS build"
    assert re.fullmatch(r"python:3\.\d+-slim-trixie@sha256:[0-9a-f]{64}", base)
    assert only(final, "FROM").arguments == "scratch"
    copied = [instruction.arguments for instruction in final if instruction.name == "COPY"]
    assert copied[0] == "--from=system / /"


def test_images_of_others_are_pinned_by_digest() -> None:
    named = re.findall(r"(?m)^FROM (\S+)", "".join(path.read_text() for path in ROOT.glob("**/Dockerfile")))
    for path in (ROOT / "deploy").rglob("*.yaml"):
        named += re.findall(r"(?m)^\s*(?:- )?image: (\S+)", path.read_text())
    others = [image for image in named if image != "scratch" and "epsilon-ledger" not in image]
    assert len(others) >= 4
    assert [image for image in others if not re.fullmatch(r"\w+:[\w.-]+@sha256:[0-9a-f]{64}", image)] == []


def test_service_does_not_run_as_root() -> None:
    system, _, final = stages()
    user, group = only(final, "USER").arguments.split(":")
    # A number, so that an orchestrator can see that it is not root, and the same one that owns the volume.
    assert int(user) > 0
    assert f"--uid {user} " in run_with(system, "useradd")
    assert f"--gid {group} " in run_with(system, "groupadd")
    last = [instruction.name for instruction in final]
    assert last.index("USER") < last.index("CMD")
    assert "RUN" not in last[last.index("USER") :]


def test_ledger_lies_in_the_volume() -> None:
    _, build, final = stages()
    assert only(final, "VOLUME").arguments == "/data"
    assert only(final, "WORKDIR").arguments == "/data"
    assert "EPSILON_LEDGER_DATABASE_URL=sqlite:////data/" in only(final, "ENV").arguments
    user = only(final, "USER").arguments
    # A new volume takes owner and mode from the folder of the image.
    assert "--owner 10001 --group 10001 --mode 0700 /empty/data" in run_with(build, "/data")
    assert [each.arguments for each in final if each.name == "COPY"][-1] == f"--from=build --chown={user} /empty /"


def test_copied_files_exist_and_are_let_into_the_build() -> None:
    _, build, final = stages()
    named = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in named if line.startswith("!")}
    assert "*" in named
    assert named.index("*") < min(named.index(f"!{name}") for name in allowed)
    copied = {source for instruction in build if instruction.name == "COPY" for source in instruction.sources}
    assert copied == allowed
    assert not [source for source in copied if not (ROOT / source).exists()]
    handed_on = [instruction.arguments for instruction in final if instruction.name == "COPY"]
    assert all(arguments.startswith(("--from=build ", "--from=system ")) for arguments in handed_on)


def test_packages_are_installed_by_hash_or_without_an_index() -> None:
    installs = [
        command
        for stage in stages()
        for instruction in stage
        if instruction.name == "RUN"
        for command in instruction.arguments.split("&&")
        if re.search(r"\bpip .*\binstall\b", command)
    ]
    assert len(installs) == 3
    assert all("--require-hashes" in command or "--no-deps --no-index" in command for command in installs)


def test_build_backend_is_taken_whole_from_the_development_lock(tmp_path: Path) -> None:
    _, build, _ = stages()
    extract = run_with(build, "awk").split("&&")[0]
    (tmp_path / "requirements-dev.lock").symlink_to(ROOT / "requirements-dev.lock")
    subprocess.run(["sh", "-c", extract], cwd=tmp_path, check=True)
    lock = (tmp_path / "build.lock").read_text()
    pinned = re.findall(r"(?m)^([a-z0-9.-]+)==\S+ \\\n    --hash=sha256:", lock)
    assert sorted(pinned) == sorted(
        {canonicalize_name(package.name) for package in closure("hatchling", "hatch-fancy-pypi-readme")}
    )
    assert len(pinned) == len(re.findall(r"(?m)^\S", lock))
