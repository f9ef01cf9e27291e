"""An example as its reader runs it, but in this process: to import what it needs takes seconds."""

import importlib
import multiprocessing
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace

import pytest

from tests.conftest import LiveServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def module(name: str) -> ModuleType:
    """Import a module of the examples, which lie beside each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        return importlib.import_module(name)


def example(
    server: LiveServer, name: str, folder: Path, *options: str, role: str = "admin", **constants: object
) -> str:
    """Run an example, and return what it wrote to its reader; its files are in `folder`.

    Its processes are threads. Other constants of its module make it shorter.
    """
    made, said = module(name), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setattr("sys.argv", [f"{name}.py", "--out", str(folder), *options])
        patch.setenv("EPSILON_LEDGER_URL", server.url)
        patch.setenv("EPSILON_LEDGER_API_KEY", server.key(role))
        patch.setenv("FEDERATION_KEY", "")  # which the example sets
        patch.setattr(multiprocessing, "get_context", lambda _: SimpleNamespace(Process=Thread))
        for constant, value in constants.items():
            patch.setattr(made, constant, value)
        made.main()
    return said.getvalue()


def is_picture(file: Path) -> bool:
    """Whether a file is a PNG picture in which something is drawn."""
    return file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 10_000
