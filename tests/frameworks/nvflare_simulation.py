"""FLARE's own simulator, whose server and sites are charged: `python -m ...`, with a ledger in the environment."""

import tempfile
import uuid
from pathlib import Path

import numpy as np
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner

from epsilon_ledger import EventCount, LedgerClient, Limit, gaussian
from epsilon_ledger.nvflare import LedgerFedAvg, LedgerFilter

TRAIN = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    update = {name: 1.0 + 0 * array for name, array in model.params.items()}
    flare.send(flare.FLModel(params=update, params_type="DIFF", metrics={"accuracy": 0.5}))
"""
SITES = ("site-1", "site-2")

if __name__ == "__main__":
    population = f"hospitals-{uuid.uuid4().hex[:8]}"
    with LedgerClient() as ledger, tempfile.TemporaryDirectory() as folder:
        everything = Limit(100.0, 1e-5)
        ledger.create_population(
            population, privacy_unit="patient", neighboring_relation="replace_one", limit=everything
        )
        twice = ledger.compute_epsilon(
            events=[EventCount(event=gaussian(4.0), count=2)], delta=1e-5, neighboring_relation="replace_one"
        )
        ledger.create_budget("central", parent=population, limit=Limit(1.1 * twice.epsilon, 1e-5))
        for site in SITES:
            ledger.create_budget(site, parent=population, limit=everything)
        script = Path(folder) / "train.py"
        script.write_text(TRAIN)
        job = FedJob(name="ledger", min_clients=len(SITES))
        job.to_server(
            LedgerFedAvg(f"{population}/central", 4.0, 1.0, unit="record", num_clients=len(SITES), num_rounds=9)
        )
        job.to_server(NPModelPersistor(model=[[0.0, 0.0]]), id="persistor")
        job.to_clients(ScriptRunner(str(script), framework="numpy"))
        site_filter = LedgerFilter(population + "/{site}", 4.0, 1.0, unit="record")
        job.to_clients(site_filter, filter_type=FilterType.TASK_RESULT, tasks=["train"])
        job.simulator_run(folder, n_clients=len(SITES), threads=len(SITES))
        (central,) = ledger.list_runs(budget=f"{population}/central")
        assert (central.status, central.end_reason) == ("completed", "budget_exhausted")
        sites = [next(iter(ledger.list_runs(budget=f"{population}/{site}"))) for site in SITES]
        # Each site was charged for the rounds that were released, and for the one that was not.
        assert [run.next_step for run in sites] == [central.next_step + 1] * len(SITES)
        (saved,) = Path(folder).rglob("server.npy")
        assert np.isfinite(np.load(saved)).all()
