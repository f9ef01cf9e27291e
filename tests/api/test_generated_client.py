"""A Python client that openapi-python-client makes from the API's description works, and reads well."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.servers import LiveServer

pytestmark = pytest.mark.soak  # the document is compared byte for byte, and a generation takes 20 seconds
ROOT = Path(__file__).parents[2]
GENERATOR = Path(sys.prefix) / "generator"
"""Where `make` installs the generator, apart from the packages of the service."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of the generated package, and what the generator said."""
    folder = tmp_path_factory.mktemp("generated")
    config = folder / "config.yaml"
    config.write_text("post_hooks: []\n")
    assert GENERATOR.is_dir(), "install the generator: make .venv/generator"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate", "--meta=none", f"--config={config}"),
            f"--path={ROOT / 'openapi' / 'openapi.json'}",
            f"--output-path={folder / 'ledger_api'}",
        ],
        env=os.environ | {"PYTHONPATH": str(GENERATOR)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield folder / "ledger_api", done.stdout + done.stderr
    sys.path.remove(str(folder))


def test_generator_understands_everything_but_pictures(generated: tuple[Path, str]) -> None:
    _, said = generated
    assert set(re.findall(r"WARNING parsing GET (\S+)", said)) == {
        f"/v1/{kind}/history.{picture}"
        for kind in ("accounts/{account_id}", "runs/{run_id}")
        for picture in ("png", "svg")
    }
    assert "ERROR" not in said


def test_enums_have_one_name_each(generated: tuple[Path, str]) -> None:
    """A type without a name is named after a member of a schema: `CreateRunFilter`, `ComputeDeltaBatches`."""
    package, _ = generated
    values: dict[str, list[str]] = {}
    for module in (package / "models").glob("*.py"):
        text = module.read_text()
        if "(StrEnum)" in text:
            values.setdefault(" ".join(re.findall(r'= "(.*)"', text)), []).append(module.stem)
    assert len(values) > 20
    assert [names for names in values.values() if len(names) > 1] == []


def test_generated_client_tells_a_trainers_story(generated: tuple[Path, str], tmp_path: Path) -> None:
    assert generated
    server = LiveServer(tmp_path)
    server.start()
    try:
        import_module("tests.api.generated_story").tell(server.url, server.key("admin"), server.key("trainer"))
    finally:
        server.stop()
