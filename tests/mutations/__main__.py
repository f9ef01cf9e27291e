"""`make mutations`: break the code at a fixed sample of places, by cosmic-ray. Does a test fail each time?"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import TestOutcome

from tests.mutations import sample
from tests.mutations.covering import Covering
from tests.mutations.sample import Mutant, Verdict

ROOT: Final = Path(__file__).parents[2]
NOT_COPIED: Final = shutil.ignore_patterns(
    ".git", ".*_cache", ".cache", ".hypothesis", "__pycache__", "*.db*", "dist", "site"
)
PYTEST: Final = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
TIMEOUT_SECONDS: Final = 900


@dataclass(frozen=True)
class Tried:
    """What became of a mutant.

    Args:
        mutant: with the verdict of this run.
        by: the test that failed, or why none did.
    """

    mutant: Mutant
    by: str


def record_coverage(folder: Path) -> tuple[Path, Path]:
    """Run the suite with coverage by test.

    Returns:
        The data file and JUnit's report.
    """
    data, report = folder / "coverage", folder / "report.xml"
    measured = [f"--cov={package}" for package in sample.PACKAGES]
    arguments = [
        "-n",
        "3",
        "--dist",
        "loadfile",
        *measured,
        "--cov-context=test",
        "--cov-report=",
        f"--junitxml={report}",
    ]
    environment = os.environ | {"COVERAGE_FILE": str(data)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], cwd=ROOT, env=environment, check=True)
    return data, report


def try_mutant(copies: Path, covering: Covering, mutant: Mutant) -> Tried:
    """Change one line of this process's copy of the repository, and run the tests that run it."""
    copy = _own_copy(copies)
    os.chdir(copy)
    spec = sample.find(copy, mutant)
    if spec is None:
        return Tried(replace(mutant, verdict="removed"), "its line is gone")
    tests = covering.tests(mutant.file, spec.start_pos[0])
    skipped: set[str] = set()
    for chosen in (covering.specific(tests), tests):
        while some := [test for test in chosen if test not in skipped]:
            arguments = copy / "tests.txt"
            arguments.write_text("\n".join(some))
            found = mutate_and_test([spec], " ".join([*PYTEST, f"@{arguments}"]), TIMEOUT_SECONDS)
            if found.test_outcome is TestOutcome.SURVIVED:
                break
            killer = _first_failure(found.output or "")
            if killer is None or subprocess.run([*PYTEST, killer], capture_output=True, check=False).returncode == 0:
                return Tried(replace(mutant, verdict="killed"), killer or "an error at import, or a time-out")
            skipped.add(killer)  # it fails without the change, too
    return Tried(replace(mutant, verdict="survived"), f"{len(tests)} tests run it")


def _own_copy(copies: Path) -> Path:
    copy = copies / str(os.getpid())
    if not copy.exists():
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "sdk" / "src")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return copy


def _first_failure(output: str) -> str | None:
    for line in output.splitlines():
        if line.startswith(("FAILED tests", "ERROR tests")) and "::" in line:
            return line.split(" ", 1)[1].split(" - ")[0]
    return None


def _report(tried: list[Tried]) -> int:
    """Print the numbers by package and the survivors; count those that were killed when they were last recorded."""
    before = {each.named: each for each in sample.load()}
    lost = []
    for package in sample.PACKAGES:
        own = [each for each in tried if each.mutant.file.startswith(f"{package}/")]
        verdicts: Counter[Verdict | None] = Counter(each.mutant.verdict for each in own)
        print(f"{package:40} {verdicts['killed']:4} killed {verdicts['survived']:4} survived of {len(own)}")
    for each in tried:
        known = before[each.mutant.named]
        if each.mutant.verdict == "survived" and known.verdict != "equivalent":
            print(f"SURVIVED ({known.verdict} before; {each.by})  {each.mutant}")
            lost += [each] if known.verdict == "killed" else []
    return len(lost)


def main() -> None:
    """Try the sample; fail if a mutant survives that was killed when the sample was last recorded."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--draw", action="store_true", help="draw the sample anew, and try none")
    parser.add_argument("--only", default="", help="mutants whose file contains this")
    parser.add_argument("--survivors", action="store_true", help="only those that survived when last recorded")
    parser.add_argument(
        "--coverage", type=Path, help="data file with coverage by test; by default the suite is run for it"
    )
    parser.add_argument("--report", type=Path, help="JUnit's report of the same run")
    parser.add_argument("--seconds", type=float, default=120, help="longest time of the tests for one mutant")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="write the verdicts into the sample")
    asked = parser.parse_args()
    if asked.draw:
        sample.save(sample.draw(ROOT))
        return
    wanted = [each for each in sample.load() if asked.only in each.file]
    if asked.survivors:
        wanted = [each for each in wanted if each.verdict == "survived"]
    with tempfile.TemporaryDirectory() as folder:
        data, report = (asked.coverage, asked.report) if asked.coverage else record_coverage(Path(folder))
        covering = Covering(data.resolve(), report, asked.seconds)
        tried = []
        with ProcessPoolExecutor(asked.processes) as pool:
            for each in pool.map(partial(try_mutant, Path(folder) / "copies", covering), wanted):
                tried.append(each)
                print(f"{each.mutant.verdict:9} {each.mutant}  [{each.by}]", flush=True)
    lost = _report(tried)
    if asked.record:
        found = {each.mutant.named: each.mutant.verdict for each in tried}
        sample.save(each.tried(found.get(each.named)) for each in sample.load())
    sys.exit(f"{lost} mutants survive that were killed before" if lost else 0)


if __name__ == "__main__":
    main()
