"""NVIDIA FLARE adapter: every round is charged before it is aggregated, and every noisy result before it leaves a site.

With noise at the server, in place of FLARE's FedAvg:

    job.to_server(LedgerFedAvg("hospitals/central", 1.1, 0.5, num_clients=10, num_rounds=100))

With noise at each site, in place of another privacy filter:

    job.to_clients(LedgerFilter("hospitals/{site}", 4.0, 0.5), filter_type=FilterType.TASK_RESULT, tasks=["train"])

The address and the key of the ledger come from each process's EPSILON_LEDGER_URL and EPSILON_LEDGER_API_KEY.

Needs `pip install "epsilon-ledger-client[nvflare]"`.
"""

from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._nvflare.filter import LedgerFilter
from epsilon_ledger._nvflare.workflow import LedgerFedAvg

__all__ = ["LedgerFedAvg", "LedgerFilter", "UnsupportedRoundError"]
