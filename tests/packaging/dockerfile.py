"""Reads as much of a Dockerfile as the tests ask about."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Instruction:
    name: str
    arguments: str

    @property
    def command(self) -> list[str]:
        """The exec form: after CMD, whatever stands before it."""
        found = re.search(r"\[.*\]$", self.arguments)
        assert found, f"{self.name} is not in exec form: {self.arguments}"
        return [str(word) for word in json.loads(found.group())]

    @property
    def sources(self) -> list[str]:
        """What a COPY copies, and ADD would."""
        words = [word for word in shlex.split(self.arguments) if not word.startswith("--")]
        return words[:-1]


def stages() -> list[list[Instruction]]:
    """The instructions of the Dockerfile, a list a stage; continued lines are joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Dockerfile").read_text())
    found: list[list[Instruction]] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        name, arguments = line.split(maxsplit=1)
        assert name.isupper(), line
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, arguments))
    return found


def only(stage: list[Instruction], name: str) -> Instruction:
    """The one instruction of this name in a stage."""
    (found,) = (each for each in stage if each.name == name)
    return found


def run_with(stage: list[Instruction], word: str) -> str:
    """The one RUN of a stage in which a word stands."""
    (found,) = (each.arguments for each in stage if each.name == "RUN" and word in each.arguments)
    return found
