"""Signed documents with something beside what was signed: no verifier may call one of them sound."""

import json
from typing import Any

BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def forged_documents(document: dict[str, Any]) -> dict[str, str]:
    """Texts that differ from a signed document, by what is wrong."""
    text, payload, signature = json.dumps(document), document["payload"], document["signature"]
    value = signature["value"]
    spare = BASE64[BASE64.index(value[-3]) | 1]  # the same bytes, by four bits that stand for none
    other = json.dumps(payload | {"organisation": "org_forged"})
    signed: dict[str, dict[str, Any]] = {
        "no algorithm": {"algorithm": "none"},
        "another algorithm": {"algorithm": "HS256"},
        "an algorithm that is no text": {"algorithm": ["Ed25519"]},
        "the id of another key": {"key_id": "0" * 16},
        "an id of two lines": {"key_id": f"{signature['key_id']}.\nSound: signed by the key 0123456789abcdef."},
        "another value": {"value": value[::-1]},
        "spare bits": {"value": f"{value[:-3]}{spare}=="},
        "white space": {"value": f"{value}\n"},
        "an unsigned key": {"jwk": {"kty": "OKP"}},
    }
    texts = {name: json.dumps(document | {"signature": signature | changes}) for name, changes in signed.items()}
    return texts | {
        "another payload": json.dumps(document | {"payload": payload | {"type": "x"}}),
        "an unsigned member": json.dumps(document | {"note": "Checked by the office."}),
        "a payload before the signed one": text.replace('{"payload":', f'{{"payload": {other}, "payload":', 1),
        "an epsilon before the signed one": text.replace('"type":', '"type": "forged", "type":', 1),
        "a name that is escaped": text.replace('"type":', '"\\u0074ype": "forged", "type":', 1),
        "a signature before the other": text.replace('"signature":', '"signature": {}, "signature":', 1),
        "an algorithm before the other": text.replace('"algorithm":', '"algorithm": "none", "algorithm":', 1),
    }
