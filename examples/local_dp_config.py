"""Configuration of the example of local differential privacy: a YAML file with MindSpore Federated's keys."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from common import parser
from local_dp_devices import MAX_DEVICES, EvalType, PrivacyType

MAX_EPSILON = 1e3
"""Of one report: the largest that devices add noise for and that the ledger charges."""
VACUOUS = 20.0
"""Epsilon above which the guarantee is vacuous: one report may be e^20 times as likely as without the device's data."""
ROUNDS = (1, 3, 5, 10)
REPEATS = 10
LIMIT_PER_REPEAT = 400.0
"""Limit of a new budget: four rounds of each epsilon up to 64 fit, those of 128 do not. Real limits are far lower."""


@dataclass(frozen=True)
class Config:
    """What to collect.

    Args:
        privacy_type: LAPLACE, or NOT_ENCRYPT.
        epsilons: of one report, one series each.
        devices: number of devices.
        eval_type: score of the table and the picture.
        rounds: of the training, after which the devices report.
        repeats: times that each series is collected, for its spread.
        processes: that hold the devices.
        limit: epsilon of a new budget, and of each device.
        budget: id or path of an existing budget; None: a new one.
        out: folder of the results.
    """

    privacy_type: PrivacyType
    epsilons: tuple[float, ...]
    devices: int
    eval_type: EvalType
    rounds: tuple[int, ...]
    repeats: int
    processes: int
    limit: float
    budget: str | None
    out: Path


def configuration() -> Config:
    """Parse the command line, and the file that it names.

    Raises:
        SystemExit: a value is out of its bounds; the message names it.
    """
    made = parser("Does a score of noisy inference results follow the training?", "local-dp-results")
    default = Path(__file__).with_name("local_dp_clustering.yaml")
    made.add_argument("--config", type=Path, default=default, help="YAML file (%(default)s)")
    made.add_argument("--privacy-eval-type", choices=get_args(PrivacyType), help="instead of the file's")
    made.add_argument("--laplace-eval-eps", type=float, nargs="+", metavar="EPSILON", help="instead of the file's")
    made.add_argument("--cluster-client-num", type=int, metavar="DEVICES", help="instead of the file's")
    made.add_argument("--eval-type", choices=get_args(EvalType), help="instead of the file's")
    made.add_argument("--rounds", type=int, nargs="+", default=ROUNDS, help="of the training, to report after")
    made.add_argument("--repeats", type=int, default=REPEATS, help="collections of each series (%(default)s)")
    made.add_argument("--processes", type=int, default=4, help="that hold the devices (%(default)s)")
    made.add_argument(
        "--limit", type=float, help=f"epsilon of a new budget and of each device ({LIMIT_PER_REPEAT:g} for each repeat)"
    )
    asked = made.parse_args()
    file = yaml.safe_load(asked.config.read_text()) or {}
    encrypt, unsupervised = _part(made, file, "encrypt"), _part(made, file, "unsupervised")
    laplace = _part(made, encrypt, "laplace_eval")
    epsilons = asked.laplace_eval_eps or laplace.get("laplace_eval_eps", [])
    devices = asked.cluster_client_num or unsupervised.get("cluster_client_num", MAX_DEVICES)
    found = Config(
        privacy_type=asked.privacy_eval_type or encrypt.get("privacy_eval_type", "NOT_ENCRYPT"),
        epsilons=_numbers(made, "laplace_eval_eps", epsilons),
        devices=int(_numbers(made, "cluster_client_num", devices)[0]),
        eval_type=asked.eval_type or unsupervised.get("eval_type", "SILHOUETTE_SCORE"),
        rounds=tuple(sorted(set(asked.rounds))),
        repeats=asked.repeats,
        processes=asked.processes,
        limit=LIMIT_PER_REPEAT * asked.repeats if asked.limit is None else asked.limit,
        budget=asked.budget,
        out=asked.out,
    )
    _check(made, found)
    return found


def _part(made: argparse.ArgumentParser, file: object, key: str) -> Mapping[str, Any]:
    if not isinstance(file, Mapping) or not isinstance(part := file.get(key) or {}, Mapping):
        made.error(f"the configuration has no mapping {key!r}")
    return part


def _numbers(made: argparse.ArgumentParser, name: str, value: object) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int | float) and each > 0 for each in values):
        made.error(f"{name} is {value}, but it must be one number above 0, or several")
    return tuple(values)


def _check(made: argparse.ArgumentParser, found: Config) -> None:
    for name, value, choices in (
        ("privacy_eval_type", found.privacy_type, get_args(PrivacyType)),
        ("eval_type", found.eval_type, get_args(EvalType)),
    ):
        if value not in choices:
            made.error(f"{name} is {value!r}, but it must be one of {', '.join(choices)}")
    if found.privacy_type == "LAPLACE" and not found.epsilons:
        made.error("LAPLACE needs a laplace_eval_eps")
    least = 100
    if not least <= found.devices <= MAX_DEVICES:
        made.error(f"cluster_client_num is {found.devices}, but it must be in [{least}, {MAX_DEVICES}]")
    if found.rounds[0] < 1 or found.repeats < 1 or not 1 <= found.processes <= found.devices:
        made.error("rounds, repeats and processes begin at 1")
    if not 0 < found.limit <= (most := 10_000):
        made.error(f"limit is {found.limit:g}, but the ledger takes limits in (0, {most}]")
