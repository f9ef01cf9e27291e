"""What a service loads before it answers."""

import subprocess
import sys

PROGRAM = """
import sys
import app.cli
from app.main import create_app
from app.configuration.settings import Settings
create_app(Settings())
print(*sys.modules)
"""
LATER = {
    *("alembic", "cryptography", "httpcore2", "jinja2", "joserfc", "matplotlib", "mpmath", "psycopg"),
    *("scipy.optimize", "scipy.special"),
}


def test_modules_that_few_services_need_are_loaded_when_needed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "fastapi" in loaded
    assert LATER & loaded == set()
