"""Whatever the OpenAPI document allows, and what it does not, sent by roles that may do it and by others.

schemathesis makes the requests. The witness of every answer (tests/api/conftest.py) holds them against the document: a
status or a code that it does not name, a body that is not as its schema says, or a failure of the service, is a fault.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx2
import pytest
import schemathesis
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from tests.api.conftest import SeededLedger
from tests.api.operations import DOCUMENT, OPERATIONS, Operation
from tests.soak import few

SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
EXAMPLES = {GenerationMode.POSITIVE: 4, GenerationMode.NEGATIVE: 3}
"""For each operation and role: the same in each run, but for twenty times as many in `make soak`."""

ROLES = ("viewer", "planner", "admin")
"""One who may only read, one whose changes of limits are proposals, and one who may do everything.

To the others an operation answers as to one of these: `matrix` says who may do what, and is tried with every role.
"""

IN_EVERY_TEST = {(GenerationMode.POSITIVE, "admin"), (GenerationMode.NEGATIVE, "planner")}
EVERY = 6
"""What is good, from a role that may do it, or what is not, from one that may do some, of every sixth operation.

`make soak` tries all. Wrong values that follow from the document are sent to each operation by `test_wrong_values.py`.
"""


@pytest.fixture(autouse=True, scope="module")
def sound(shared: SeededLedger) -> Iterator[None]:
    """Whatever was asked, the ledger verifies afterwards."""
    yield
    assert shared.sound()


def _send(shared: SeededLedger, role: str, case: Case[Any], mode: GenerationMode) -> int:
    if mode is GenerationMode.POSITIVE:  # at what there is; ids that mean nothing come with the bad ones
        case.path_parameters = {name: shared.ids()[name] for name in case.path_parameters or {}}
    made = case.as_transport_kwargs(base_url="http://testserver")
    body = made.get("data")
    sent: dict[str, Any] = {"json": made.get("json"), "content" if isinstance(body, bytes | str) else "data": body}
    headers = {**dict(made.get("headers") or {}), **shared.ledger.headers(role)}
    reply: httpx2.Response = shared.ledger.http.request(
        made["method"], made["url"], params=made.get("params"), headers=headers, **sent
    )
    return reply.status_code


def _modes(operation: Operation) -> set[GenerationMode]:
    """Where nothing is asked, nothing can be asked in a wrong way."""
    asked = {"parameters", "requestBody"} & operation.described.keys()
    return set(EXAMPLES) if asked else {GenerationMode.POSITIVE}


def _in_every_test(operation: Operation, mode: GenerationMode, role: str) -> bool:
    modes = [each for each in EXAMPLES if each in _modes(operation)]
    place = OPERATIONS.index(operation)
    return place % EVERY == 2 and mode is modes[place // EVERY % len(modes)] and (mode, role) in IN_EVERY_TEST


def _cases() -> Iterator[ParameterSet]:
    for operation, mode, role in product(OPERATIONS, EXAMPLES, ROLES):
        if mode in _modes(operation):
            marks = () if _in_every_test(operation, mode, role) else pytest.mark.soak
            yield pytest.param(operation, mode, role, marks=marks, id=f"{operation.id}-{mode.value}-{role}")


@pytest.mark.parametrize(("operation", "mode", "role"), list(_cases()))
def test_every_answer_is_as_the_document_says(
    shared: SeededLedger, operation: Operation, mode: GenerationMode, role: str
) -> None:
    @settings(few(EXAMPLES[mode]), database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=SCHEMA[operation.path][operation.method].as_strategy(generation_mode=mode))
    def ask(case: Case[Any]) -> None:
        assert _send(shared, role, case, mode) < 500

    ask()
