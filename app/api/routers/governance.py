"""Governance: who did what, and is the ledger what its charges make it?"""

from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response
from pydantic import AwareDatetime

from app.api.paging import After, PageLimit, cut, decode_position
from app.api.problems import GUARDED, reads, responses
from app.api.route import Asked, router, tagged
from app.api.schemas.governance import ActOut, ActPage, VerificationOut
from app.persistence.repositories.acts import Wanted
from app.persistence.tables import ACTOR_LENGTH
from app.service import auditing
from app.service.verification import verify_organisation

routes = router()

VERIFIERS = CapacityLimiter(1)
"""A verification reads everything; the next one waits, and trainers keep their threads."""


@routes.get(
    "/verify",
    operation_id="verifyLedger",
    summary="Recompute every balance and walk every chain",
    tags=["governance"],
    responses=responses(*GUARDED, "insufficient_scope", "invalid_request"),
)
async def verify_ledger(call: Asked) -> VerificationOut:
    """Every account of the caller's organisation from its charges alone; it takes as long as there are charges.

    Writes to an account whose balance is not proven are stopped, until a later verification finds it sound.
    """
    return VerificationOut.of(await to_thread.run_sync(verify_organisation, call, limiter=VERIFIERS))


Word = Annotated[str | None, Query(min_length=1, max_length=ACTOR_LENGTH)]
When = Annotated[AwareDatetime | None, Query()]


def _wanted(
    action: Annotated[Word, Query(description="As `budget.created`; `budget.*`: all of that kind.")] = None,
    actor: Annotated[Word, Query(description="Who did it.")] = None,
    subject: Annotated[Word, Query(description="The id of what it was done to.")] = None,
    since: Annotated[When, Query(description="Not before this moment.")] = None,
    until: Annotated[When, Query(description="Before this moment.")] = None,
) -> Wanted:
    return Wanted(action, actor, subject, since, until)


@routes.get(
    "/audit",
    operation_id="listActs",
    summary="Read who did what",
    tags=["governance"],
    response_model=ActPage,
    responses=reads(*GUARDED, "insufficient_scope", "invalid_request"),
)
def list_acts(
    request: Request,
    call: Asked,
    wanted: Annotated[Wanted, Depends(_wanted)],
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """The organisation's own chain: every act of governance, and every key that was tried and opened nothing."""
    found = auditing.read_acts(call, wanted, after=decode_position(after, -1), limit=limit + 1)
    shown, following = cut(found, limit, lambda kept: str(kept.entry.position))
    return tagged(request, ActPage(items=[ActOut.of(kept) for kept in shown], next=following))
