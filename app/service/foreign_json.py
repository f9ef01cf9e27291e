"""JSON from outside: what can be kept, compared, logged and sent on as it is."""

import json


def require_characters(value: object) -> None:
    """Refuse JSON with half a surrogate pair: Python decodes such an escape, and can encode the string nowhere.

    Args:
        value: as it was decoded.

    Raises:
        UnicodeEncodeError: some text in it, or a name, is no text.
        RecursionError: it is nested too deeply.
    """
    json.dumps(value, ensure_ascii=False).encode()


def read_object(content: bytes) -> dict[str, object]:
    """The JSON object that somebody else wrote: a browser's cookie, a token, or a provider's answer.

    Args:
        content: UTF-8.

    Raises:
        ValueError: it is no JSON object, is nested too deeply, or holds what is no text.
    """
    try:
        told = json.loads(content.decode())
        require_characters(told)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(told, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of what was sent, not of this program
    return told
