"""Rules of keys, sessions and sign-in."""

from tests.mutation_cases.case import Mutation

CASES = (
    Mutation(
        "half a surrogate pair in a cookie or a token is taken for text",
        "app/service/foreign_json.py",
        "        require_characters(told)\n",
        "",
        ("tests/dashboard/test_hostile_strings.py", "tests/api/test_openid.py"),
    ),
    Mutation(
        "a provider that drips is waited for",
        "app/service/asking/openid/fetching.py",
        "        thread.join(FETCH_SECONDS)\n",
        "        thread.join()\n",
        ("tests/service/test_openid_fetching.py",),
        "drips",
    ),
    Mutation(
        "a provider that drips keeps a thread and a connection",
        "app/service/asking/openid/fetching.py",
        "                    self._open.shutdown(socket.SHUT_RDWR)  # whoever reads from it reads its end\n",
        "                    pass\n",
        ("tests/service/test_openid_fetching.py",),
        "drips",
    ),
    Mutation(
        "a role that is bound to an account reaches all",
        "app/service/asking/call.py",
        "if self.caller.scope is not None and self.caller.scope not in path:",
        "if False:",
        ("tests/api/test_keys.py",),
    ),
    Mutation(
        "a withdrawn key is believed for ever",
        "app/service/asking/keyring.py",
        "if known is None or now - known.seen_at >= BELIEVED_SECONDS:",
        "if known is None:",
        ("tests/api/test_keys.py", "tests/api/test_auth.py"),
    ),
    Mutation(
        "a browser's session is taken without a page's token",
        "app/api/sessions.py",
        '        require_token(cookie, request.headers.get(TOKEN_HEADER, ""))\n',
        "",
        ("tests/api/test_browser_sessions.py",),
    ),
    Mutation(
        "a browser's session is taken from another site",
        "app/api/sessions.py",
        "        require_own_page(request)\n",
        "",
        ("tests/api/test_browser_sessions.py",),
    ),
    Mutation(
        "a browser's session outlives its key, and its organisation",
        "app/service/asking/sessions.py",
        "if key is None or key.organisation_id != session.organisation_id or key.trouble(now) is not None:",
        "if key is None:",
        ("tests/service/test_sessions.py",),
    ),
    Mutation(
        "an identity provider's answer to another browser signs in",
        "app/service/asking/openid/flow.py",
        "if flow is None or not compare_digest(flow.state.encode(), state.encode()):",
        "if flow is None:",
        ("tests/dashboard/test_openid_sign_in.py",),
    ),
    Mutation(
        "an identity provider's token for another sign-in signs in",
        "app/service/asking/openid/tokens.py",
        "if not isinstance(told, str) or not compare_digest(told.encode(), nonce.encode()):",
        "if False:",
        ("tests/dashboard/test_openid_sign_in.py",),
    ),
    Mutation(
        "an identity provider's answer is taken twice",
        "app/dashboard/openid.py",
        '    keep_cookie(request, reply, FLOW_COOKIE, "", seconds=0)  # an answer is taken once\n',
        "",
        ("tests/dashboard/test_openid_sign_in.py",),
    ),
)
