"""The filter of a site, whose results have noise of their own."""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants

from epsilon_ledger import Event, LedgerClient, LedgerError, Run
from epsilon_ledger._federated.charges import UNITS, RoundCost, Unit, unit_of
from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger._federated.updates import NoisyMean
from epsilon_ledger._wire.coercion import one_of
from epsilon_ledger._wire.origins import wire_origins
from epsilon_ledger.mechanisms import GaussianNoise

HEADERS: Final = (
    ReservedHeaderKey.COOKIE_JAR,
    ReservedHeaderKey.TASK_ID,
    ReservedHeaderKey.TASK_NAME,
    ReservedHeaderKey.WORKFLOW,
    AppConstants.CONTRIBUTION_ROUND,
    AppConstants.CURRENT_ROUND,
    AppConstants.NUM_ROUNDS,
)
"""Headers that came with the task."""

RELEASED: Final = "epsilon-ledger"
_mark = secrets.token_hex()
"""In the header of what may leave: of this process, so that no app can have written it before."""


class LedgerFilter(Filter):
    """Charge a site's result before it leaves, and add the noise.

    What leaves is a new result with the noisy differences of weights, and nothing else of the old one: metrics, numbers
    of steps and other data have no noise, and all sites weigh the same. Everything else is blocked: results of tasks
    that it does not filter, other kinds of data, results that the budget does not allow, and those without the ledger's
    answer. Let it be the last filter.

    Each process of a site opens a run of its own; what earlier ones spent stays in the budget.

    Args:
        budget: of the site's runs; `{site}` stands for its name.
        noise_multiplier: standard deviation of the noise over the clipping norm, in [1e-3, 1e6].
        clipping_norm: to which all differences together are clipped, in [1e-9, 1e9].
        event: cost of noise that an earlier filter has added, instead of noise here; stated, not checked.
        unit: whether the population protects each "client", a whole site, or each "record" of one site; by default by
            its name.
        run_name: name of the runs.
        starts_from: what the job's initial model was trained by, as for `LedgerFedAvg`.

    Raises:
        ValueError: an argument is out of its bounds, or there are both, noise and event, or neither.
        TypeError: an argument has another type.
    """

    def __init__(  # noqa: PLR0917 - FLARE writes arguments by name into a job's configuration
        self,
        budget: str,
        noise_multiplier: float | None = None,
        clipping_norm: float | None = None,
        event: Event | None = None,
        unit: Unit | None = None,
        run_name: str = "nvflare-site",
        starts_from: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__()
        check_account(budget, unit)
        noisy = noise_multiplier is not None and clipping_norm is not None
        bare = noise_multiplier is None and clipping_norm is None
        if not (bare if event is not None else noisy):
            raise ValueError("Give noise_multiplier and clipping_norm, or the event of noise that was added before.")
        self.budget, self.unit, self.run_name = budget, unit, run_name
        self.starts_from = wire_origins(starts_from)
        self.noise_multiplier, self.clipping_norm, self.event = noise_multiplier, clipping_norm, event
        if event is not None and not isinstance(event, Mapping):
            raise TypeError(f"event must be an event such as gaussian(4.0), not {event!r}.")
        self._client: LedgerClient | None = None
        self._run: Run | None = None
        if event is None:
            self._noise()

    def add_to_fed_job(self, job: Any, ctx: Any, **how: Any) -> None:  # noqa: ANN401 - FLARE's
        """Add the filter to a job, for tasks by their names: FLARE 2.9 runs no filter of the task `*`, its default.

        Raises:
            UnsupportedRoundError: the filter would never run.
        """
        if "*" in how.get("tasks", ["*"]):
            raise UnsupportedRoundError(
                "FLARE finds filters by the exact name of a task, so that tasks=['*'], its default, filters nothing. "
                "Give names, such as tasks=['train']; results of other tasks are blocked."
            )
        super().add_to_fed_job(job, ctx, **how)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Block results that no such filter has released, and complete the run when the job ends."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.AFTER_TASK_RESULT_FILTER:
            result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            if result.get_return_code() == ReturnCode.OK and result.get_header(RELEASED) != _mark:
                # The very object that FLARE sends next.
                result.clear()
                result[ReservedHeaderKey.HEADERS] = {}
                result.set_return_code(ReturnCode.TASK_RESULT_FILTER_ERROR)
                self.log_error(fl_ctx, "LedgerFilter does not filter this task, or is not the last filter: blocked.")
        if event_type == EventType.END_RUN and self._client is not None:
            with self._client, suppress(LedgerError):  # what was charged stays charged
                if self._run is not None:
                    self._run.complete()
            self._client = self._run = None

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return a result that may leave.

        Args:
            shareable: the result of a task.
            fl_ctx: of the site.

        Raises:
            ContentBlockedException: nothing may leave; nothing was charged, unless the ledger did not answer.
        """
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)
        try:
            return self._release(shareable, fl_ctx)
        except (LedgerError, ValueError) as error:
            raise ContentBlockedException(str(error)) from error

    def _release(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        dxo = from_shareable(shareable)
        if dxo.data_kind != DataKind.WEIGHT_DIFF:
            raise UnsupportedRoundError(
                f"This result has data of the kind {dxo.data_kind}, and only differences of weights get noise. Send "
                f"differences (ParamsType.DIFF, or transfer_type='DIFF'), and no metrics or whole models."
            )
        arrays = numpy_arrays(dxo.data)
        zeros = {name: np.zeros_like(array) for name, array in arrays.items()}
        run = self._open(fl_ctx)
        if self.event is not None:
            run.authorize(event=self.event)
            noisy = arrays
        else:
            noise = self._noise()
            mean = NoisyMean(noise, [arrays], zeros, clients=1)
            run.authorize(event=self._event(run, noise))
            noisy = mean.draw()
        fresh = DXO(DataKind.WEIGHT_DIFF, data=noisy, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()
        for key in HEADERS:
            value = shareable.get_header(key)
            if value is not None:
                fresh.set_header(key, value)
        fresh.set_header(RELEASED, _mark)
        return fresh

    def _noise(self) -> GaussianNoise:
        if self.noise_multiplier is None or self.clipping_norm is None:
            raise ValueError("There is no noise.")
        return GaussianNoise(self.noise_multiplier, clipping_norm=self.clipping_norm)

    def _event(self, run: Run, noise: GaussianNoise) -> Event:
        relation, unit = run.state.neighboring_relation, unit_of(run, self.unit)
        if unit == "client" and relation == "add_or_remove_one":
            raise UnsupportedRoundError(
                "A result shows that its site takes part, so no noise hides a site that is added or removed. Charge a "
                "population under replace_one or replace_special, or one whose units are records of one site."
            )
        return RoundCost(relation, unit, "none").event(noise.noise_multiplier, None, clients=1, sampled=1)

    def _open(self, fl_ctx: FLContext) -> Run:
        if self._run is None:
            site = str(fl_ctx.get_identity_name())
            # A job's id tells apart runs of one name.
            job = str(fl_ctx.get_prop(FLContextKey.CURRENT_RUN))
            self._client = self._client or LedgerClient()
            self._run = self._client.create_run(
                self.run_name,
                budget=self.budget.format(site=site),
                starts_from=self.starts_from,
                labels={"nvflare-job": job[:60]},
            )
        return self._run


def check_account(budget: object, unit: Unit | None) -> None:
    """Check the budget's path and the unit before a job starts.

    Raises:
        ValueError: the path is empty or has an unknown part, or there is no such unit.
    """
    try:
        path = budget.format(site="site-1") if isinstance(budget, str) else ""
    except (LookupError, ValueError):
        path = ""
    if not path:
        raise ValueError(f"budget must be a path such as 'hospitals/{{site}}', not {budget!r}.")
    if unit is not None:
        one_of("unit", unit, UNITS)


def numpy_arrays(data: object) -> dict[str, NDArray[Any]]:
    """Return the parameters of a result.

    Raises:
        UnsupportedRoundError: they are no numpy arrays.
    """
    if not isinstance(data, dict) or not all(isinstance(value, np.ndarray | np.generic) for value in data.values()):
        raise UnsupportedRoundError(
            "The parameters of this result are no numpy arrays. Exchange numpy arrays: ExchangeFormat.NUMPY."
        )
    return {name: np.asarray(value) for name, value in data.items()}
