"""What deploy/image/trim.sh takes from the image is not missed: every mechanism is computed without it."""

import json
import re
import sys
from pathlib import Path

from tests.packaging.dockerfile import ROOT
from tests.programs import run

SCRIPT = ROOT / "deploy" / "image" / "trim.sh"
WITHOUT = """
import json, sys
from importlib.abc import MetaPathFinder

class Trimmed(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == part or name.startswith(part + ".") for part in PARTS):
            raise ModuleNotFoundError(f"{name} is not in the image")

PARTS = json.loads(sys.argv[1])
sys.meta_path.insert(0, Trimmed())

import app.main, app.http.server, scipy.fft, scipy.optimize, scipy.special
from app.accounting.curves import GRID_VERSION
from app.accounting.formulas.numerics import root
from app.accounting.rdp import event_curve
from tests.accounting.event_table import CASES

for case in {type(case.event): case for case in CASES}.values():
    event_curve(case.event, min(case.relations), GRID_VERSION)
assert root(lambda x: x * x - 2, 0.0, 2.0) > 1.414
missing = [part for part in PARTS if part in sys.modules]
assert not missing, missing
print(len({type(case.event) for case in CASES}))
"""


def removed() -> list[str]:
    """The parts of scipy that the script removes."""
    (named,) = re.findall(r"for part in ([a-z ]+);", SCRIPT.read_text())
    return [f"scipy.{part}" for part in named.split()]


def test_mechanisms_are_computed_without_the_parts_of_scipy_that_the_image_lacks() -> None:
    parts = removed()
    assert len(parts) > 8
    assert int(run([sys.executable, "-c", WITHOUT, json.dumps(parts)], cwd=ROOT).stdout) >= 20


def test_service_names_no_part_of_scipy_that_the_image_lacks() -> None:
    code = "".join(path.read_text() for path in (ROOT / "app").rglob("*.py"))
    named = {f"scipy.{part}" for part in re.findall(r"\bscipy\.([a-z]+)", code)}
    assert named >= {"scipy.fft", "scipy.optimize", "scipy.special"}
    assert not named & set(removed())


def test_trimming_takes_tests_sources_and_stubs_and_leaves_programs(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    kept = [
        "numpy/__init__.py",
        "numpy/_core/tests/_natype.py",
        "scipy/special/x.py",
        "a/b.py",
        "a/b.json",
        "latest/c.py",
    ]
    taken = ["a/tests/test_b.py", "a/b.pyi", "a/b.pyx", "a/b.h", "a/b.c", "numpy/_core/tests/test_x.py"]
    for name in [*kept, *taken, *(f"{part.replace('.', '/')}/__init__.py" for part in removed())]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("")
    run([SCRIPT, tmp_path])
    left = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert left == set(kept)
    assert all(path.stat().st_mtime == 1 for path in site.rglob("*.py"))
