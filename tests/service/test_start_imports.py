"""What a service loads before it answers."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import app.cli
from app.main import create_app
from app.settings import Settings
create_app(Settings())
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Modules of a process that is about to serve."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "alembic",
        "cryptography",
        "httpcore2",
        "jinja2",
        "joserfc",
        "matplotlib",
        "mpmath",
        "psycopg",
        "scipy.optimize",
        "scipy.special",
    ],
)
def test_what_few_services_need_is_loaded_when_it_is_needed(loaded: set[str], module: str) -> None:
    assert "fastapi" in loaded
    assert module not in loaded
