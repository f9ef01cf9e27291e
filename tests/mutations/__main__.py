"""`make mutations`: break the code at a fixed sample of places, by cosmic-ray. Does a test fail each time?"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import TestOutcome

from tests.mutations import sample
from tests.mutations.covering import Covering
from tests.mutations.sample import Mutant

ROOT: Final = Path(__file__).parents[2]
NOT_COPIED: Final = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".cache", ".hypothesis", "__pycache__", "*.db*", "dist", "site"
)
PYTEST: Final = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
CHOSEN: Final = "@tests.txt"
FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) (tests.*?::.*?)(?: - .*)?$", re.MULTILINE)
TIMEOUT_SECONDS: Final = 300


Tried = tuple[Mutant, str]
"""A mutant with the verdict of this run, and the test that failed, or why none did."""


def record_coverage(folder: Path) -> tuple[Path, Path]:
    """Run the suite with coverage by test; return the data file and JUnit's report."""
    data, report = folder / "coverage", folder / "report.xml"
    arguments = ["-n3", "--dist=loadfile", "--cov-context=test", "--cov-report=", f"--junitxml={report}"]
    arguments += [f"--cov={package}" for package in sample.PACKAGES]
    environment = os.environ | {"COVERAGE_FILE": str(data)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], cwd=ROOT, env=environment, check=True)
    return data, report


def enter_copy(copies: Path) -> None:
    """Let this process work in a copy of the repository that is its own."""
    copy = copies / str(os.getpid())
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    os.chdir(copy)
    path = os.pathsep.join([str(copy), str(copy / "sdk" / "src")])
    os.environ |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@cache
def passes_unchanged(test: str) -> bool:
    """Run one test on the code as it is."""
    return subprocess.run([*PYTEST, test], capture_output=True, check=False).returncode == 0


def require_chosen() -> None:
    """Fail unless all chosen tests are there: pytest runs none of them otherwise, with the change or without."""
    found = subprocess.run([*PYTEST, "--collect-only", CHOSEN], capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"Tests of the report cannot be run; run the suite for a new report. {found.stdout}{found.stderr}")


def try_mutant(covering: Covering, mutant: Mutant) -> Tried:
    """Change one line of this process's copy of the repository, and run the tests that run it, then its room's."""
    spec = sample.find(Path.cwd(), mutant)
    if spec is None:
        return replace(mutant, verdict="removed"), "its line is gone"
    tests = covering.tests(mutant.file, spec.start_pos[0])
    done: set[str] = set()
    for chosen in (covering.specific(tests), tests, covering.of_room(mutant.file)):
        while some := [test for test in chosen if test not in done]:
            Path(CHOSEN[1:]).write_text("\n".join(some))
            found = mutate_and_test([spec], " ".join([*PYTEST, CHOSEN]), TIMEOUT_SECONDS)
            if found.test_outcome is TestOutcome.SURVIVED:
                done |= set(some)
                break
            failure = FAILURE.search(found.output or "")
            if failure is None:
                require_chosen()
                return replace(mutant, verdict="killed"), "an error at import, or a time-out"
            if passes_unchanged(failure[1]):
                return replace(mutant, verdict="killed"), failure[1]
            done.add(failure[1])  # it fails without the change, too
    return replace(mutant, verdict="survived"), f"{len(tests)} tests run it, and its room's do"


def _report(tried: list[Tried]) -> int:
    """Print the numbers by package and the survivors; count those that were killed when they were last recorded."""
    before = {each.place: each.verdict for each in sample.load()}
    for package in sample.PACKAGES:
        verdicts = [mutant.verdict for mutant, _ in tried if mutant.file.startswith(f"{package}/")]
        killed, survived = verdicts.count("killed"), verdicts.count("survived")
        print(f"{package:40} {killed:4} killed {survived:4} survived of {len(verdicts)}")
    survivors = [(before[mutant.place], mutant, why) for mutant, why in tried if mutant.verdict == "survived"]
    for verdict, mutant, why in survivors:
        if verdict != "equivalent":
            print(f"SURVIVED ({verdict} before; {why})  {mutant}")
    return [verdict for verdict, *_ in survivors].count("killed")


def main() -> None:
    """Try the sample; fail if a mutant survives that was killed when the sample was last recorded."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--draw", action="store_true", help="draw the sample anew, and try none")
    parser.add_argument("--only", default="", help="mutants whose file contains this")
    parser.add_argument("--survivors", action="store_true", help="only those that survived when last recorded")
    parser.add_argument(
        "--coverage", type=Path, help="data file with coverage by test; default: the suite is run for it"
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
        covering = Covering(ROOT, data.resolve(), report, asked.seconds)
        tried = []
        copies = Path(folder) / "copies"
        with ProcessPoolExecutor(asked.processes, initializer=enter_copy, initargs=(copies,)) as pool:
            for mutant, why in pool.map(partial(try_mutant, covering), wanted):
                tried.append((mutant, why))
                print(f"{mutant.verdict:9} {mutant}  [{why}]", flush=True)
    lost = _report(tried)
    if asked.record:
        found = {mutant.place: mutant.verdict for mutant, _ in tried}
        sample.save(each.tried(found.get(each.place)) for each in sample.load())
    sys.exit(f"{lost} mutants survive that were killed before" if lost else 0)


if __name__ == "__main__":
    main()
