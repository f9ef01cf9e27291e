"""Is the suite worth anything? `make mutations` breaks a copy of the repository, rule by rule, and runs its tests.

Each mutation is a line of the code and what stands there instead; the tests named with it must fail then. One that
survives, or whose line is no longer there, makes this script fail: then write the test, or mend the mutation.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation_cases import MUTATIONS
from tests.mutation_cases.case import Mutation

ROOT = Path(__file__).parent.parent
NOT_COPIED = shutil.ignore_patterns(".venv", ".git", ".*_cache", ".hypothesis", "__pycache__", "*.db*", "dist")
LONGEST_SECONDS = 600


def copied(folder: Path) -> Path:
    """A copy of the repository, to be broken."""
    copy = folder / "repository"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    where = run(copy, ["-c", "import app; print(app.__file__)"]).stdout.strip()
    assert Path(where).is_relative_to(copy), f"the tests would try {where}"
    return copy


def run(copy: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, and nothing of the original."""
    paths = os.pathsep.join([str(copy), str(copy / "sdk" / "src")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )


def tried(copy: Path, tests: Sequence[str], only: str) -> subprocess.CompletedProcess[str]:
    """Run tests until the first one fails."""
    return run(copy, ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests, "-k", only])


def verdict(copy: Path, mutation: Mutation) -> str:
    """Break the copy, run the tests, mend it; "killed" is what it should be."""
    file = copy / mutation.file
    sound = file.read_text() if file.exists() else ""
    if sound.count(mutation.line) != 1:
        return f"does not apply: its line stands {sound.count(mutation.line)} times in {mutation.file}"
    file.write_text(sound.replace(mutation.line, mutation.instead))
    try:
        done = tried(copy, mutation.tests, mutation.only)
    except subprocess.TimeoutExpired:
        return "killed (the tests hang)"
    finally:
        file.write_text(sound)
    if done.returncode == 1:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
        return f"killed by {failed[0].split(' - ')[0].split(' ', 1)[1]}" if failed else "killed"
    if done.returncode == 0:
        return "SURVIVED"
    return f"could not be tried: pytest ended with {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"


def main() -> None:
    """Try every mutation, and say what became of it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", default="", help="those whose name contains this")
    wanted = [mutation for mutation in MUTATIONS if parser.parse_args().only in mutation.name]
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        suites = sorted({(mutation.tests, mutation.only) for mutation in wanted})
        sound = {suite: tried(copy, *suite).returncode == 0 for suite in suites}
        verdicts = {}
        for mutation in wanted:
            start = time.monotonic()
            passed = sound[mutation.tests, mutation.only]
            verdicts[mutation.name] = verdict(copy, mutation) if passed else "its tests fail even without it"
            took = time.monotonic() - start
            sys.stdout.write(f"{mutation.name:55} {took:5.0f} s  {verdicts[mutation.name]}\n")
            sys.stdout.flush()
    lived = [name for name, found in verdicts.items() if not found.startswith("killed")]
    sys.exit(f"{len(lived)} of {len(verdicts)} were not killed: {'; '.join(lived)}" if lived else 0)


if __name__ == "__main__":
    main()
