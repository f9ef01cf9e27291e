"""Flower's own simulation, whose server and clients are charged: a module of `flower_server`."""

import uuid
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from epsilon_ledger import EventCount, LedgerClient, Limit, gaussian
from epsilon_ledger.flower import LedgerMod, LedgerResult, charge_rounds

CLIENTS = 2
BUDGET = f"phones-{uuid.uuid4().hex[:8]}"
LOCAL = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)

app = ClientApp(mods=[LedgerMod(LOCAL, f"{BUDGET}/local", name="on a client")])
server = ServerApp()
results: list[LedgerResult] = []


def train(message: Message, context: Context) -> Message:
    del context
    moved = {name: Array(array.numpy() + 1.0) for name, array in message.content["arrays"].items()}
    told = MetricRecord({"num-examples": 31, "loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": told}), reply_to=message)


def main(grid: Grid, context: Any) -> None:  # noqa: ANN401 - a context
    del context
    with LedgerClient() as ledger, ledger.create_run("server", budget=f"{BUDGET}/central") as run:
        inner = FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        wrapper = DifferentialPrivacyServerSideFixedClipping(inner, 4.0, 1.0, CLIENTS)
        strategy = charge_rounds(wrapper, run, unit="client")
        results.append(strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=4))


app.train()(train)
server.main()(main)

if __name__ == "__main__":
    with LedgerClient() as ledger:
        everything = Limit(100.0, 1e-5)
        ledger.create_population(BUDGET, privacy_unit="device", neighboring_relation="replace_one", limit=everything)
        # Enough for two rounds: the third one is refused.
        twice = ledger.compute_epsilon(
            events=[EventCount(event=gaussian(4.0), count=2)], delta=1e-5, neighboring_relation="replace_one"
        )
        ledger.create_budget("central", parent=BUDGET, limit=Limit(1.1 * twice.epsilon, 1e-5))
        ledger.create_budget("local", parent=BUDGET, limit=everything)
        cores = {"init_args": {"num_cpus": 1, "include_dashboard": False}, "client_resources": {"num_cpus": 1}}
        run_simulation(server, app, CLIENTS, backend_config=cores)
        (result,) = results
        (central,) = ledger.list_runs(budget=f"{BUDGET}/central")
        local = list(ledger.list_runs(budget=f"{BUDGET}/local"))
        assert result.refusal is not None
        assert central.status == "completed"
        released = central.next_step
        assert released >= 1
        assert np.isfinite(result.arrays["w"].numpy()).all()
        # Each client was charged for the rounds that were released, and for the one that was not.
        assert [run.next_step for run in local] == [released + 1] * CLIENTS
        assert result.train_metrics_clientapp == {}
