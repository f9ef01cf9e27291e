"""NVIDIA FLARE's filters and its FedAvg, with the real framework and the real service."""

# ruff: noqa: ANN401 - what the framework gives and takes has no types here

import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from epsilon_ledger import Event, LedgerClient, Limit, ModelOrigin, Run, epsilon_delta, gaussian
from epsilon_ledger.nvflare import LedgerFedAvg, LedgerFilter, UnsupportedRoundError
from tests.conftest import LiveServer

SMALL = 0.02
"""So little noise that it hides nothing: the mean of clipped updates can be read."""


@pytest.fixture(scope="module", autouse=True)
def client(live_server: LiveServer) -> Iterator[LedgerClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPSILON_LEDGER_URL", live_server.url)
        patch.setenv("EPSILON_LEDGER_API_KEY", live_server.key("admin"))
        with LedgerClient() as opened:
            yield opened


MakeFilter = Callable[..., LedgerFilter]
TERMS: dict[str, Any] = {"privacy_unit": "client", "neighboring_relation": "replace_one"}


@pytest.fixture
def budget(client: LedgerClient) -> str:
    return open_population(client)


def open_population(client: LedgerClient, epsilon: float = 1e4, **terms: Any) -> str:
    name = f"hospitals-{uuid.uuid4().hex[:8]}"
    client.create_population(name, **TERMS | terms, limit=Limit(epsilon, 1e-5))
    return name


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What runs are asked for."""
    found: list[Event] = []
    authorize = Run.authorize

    def noted(run: Run, count: int = 1, *, event: Event | None = None) -> Any:
        assert event is not None
        found.append(event)
        return authorize(run, count, event=event)

    monkeypatch.setattr(Run, "authorize", noted)
    return found


@pytest.fixture
def make_filter() -> Iterator[MakeFilter]:
    """Filters of a job that ends with the test."""
    made: list[LedgerFilter] = []

    def make(budget: str, *terms: Any, **named: Any) -> LedgerFilter:
        made.append(LedgerFilter(budget, *terms, **named))
        return made[-1]

    yield make
    for each in made:
        each.handle_event(EventType.END_RUN, site_context())


def site_context() -> FLContext:
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, "site-1", private=False, sticky=False)
    context.set_prop(FLContextKey.CURRENT_RUN, "job-7", private=False, sticky=False)
    return context


def result(data: Any, kind: str = DataKind.WEIGHT_DIFF) -> Shareable:
    made = DXO(kind, data=data, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 17, MetaKey.INITIAL_METRICS: {"age": 64.0}})
    found = made.to_shareable()
    found.set_header(AppConstants.CURRENT_ROUND, 3)
    found.set_header("patients", 17)
    found["patients"] = 17
    return found


def test_result_is_charged_and_leaves_with_noise_and_nothing_else(
    client: LedgerClient, budget: str, make_filter: MakeFilter, asked: list[Event]
) -> None:
    filter_ = make_filter(budget, noise_multiplier=2.0, clipping_norm=0.5, starts_from=[])
    left = filter_.process(result({"w": np.ones(20_000, np.float32)}), site_context())
    assert asked == [gaussian(2.0)]
    dxo = from_shareable(left)
    assert np.std(dxo.data["w"]) == pytest.approx(2.0 * 0.5, rel=0.03)
    assert np.mean(dxo.data["w"]) == pytest.approx(0.0, abs=0.03)
    assert dxo.meta == {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    assert left.get_header(AppConstants.CURRENT_ROUND) == 3
    assert left.get_header("patients") is None
    assert "patients" not in left
    (run,) = client.list_runs(budget=budget)
    assert run.starts_from == ()


def test_filter_of_no_task_is_refused() -> None:
    job = FedJob()
    for tasks in ({}, {"tasks": ["*"]}):
        with pytest.raises(UnsupportedRoundError, match="filters nothing"):
            job.to_clients(LedgerFilter("hospitals", 1.0, 1.0), filter_type=FilterType.TASK_RESULT, **tasks)


RESULT = {"w": np.ones(2)}
COLLECTION = {"inner": DXO(DataKind.WEIGHT_DIFF, data=RESULT)}
BLOCKED: list[tuple[Any, str]] = [
    (result(RESULT, DataKind.WEIGHTS), "only differences"),
    (result({"age": 64.0}, DataKind.METRICS), "only differences"),
    (result(COLLECTION, DataKind.COLLECTION), "only differences"),
    (result({"w": [1.0, 2.0]}), "numpy arrays"),
    (result({"w": np.array([1, 2])}), "no array of floats"),
    (Shareable({"patients": 17}), "DXO"),
]


def test_result_without_charged_noise_is_blocked(
    client: LedgerClient, budget: str, make_filter: MakeFilter, asked: list[Event]
) -> None:
    for sent, reason in BLOCKED:
        with pytest.raises(ContentBlockedException, match=reason):
            make_filter(budget, 4.0, 1.0).process(sent, site_context())
    shown = open_population(client, neighboring_relation="add_or_remove_one")
    with pytest.raises(ContentBlockedException, match="shows that its site takes part"):
        make_filter(shown, 4.0, 1.0).process(result(RESULT), site_context())
    assert asked == []


def test_refused_result_stays_and_its_run_is_exhausted(
    client: LedgerClient, budget: str, make_filter: MakeFilter
) -> None:
    client.create_budget("site-1", parent=budget, limit=Limit(1.0, 1e-5))
    filter_, loud = (make_filter(budget + "/{site}", noise, 1.0) for noise in (40.0, 0.1))
    for _ in range(2):
        filter_.process(result(RESULT), site_context())
    with pytest.raises(ContentBlockedException, match="refused"):
        loud.process(result(RESULT), site_context())
    for each in (filter_, loud):
        each.handle_event(EventType.END_RUN, site_context())
    second, first = client.list_runs(budget=f"{budget}/site-1")
    assert (first.next_step, first.status, second.next_step) == (2, "completed", 0)
    assert (second.status, second.end_reason) == ("completed", "budget_exhausted")


NEIGHBOURS: list[tuple[str, Any, float, float | None]] = [
    # Relation, unit, noise that a round of the server and a result of a site cost; None: the site shows.
    ("replace_one", "client", 4.0, 4.0),
    ("replace_one", "record", 4.0, 4.0),
    ("replace_special", "client", 4.0, 4.0),
    ("replace_special", "record", 2.0, None),
    # A site more may take the place of another one.
    ("add_or_remove_one", "client", 2.0, None),
    ("add_or_remove_one", "record", 2.0, 2.0),
]


def test_change_by_neighbour_is_charged(client: LedgerClient, make_filter: MakeFilter, asked: list[Event]) -> None:
    for relation, unit, central, local in NEIGHBOURS:
        budget = open_population(client, privacy_unit="patient", neighboring_relation=relation)
        asked.clear()
        Federation([by(0.1)], budget, unit=unit, noise_multiplier=4.0, num_rounds=1).run()
        if local is not None:
            make_filter(budget, 4.0, 1.0, unit=unit).process(result(RESULT), site_context())
        assert asked == [gaussian(noise) for noise in (central, local) if noise]
        with pytest.raises(UnsupportedRoundError, match="unit='client'"):
            Federation([by(0.1)], budget, num_rounds=1).run()


def test_only_results_of_filtered_task_leave(budget: str, make_filter: MakeFilter, asked: list[Event]) -> None:
    def released(reply: Shareable) -> Shareable:
        """Do as FLARE does after all filters; return what it sends."""
        context = site_context()
        context.set_prop(FLContextKey.TASK_RESULT, reply, private=True, sticky=False)
        filter_.handle_event(EventType.AFTER_TASK_RESULT_FILTER, context)
        return reply

    cost = epsilon_delta(0.5)  # of an earlier filter's noise
    filter_ = make_filter(budget, event=cost)
    filtered = filter_.process(result({"w": np.full(3, 0.25)}), site_context())
    assert (asked, from_shareable(filtered).data["w"].tolist()) == ([cost], [0.25] * 3)
    assert from_shareable(filtered).meta == {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    assert released(filtered).get_return_code() == ReturnCode.OK
    blocked = released(result(RESULT))
    assert blocked.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert list(blocked) == [ReservedHeaderKey.HEADERS]
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    failed["reason"] = "patient 17 has no age"
    for left in (filter_.process(failed, site_context()), released(make_reply(ReturnCode.EXECUTION_EXCEPTION))):
        assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
        assert "reason" not in left


class Federation(LedgerFedAvg):
    """FLARE's own rounds, whose clients are functions instead of sites."""

    def __init__(self, clients: list[Callable[[FLModel], FLModel]], budget: str, **terms: Any) -> None:
        arguments = {"noise_multiplier": SMALL, "clipping_norm": 1.0, "num_clients": len(clients)} | terms
        super().__init__(budget, model={"w": np.zeros(2, np.float32), "b": np.float32(0.0)}, **arguments)
        self.clients = clients
        self.saved: list[dict[str, NDArray[Any]]] = []
        self.fl_ctx = FLContext()
        self.abort_signal = cast("Any", None)

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        del num_clients
        return [f"site-{index}" for index in range(len(self.clients))]

    def broadcast(self, task: Task, *_: Any, **__: Any) -> None:
        for index, client in enumerate(self.clients):
            try:
                reply = client(FLModelUtils.from_shareable(task.data))
                reply.meta = {"client_name": f"site-{index}"}
                task.get_prop(AppConstants.TASK_PROP_CALLBACK)(reply)
            except (ValueError, UnsupportedRoundError):
                continue  # as FLARE does: the result is missing

    def save_model(self, model: FLModel) -> None:
        self.saved.append({name: np.array(array) for name, array in model.params.items()})

    def get_num_standing_tasks(self) -> int:
        return 0

    def silent(self, *_: Any) -> None:
        """Tell nothing."""

    event = fire_event_with_data = info = silent


def by(shift: float, *, full: bool = False) -> Callable[[FLModel], FLModel]:
    """A client that adds something to all parameters."""

    def trained(model: FLModel) -> FLModel:
        moved = {
            name: np.asarray(array + shift if full else np.full_like(array, shift))
            for name, array in model.params.items()
        }
        return FLModel(
            params=moved, params_type=ParamsType.FULL if full else ParamsType.DIFF, metrics={"accuracy": 0.5}, meta={}
        )

    return trained


def raising(model: FLModel) -> FLModel:
    del model
    raise ValueError("out of memory")


def test_round_is_charged_and_nothing_moves_more_than_its_share(
    client: LedgerClient, budget: str, asked: list[Event]
) -> None:
    clients = [by(1e6), by(0.2), by(0.2, full=True), by(np.nan), raising]
    outside = {"name": "resnet", "sha256": "5a" * 32}
    federation = Federation(clients, budget, num_rounds=1, starts_from=[outside])
    federation.run()
    assert asked == [gaussian(SMALL)]
    (saved,) = federation.saved
    # Three coordinates share the norm; two replies are missing.
    shift = (1 / np.sqrt(3) + 0.2 + 0.2) / 5
    assert np.allclose([*saved["w"], float(saved["b"])], shift, atol=0.03)
    assert federation.refusal is None
    (run,) = client.list_runs(budget=budget)
    assert (run.next_step, run.status) == (1, "completed")
    assert run.starts_from == (ModelOrigin("resnet", "5a" * 32),)


def test_budget_ends_job_with_its_last_model(client: LedgerClient, asked: list[Event]) -> None:
    budget = open_population(client, 5.0)
    federation = Federation([by(0.1), by(0.1)], budget, num_rounds=100, noise_multiplier=4.0)
    federation.run()
    assert federation.refusal is not None
    (run,) = client.list_runs(budget=budget)
    assert len(federation.saved) == run.next_step == len(asked) - 1 > 1
