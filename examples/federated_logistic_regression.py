"""Horizontal federated logistic regression with DP-SGD: three hospitals, three processes, three budgets.

The ledger must be running (README.md, "By hand"), and scikit-learn must be installed. Then:

    EPSILON_LEDGER_URL=http://127.0.0.1:8000 EPSILON_LEDGER_API_KEY=... \
        python examples/federated_logistic_regression.py --keys KEY_OF_A KEY_OF_B KEY_OF_C

Each party is a process with private patients and API key. In every round it takes DP-SGD steps from the coordinator's
weights, authorizes each of them, and returns noisy weights. A party whose budget is spent stops; the others go on. The
coordinator averages, tests on its own patients, and writes predictions, indicators, a picture and the model. Without
--keys all parties use EPSILON_LEDGER_API_KEY.

The options are the keys of PrimiHub's `config`; --config takes a file of them. On several machines (federated.yaml is a
compose file), start `--role coordinator --address 0.0.0.0:9010` and, for each hospital, `--role party --name A
--address coordinator:9010`, all with the same secret in FEDERATION_KEY. That connection is authenticated, and not
encrypted: the weights on it are private, but bring a network of your own or a tunnel.
"""

import argparse
import csv
import json
import multiprocessing
import os
import secrets
import sys
import time
from dataclasses import asdict
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from common import budget, parser
from federated_model import PARTIES, Configuration, Model, Patients, records
from federated_party import Party, Statement
from sklearn.metrics import accuracy_score, roc_auc_score, roc_curve

from epsilon_ledger import LedgerClient, LedgerError, Limit, gaussian, poisson_sampled

KEY_VARIABLE = "FEDERATION_KEY"
PROGRESS_ROUNDS = 10
CONNECTION_SECONDS = 60


def send(line: Connection, message: dict[str, Any]) -> None:
    """Send JSON: the other side must not be able to make this one execute anything."""
    line.send_bytes(json.dumps(message).encode())


def receive(line: Connection) -> dict[str, Any]:
    """Receive JSON."""
    message: dict[str, Any] = json.loads(line.recv_bytes())
    return message


def connected(address: tuple[str, int], key: bytes) -> Connection:
    """Connect to the coordinator, which may start later."""
    until = time.monotonic() + CONNECTION_SECONDS
    while True:
        try:
            return Client(address, authkey=key)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def accepted(listener: Listener) -> Connection:
    """Accept the next party that knows the key."""
    while True:
        try:
            return listener.accept()
        except multiprocessing.AuthenticationError:
            print("Someone without the key was turned away.", flush=True)


def run_party(name: str, address: tuple[str, int], key: str | None, budget_path: str | None, configured: str) -> None:
    """Run one hospital: answer every round's weights with improved ones, then with a statement.

    Args:
        name: of the hospital.
        address: of the coordinator.
        key: its API key; None: that of the environment.
        budget_path: id or path of its budget; None: it creates one.
        configured: the configuration, as JSON.
    """
    configuration = Configuration.from_json(configured)
    everyone, model = records(configuration)
    patients = everyone.share(PARTIES.index(name))
    size = len(patients.labels)
    # Declared as often as the limit allows, it costs what privacy loss distributions say: a tenth less than by RDP.
    step = poisson_sampled(configuration.batch_size / size, gaussian(configuration.noise_multiplier))
    with connected(address, os.environ[KEY_VARIABLE].encode()) as line, LedgerClient(api_key=key) as ledger:
        path = budget(
            ledger,
            budget_path,
            f"patients-of-{name}",
            privacy_unit="patient",
            neighboring_relation="add_or_remove_one",
            size=size,
            limit=Limit(configuration.epsilon, configuration.delta),
            planned=[step],
        )
        # What a step costs is known, so steps are granted ahead: one request for ten of them.
        with ledger.create_run(f"logistic-regression-{name}", budget=path, prefetch=10) as run:
            party = Party(name, patients, model, configuration, run)
            send(line, {"party": name, "records": size})
            while party.is_going and "weights" in (message := receive(line)):
                weights = party.improve(np.array(message["weights"]))
                send(line, {"weights": weights.tolist(), "goes_on": party.is_going, "epsilon": run.epsilon})
        send(line, asdict(party.statement()))


def start_party(name: str, *how: Any) -> None:  # noqa: ANN401 - as run_party
    """Run a party, and end with one line if the ledger does not let it."""
    try:
        run_party(name, *how)
    except LedgerError as error:
        sys.exit(f"Party {name} cannot train: {error}")


class Coordinator:
    """It averages the parties' private weights in every round, and tests them on its own patients.

    Args:
        lines: to the parties.
        testers: its own patients.
        model: with the first weights.
    """

    def __init__(self, lines: list[Connection], testers: Patients, model: Model) -> None:
        self.model = model
        self.statements: list[Statement] = []
        self.accuracy: list[float] = []
        """On the coordinator's patients, after each round."""
        self.epsilons: dict[str, list[float]] = {}
        """Spent by each party, after each round."""
        self._testers = testers
        hellos = [(line, receive(line)) for line in lines]
        self._going = {line: (str(hello["party"]), int(hello["records"])) for line, hello in hellos}

    def coordinate(self) -> None:
        """Run rounds until every party has stopped."""
        while self._going:
            for line in self._going:
                send(line, {"weights": self.model.weights.tolist()})
            answers = {line: receive(line) for line in self._going}
            sizes = [self._going[line][1] for line in answers]
            weights = np.average([answer["weights"] for answer in answers.values()], axis=0, weights=sizes)
            self.model = self.model.with_weights(weights)
            chances = self.model.probabilities(self._testers.features)
            self.accuracy.append(float(accuracy_score(self._testers.labels, chances > 0.5)))  # noqa: PLR2004
            self._end_round(answers)

    def _end_round(self, answers: dict[Connection, dict[str, Any]]) -> None:
        for line, answer in answers.items():
            self.epsilons.setdefault(self._going[line][0], []).append(answer["epsilon"])
            if not answer["goes_on"]:
                self.statements.append(Statement(**receive(line)))
                del self._going[line]
        self.statements.sort(key=lambda statement: statement.party)
        if len(self.accuracy) % PROGRESS_ROUNDS == 0:
            spent = ", ".join(f"{party} {epsilons[-1]:.2f}" for party, epsilons in sorted(self.epsilons.items()))
            print(f"round {len(self.accuracy):3}: {self.accuracy[-1]:.1%} right, epsilon {spent}", flush=True)


def reference_epsilon(statement: Statement, configuration: Configuration) -> float | None:
    """Compute a party's epsilon by the library dp_accounting, or return None without it.

    By orders 1.1 ... 10.9 and 12 ... 63, as in PrimiHub's documentation.
    """
    try:
        import dp_accounting  # noqa: PLC0415 - the example runs without it
        from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415 - as above
    except ImportError:
        return None
    accountant = RdpAccountant([1 + tenths / 10.0 for tenths in range(1, 100)] + list(range(12, 64)))
    sampled = dp_accounting.PoissonSampledDpEvent(
        configuration.batch_size / statement.records, dp_accounting.GaussianDpEvent(configuration.noise_multiplier)
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, statement.steps))
    return float(accountant.get_epsilon(statement.delta))


def write(folder: Path, done: Coordinator, testers: Patients, configuration: Configuration) -> dict[str, float]:
    """Write predictions, indicators and the model; return accuracy, AUC and KS."""
    folder.mkdir(parents=True, exist_ok=True)
    labels, chances = testers.labels, done.model.probabilities(testers.features)
    with (folder / "train_predict.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["label", "probability", "prediction"])
        rows.writerows(zip(labels.astype(int), chances.round(6), (chances > 0.5).astype(int), strict=True))  # noqa: PLR2004
    false_rates, true_rates, thresholds = roc_curve(labels, chances)
    found = {
        "accuracy": float(accuracy_score(labels, chances > 0.5)),  # noqa: PLR2004 - the likelier class
        "auc": float(roc_auc_score(labels, chances)),
        "ks": float(np.max(true_rates - false_rates)),
    }
    roc = {"fpr": false_rates.tolist(), "tpr": true_rates.tolist(), "thresholds": thresholds[1:].tolist()}
    privacy = [asdict(each) | {"epsilon_reference": reference_epsilon(each, configuration)} for each in done.statements]
    rounds = {"accuracy": done.accuracy, "epsilon": done.epsilons}
    facts = found | {"roc": roc, "privacy": privacy, "rounds": rounds, "configuration": asdict(configuration)}
    (folder / "train_indicator.json").write_text(json.dumps(facts, indent=2))
    done.model.save(folder / "model.npz")
    return found


def plot(done: Coordinator, limit: float, file: Path) -> None:
    """Plot accuracy and every party's epsilon by round."""
    mpl.use("Agg")
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    above.plot(range(1, len(done.accuracy) + 1), done.accuracy, color="black")
    above.set(ylabel="accuracy, coordinator's patients", ylim=(0.4, 1.0))
    for style, (party, epsilons) in zip(("-", "--", "-."), sorted(done.epsilons.items()), strict=True):
        last = len(epsilons)
        (drawn,) = below.plot(range(1, last + 1), epsilons, style, label=f"party {party}")
        below.plot(last, epsilons[-1], "o", color=drawn.get_color())
    below.axhline(limit, linestyle=":", color="gray", label="limit of each party")
    below.set(xlabel="round", ylabel="epsilon", ylim=(0.0, 1.15 * limit))
    below.legend(loc="lower right")
    figure.suptitle("Each hospital stops at its own budget (dot), and the others go on")
    figure.savefig(file)
    plt.close(figure)


def show(done: Coordinator, configuration: Configuration) -> None:
    """Print what every party spent, and why it stopped."""
    print(f"\n{'party':>5} {'patients':>8} {'steps':>6} {'epsilon':>8} {'dp_accounting':>13}")
    for each in done.statements:
        reference = reference_epsilon(each, configuration)
        print(
            f"{each.party:>5} {each.records:8} {each.steps:6} {each.epsilon:8.4f} "
            f"{'-' if reference is None else f'{reference:.4f}':>13}"
        )
    for each in done.statements:
        if each.refusal is not None:
            print(f"{each.party} stopped: {each.refusal}")


def options() -> argparse.Namespace:
    """Parse the command line."""
    made = parser("Federated logistic regression with DP-SGD.", "federated-results")
    made.add_argument("--keys", nargs=3, metavar="KEY", help="API keys of the three parties")
    made.add_argument("--budgets", nargs=3, metavar="BUDGET", help="id or path of the three parties' budgets")
    made.add_argument("--role", choices=["all", "coordinator", "party"], default="all", help="of this process (all)")
    made.add_argument("--name", choices=PARTIES, help="of the party")
    made.add_argument("--address", default="127.0.0.1:0", metavar="HOST:PORT", help="of the coordinator")
    Configuration.add_options(made.add_argument_group("training, by PrimiHub's keys"))
    found: argparse.Namespace = made.parse_args()
    if found.role == "party" and found.name is None:
        made.error("a party needs a --name")
    if found.role != "all" and not os.environ.get(KEY_VARIABLE):
        made.error(f"{KEY_VARIABLE} must hold the secret that coordinator and parties share")
    return found


def coordinate(asked: argparse.Namespace, configuration: Configuration, listener: Listener) -> None:
    """Wait for the parties, coordinate them, and print and write the results."""
    everyone, model = records(configuration)
    testers = everyone.share(len(PARTIES))
    lines = [accepted(listener) for _ in PARTIES]
    try:
        done = Coordinator(lines, testers, model)
        done.coordinate()
    except EOFError:
        sys.exit("A party has gone before the end: its own output says why.")
    found = write(asked.out, done, testers, configuration)
    show(done, configuration)
    plot(done, configuration.epsilon, asked.out / "rounds.png")
    print(f"\nOn the coordinator's own patients: {', '.join(f'{name} {value:.3f}' for name, value in found.items())}")
    print(f"Written: train_predict.csv, train_indicator.json, rounds.png and model.npz in {asked.out}")


def run_all(asked: argparse.Namespace, configuration: Configuration) -> None:
    """Run coordinator and parties on this machine, each party in a process."""
    os.environ[KEY_VARIABLE] = secrets.token_hex(32)
    keys = asked.keys or [None] * len(PARTIES)
    budgets = asked.budgets or [asked.budget] * len(PARTIES)
    context = multiprocessing.get_context("spawn")
    with Listener(("127.0.0.1", 0), authkey=os.environ[KEY_VARIABLE].encode()) as listener:
        processes = [
            context.Process(target=start_party, args=(name, listener.address, key, path, configuration.to_json()))
            for name, key, path in zip(PARTIES, keys, budgets, strict=True)
        ]
        for process in processes:
            process.start()
        coordinate(asked, configuration, listener)
    for process in processes:
        process.join()


def main() -> None:
    """Run the role that was asked for."""
    asked = options()
    host, _, port = asked.address.rpartition(":")
    try:
        configuration = Configuration.from_options(asked)
        everyone, _ = records(configuration)
        for number, name in enumerate(PARTIES):
            configuration.require_small_delta(name, len(everyone.share(number).labels))
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    if asked.role == "all":
        run_all(asked, configuration)
    elif asked.role == "party":
        start_party(asked.name, (host, int(port)), None, asked.budget, configuration.to_json())
    else:
        with Listener((host, int(port)), authkey=os.environ[KEY_VARIABLE].encode()) as listener:
            coordinate(asked, configuration, listener)


if __name__ == "__main__":
    main()
