"""The mutations that `make mutations` tries: a line of the code, and what stands there instead."""

from tests.mutation_cases import (
    accounting,
    alerts,
    authentication,
    charging,
    client,
    events,
    governance,
    ledger,
    operation,
    persistence,
    plans,
    provisioning,
    scheduling,
    verification,
    waiting_plans,
)
from tests.mutation_cases.case import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *accounting.CASES,
    *alerts.CASES,
    *authentication.CASES,
    *charging.CASES,
    *client.CASES,
    *events.CASES,
    *governance.CASES,
    *ledger.CASES,
    *operation.CASES,
    *persistence.CASES,
    *plans.CASES,
    *provisioning.CASES,
    *scheduling.CASES,
    *verification.CASES,
    *waiting_plans.CASES,
)
