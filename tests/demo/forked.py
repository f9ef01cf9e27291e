"""The demo, whose service and commands are run by another program: `python -m tests.demo.forked demo --json`."""

import os
from unittest.mock import patch

from app import cli
from app.demo import server_process

PROGRAM = "TESTS_DEMO_PROGRAM"
"""The variable that names the program."""


def _command(*arguments: str) -> list[str]:
    return [os.environ[PROGRAM], *arguments]


if __name__ == "__main__":
    with patch.object(server_process, "_command", _command):
        cli.main()
