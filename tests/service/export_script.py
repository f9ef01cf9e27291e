"""The stand-alone script that verifies an export, run in this process."""

import io
import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from app.persistence.database import Database
from app.service.audit.export import export
from tests.service.cli_runner import Said

SCRIPT = Path(__file__).parents[2] / "examples" / "verify_export.py"
Line = dict[str, Any]


@cache
def _script() -> ModuleType:
    spec = spec_from_file_location("verify_export", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def exported(database: Database, **scope: str) -> list[Line]:
    return [json.loads(line) for line in export(database, datetime.now(UTC), **scope)]


def verified(lines: Iterable[Line], folder: Path, *more: str) -> Said:
    """What the script says of an export."""
    file = folder / "export.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run_script(str(file), *more)


def run_script(*arguments: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", ["verify_export.py", *arguments]), redirect_stdout(out), redirect_stderr(err):
        status = _script().main()
    return Said(status, out.getvalue(), err.getvalue())
