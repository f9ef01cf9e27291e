"""MLflow logging of a ledger run's epsilon.

    with mlflow.start_run(), EpsilonLogger(run, client=ledger) as logger, run:
        for batch in batches:
            run.authorize()
            train_one_noisy_step(batch)
            logger.log()

logs `epsilon`, `used` and `steps_remaining` by step, tags for the ledger's run and its page, and at the end
its privacy statement. The ledger's run gets a label with the MLflow run, and a link to it if the tracking server has an
address without credentials. Needs `pip install "epsilon-ledger-client[mlflow]"`.
"""

from collections.abc import Mapping
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

from epsilon_ledger._run.provenance import MLFLOW_LABEL, mlflow_link
from epsilon_ledger._run_logger import STATEMENT, RunLogger
from epsilon_ledger._wire.metadata import Link

__all__ = ["STATEMENT", "EpsilonLogger"]


class EpsilonLogger(RunLogger):
    """Logger of a ledger run to the MLflow run that is active on entry of the `with` block.

    Args:
        run: to log.
        client: adds its decisions and the ledger's warnings to the statement, and the MLflow run to the metadata of the
            ledger's; optional.
        every: interval of logged steps, at least 1.
        url: the ledger's address, for a tag; by default EPSILON_LEDGER_URL.
    """

    _label = MLFLOW_LABEL
    _failures = (MlflowException,)
    _mlflow_run: str | None = None

    def _open(self) -> tuple[str, Link | None]:
        active = mlflow.active_run()
        if active is None:
            raise ValueError("Which MLflow run? Enter `with mlflow.start_run():` first.")
        self._mlflow_run = active.info.run_id
        return active.info.run_id, mlflow_link(mlflow, active)

    def _is_open(self) -> bool:
        return self._mlflow_run is not None

    def _describe(self, facts: Mapping[str, str]) -> None:
        tags = [mlflow.entities.RunTag(f"epsilon_ledger.{name}", fact) for name, fact in facts.items()]
        mlflow.MlflowClient().log_batch(self._mlflow_run, tags=tags)

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        mlflow.log_metrics(dict(numbers), step=step, run_id=self._mlflow_run)

    def _keep(self, statement: Mapping[str, Any]) -> None:
        mlflow.log_dict(dict(statement), STATEMENT, run_id=self._mlflow_run)
