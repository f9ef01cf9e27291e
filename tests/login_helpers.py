"""People who have signed in with a browser, for tests that need no browser."""

from datetime import UTC, datetime, timedelta

from app.service.auth import sessions
from app.service.auth.authentication import authenticate
from app.service.auth.request_context import RequestContext
from tests.conftest import Ledger


def cookie_for(ledger: Ledger, role: str = "admin", organisation: str = "hospital") -> str:
    """The cookie of somebody who has signed in with the key of a role."""
    now = datetime.now(UTC)
    caller = authenticate(ledger.database, f"Bearer {ledger.keys[organisation, role]}", now)
    return sessions.open_session(RequestContext(ledger.database, caller, now), timedelta(hours=1))
