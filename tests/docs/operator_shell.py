"""A service on a real PostgreSQL, as an operator has it before them, and a shell that types what a page says."""

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests import postgres
from tests.docs.markdown import Block
from tests.postgres_binaries import binaries
from tests.programs import run
from tests.servers import LiveServer

DATABASE = "ledger"
EVENT = {"type": "gaussian", "noise_multiplier": 100.0}
SHELL = """
set {how} -o pipefail
trap 'cd {folder}; export -p > .exported; env --null > .environment' EXIT
test ! -e .exported || source .exported
export PGPASSWORD="$(cat database-password)"
curl() {{ command curl --silent {curl} "$@"; }}
"""


@dataclass
class OperatorShell:
    """Who looks after the service: a folder, a shell, two keys; `commands` has `epsilon-ledger`."""

    folder: Path
    server: LiveServer
    cluster: postgres.Cluster
    commands: Path
    ran: list[Block] = field(default_factory=list)

    @property
    def admin(self) -> httpx2.Client:
        return self.server.client("admin")

    def type(self, block: Block, *, whatever_happens: bool = False, **replaced: str) -> str:
        """Type a block into a shell, which remembers what was exported; return what it wrote.

        Args:
            block: of a page; any error of a command or of HTTP fails, unless `whatever_happens`.
            whatever_happens: errors are what the block is about.
            replaced: what stands for names on the page; underlined names have dots, as run… has.
        """
        text = block.text
        names = {"localhost:8000": f"127.0.0.1:{self.server.port}", "ROLE ledger": f"ROLE {postgres.SERVICE}"}
        names |= {"ledger@db/": f"{postgres.SERVICE}@127.0.0.1:{self.cluster.port}/"}
        for old, new in (names | {f"{name}_…": value for name, value in replaced.items()}).items():
            text = text.replace(old, new)
        how, curl = ("-u", "") if whatever_happens else ("-eu", "--fail-with-body")
        script = SHELL.format(how=how, curl=curl, folder=shlex.quote(str(self.folder))) + text
        done = run(["bash", "-c", script], None if whatever_happens else 0, cwd=self.folder, env=self._environment())
        self.ran.append(block)
        return done.stdout

    def run(self, name: str, steps: int, limit: float = 2.0) -> str:
        """A run of that name with a limit of its own, which took some steps; its id."""
        with self.admin as http:
            body = {"name": name, "budget": "mimic/icu-team", "event": EVENT}
            body |= {"limit": {"epsilon": limit, "delta": 1e-6}}
            run = made(http.post("/v1/runs", json=body))["id"]
            if steps:
                made(http.post(f"/v1/runs/{run}/steps", json={"count": steps}))
        return str(run)

    def find(self, collection: str, name: str) -> str:
        """The id of the population or budget with this name."""
        with self.admin as http:
            [found] = [each["id"] for each in made(http.get(f"/v1/{collection}"))["items"] if each["name"] == name]
        return str(found)

    def begin(self) -> None:
        """A shell that remembers nothing."""
        self.ran.clear()
        (self.folder / ".exported").unlink(missing_ok=True)

    def exported(self) -> dict[str, str]:
        """The environment at the end of the last block."""
        variables = (self.folder / ".environment").read_text().split("\0")
        return dict(variable.split("=", 1) for variable in variables if variable)

    def execute(self, statement: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        return self.cluster.execute(statement, database)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        path = [str(self.commands), str(binaries()), kept["PATH"]]
        return kept | {
            **self.server.environment,
            "PATH": os.pathsep.join(path),
            "EPSILON_LEDGER_DATABASE_URL": self.server.database_url,
            "KEY": self.server.key("admin"),
            "OFFICER": self.server.key("privacy_officer"),
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.cluster.port),
            "PGUSER": postgres.SERVICE,
            "PGADMIN": postgres.ADMIN,
            "PGDATABASE": DATABASE,
        }


def made(reply: httpx2.Response) -> Any:  # noqa: ANN401 - JSON is anything
    """What was answered to a request that went well."""
    assert reply.status_code < 300, reply.text
    return reply.json()
