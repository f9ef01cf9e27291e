"""Session cookies, and protection against CSRF."""

import hmac
from http import HTTPMethod
from typing import Final

from fastapi import Request, Response

from app.ledger.errors import CsrfError
from app.service.auth import sessions

COOKIE: Final = "epsilon_ledger_session"
FLOW_COOKIE: Final = "epsilon_ledger_sign_in"
"""Cookie of a login in progress at the identity provider."""
RENEWED_COOKIE: Final = "epsilon_ledger_renewed"
"""Marks a login at the identity provider that can be renewed silently."""
TOKEN_HEADER: Final = "X-CSRF-Token"  # noqa: S105 - the name of a header

_SAFE: Final = frozenset({HTTPMethod.GET, HTTPMethod.HEAD, HTTPMethod.OPTIONS})
_OWN: Final = frozenset({"same-origin", "none"})
"""Sec-Fetch-Site of requests by this service's pages or by the user."""


def cookie_of(request: Request, cookie: str = COOKIE) -> str | None:
    """Return a cookie of the request, by default the session's, or None."""
    return request.cookies.get(_named(request, cookie)) or None


def keep_cookie(request: Request, reply: Response, cookie: str, value: str, seconds: int | None = None) -> None:
    """Set an HttpOnly, SameSite cookie.

    Args:
        request: that is answered.
        reply: the response.
        cookie: name.
        value: value.
        seconds: lifetime; None: until the browser closes; 0: delete it.
    """
    secure = request.url.scheme == "https"
    reply.set_cookie(
        _named(request, cookie), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax"
    )


def credential_of(request: Request) -> sessions.Credential:
    """Return the request's Authorization header, or else its session cookie, or None.

    Raises:
        CsrfError: an unsafe browser request does not come from this service's pages.
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
    return sessions.SessionCookie(cookie)


def _named(request: Request, cookie: str) -> str:
    """Name a cookie; over TLS with the prefix that binds it to this host (RFC 6265bis, 4.1.3.2)."""
    return f"__Host-{cookie}" if request.url.scheme == "https" else cookie


def require_token(cookie: str, shown: str) -> None:
    """Require the CSRF token of the session.

    Raises:
        CsrfError: the token is missing or wrong.
    """
    if not hmac.compare_digest(sessions.csrf_token(cookie).encode(), shown.encode()):
        raise CsrfError(
            f"A browser's session was sent without the right {TOKEN_HEADER}: reload the page, or send an API key."
        )


def require_own_page(request: Request, *, alone: bool = False) -> None:
    """Refuse requests from other sites.

    Browsers send Fetch Metadata to trusted hosts only (https, localhost), and `Origin` to others.

    Args:
        request: of any kind.
        alone: whether there is no CSRF token, so that the browser must state the origin.

    Raises:
        CsrfError: the browser states another site, or does not state its own.
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
