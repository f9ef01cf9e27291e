"""HEAD wherever GET is: the same answer without its body."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """Middleware that answers HEAD as GET, but for the body.

    Args:
        app: what answers GET.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            scope["method"] = "HEAD"  # again, before the server learns the length of a body that it must not send
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        scope["method"] = "GET"  # in its place: what the router notes in the scope is read outside
        await self._app(scope, receive, send_head)
