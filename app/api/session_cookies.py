"""The cookie by which a browser shows who is signed in, and what keeps other sites from using it."""

import hmac
from http import HTTPMethod
from typing import Final

from fastapi import Request, Response

from app.ledger.errors import CsrfError
from app.service.auth import sessions

COOKIE: Final = "epsilon_ledger_session"
FLOW_COOKIE: Final = "epsilon_ledger_sign_in"
"""Of a sign-in at the identity provider that is under way."""
RENEWED_COOKIE: Final = "epsilon_ledger_renewed"
"""Says that somebody signed in at the identity provider, who can be asked again without a word."""
TOKEN_HEADER: Final = "X-CSRF-Token"  # noqa: S105 - the name of a header

_SAFE: Final = frozenset({HTTPMethod.GET, HTTPMethod.HEAD, HTTPMethod.OPTIONS})
_OWN: Final = frozenset({"same-origin", "none"})
"""What browsers say of requests that this service's own pages, or the person, have made (Fetch Metadata)."""


def cookie_of(request: Request, cookie: str = COOKIE) -> str | None:
    """The value of a cookie, by default of the session's, if the request has it."""
    return request.cookies.get(_named(request, cookie)) or None


def keep_cookie(request: Request, reply: Response, cookie: str, value: str, seconds: int | None = None) -> None:
    """Let a browser keep a cookie; scripts never see it, and other sites cannot send it on.

    Args:
        request: that is answered.
        reply: the answer.
        cookie: its name.
        value: what it holds.
        seconds: for how long; None: until the browser is closed; 0: it is forgotten.
    """
    secure = request.url.scheme == "https"
    reply.set_cookie(
        _named(request, cookie), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax"
    )


def credential_of(request: Request) -> str | None:
    """What a request shows of who asks: its Authorization header, or else the cookie of a session.

    Args:
        request: of any kind.

    Returns:
        As the ring of keys takes it; None: nothing.

    Raises:
        CsrfError: a browser's request would change something, and no page of this service has made it.
    """
    header = request.headers.get("authorization")
    if header is not None:
        return header
    cookie = cookie_of(request)
    if cookie is None:
        return None
    if request.method not in _SAFE:
        require_own_page(request)
        require_token(cookie, request.headers.get(TOKEN_HEADER, ""))
    return f"{sessions.SCHEME} {cookie}"


def _named(request: Request, cookie: str) -> str:
    """A cookie's name: by TLS one that browsers take from this very host only (RFC 6265bis, 4.1.3.2)."""
    return f"__Host-{cookie}" if request.url.scheme == "https" else cookie


def require_token(cookie: str, shown: str) -> None:
    """Refuse a request that does not show what only our own pages know.

    Raises:
        CsrfError: it is so.
    """
    if not hmac.compare_digest(sessions.csrf_token(cookie).encode(), shown.encode()):
        raise CsrfError(
            f"A browser's session was sent without the right {TOKEN_HEADER}: reload the page, or send an API key."
        )


def require_own_page(request: Request, *, alone: bool = False) -> None:
    """Refuse what a page of another site has sent.

    Browsers say by Fetch Metadata where a request comes from, but only to hosts that they trust (https, localhost);
    to the others they say by `Origin`.

    Args:
        request: of any kind.
        alone: whether nothing else shows it, as the CSRF token of a session does: then the browser has to say it.

    Raises:
        CsrfError: the browser says that it is another site's, or does not say that it is not.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        own = site in _OWN
    elif origin is not None:
        own = origin in {request.app.state.public_url, f"{request.url.scheme}://{request.url.netloc}"}
    elif alone:
        raise CsrfError(
            "The request has neither Sec-Fetch-Site nor Origin, so no page of this service has made it: sign in with a "
            "current browser; programs send their key with each request."
        )
    else:
        own = True
    if not own:
        raise CsrfError("The request was made by a page of another site.")
