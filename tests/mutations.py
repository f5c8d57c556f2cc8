"""Requests that are nearly right: valid uploads and rollout bodies with one thing wrong, the same for the same seed.

Not every mutation makes a request invalid; what must hold is that the server answers 200 or 4xx, and that a refused
upload changes nothing.
"""

import hashlib
import json
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3.5, 1e308, 2**31, 2**63, 2**64, -(2**63), 10**25, "", "x", "../../etc/passwd",
    "http://127.0.0.1/", "\x00", "ü", "\ud800", "player_9", "a" * 5000, [], [[]], {}, {"a": {"b": []}}, [None] * 50,
)  # fmt: skip
_RAW_TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"\xff\xfe",
    b'"\\ud800"', b"\x00", b"'x'", b"//", b"0x10", b"1_000", b"\xef\xbb\xbf",
)  # fmt: skip


def mutate_upload(rng: random.Random, body: bytes, config: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return (body, headers) of a valid upload with one to three things changed.

    The headers are x-sha256, x-peft-config and content-type; the digest mostly fits the changed body, so that the
    checks behind it are reached.
    """
    header_text = json.dumps(dict(config)).encode()
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.35:
            body = rng.choice(_BODY)(rng, body)
        elif kind < 0.7:
            body = _edit_header(rng, body)
        else:
            header_text = _edit_json(rng, header_text)
    digest = hashlib.sha256(body).hexdigest() if rng.random() < 0.95 else _random_text(rng, 64)
    headers = {
        "x-sha256": digest,
        # What an HTTP client can send: no line breaks, no control characters, of bounded length.
        "x-peft-config": "".join(chr(byte) for byte in header_text if byte >= 0x20 and byte != 0x7F)[:30000].strip(),
        "content-type": "application/octet-stream" if rng.random() < 0.97 else _random_text(rng, 20),
    }
    return body, {name: value for name, value in headers.items() if rng.random() >= 0.01}


def mutate_rollout(rng: random.Random, body: bytes) -> bytes:
    """Return a valid rollout body with one to three things changed."""
    for _ in range(rng.randint(1, 3)):
        body = _edit_json(rng, body) if rng.random() < 0.8 else rng.choice(_BODY)(rng, body)
    return body


def _edit_header(rng: random.Random, body: bytes) -> bytes:
    """Change the safetensors header; its length is mostly made to fit again."""
    if len(body) < 8:
        return body
    size = struct.unpack("<Q", body[:8])[0]
    header, tensors = body[8 : 8 + size], body[8 + size :]
    changed = _edit_json(rng, header)
    length = len(changed) if rng.random() < 0.9 else rng.choice((0, 1, 7, 2**31, 2**63, 2**64 - 1, len(body)))
    return struct.pack("<Q", length) + changed + tensors


def _edit_json(rng: random.Random, text: bytes) -> bytes:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return rng.choice(_BODY)(rng, text)
    if rng.random() < 0.15:
        return _splice(rng, text)
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if not places:
        return json.dumps(rng.choice(_ODD_VALUES)).encode()
    holder, key = rng.choice(places)
    action = rng.random()
    if action < 0.55:
        holder[key] = rng.choice(_ODD_VALUES)
    elif action < 0.7:
        del holder[key]
    elif action < 0.85 and isinstance(holder, dict):
        name = rng.choice(("extra", "__metadata__", "auto_mapping", "base_model_name_or_path", str(key) + "x"))
        holder[name] = rng.choice(_ODD_VALUES)
    elif isinstance(holder, list):
        holder.extend([holder[key]] * rng.choice((1, 2, 100)))
    else:
        # A duplicate key, which no dictionary can hold.
        name = json.dumps(key)
        return json.dumps(value).replace(name + ":", f"{name}: 1, {name}:", 1).encode()
    return json.dumps(value).encode()


def _collect(value: Any, places: list[tuple[Any, Any]], depth: int = 0) -> None:
    keys = value if isinstance(value, dict) else range(min(len(value), 8)) if isinstance(value, list) else ()
    for key in keys if depth <= 8 else ():
        places.append((value, key))
        _collect(value[key], places, depth + 1)


def _splice(rng: random.Random, text: bytes) -> bytes:
    """Put a token that is no JSON, or hostile JSON, where a value stands."""
    starts = [index for index, byte in enumerate(text) if byte in b":[,"]
    if not starts:
        return text
    start = rng.choice(starts) + 1
    ends = [index for index in range(start, min(start + 200, len(text))) if text[index] in b",]}"]
    return text[:start] + rng.choice(_RAW_TOKENS) + text[ends[0] if ends else start :]


def _flip(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randint(1, 8) if body else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _not_finite(rng: random.Random, body: bytes) -> bytes:
    """Overwrite a number in the tensors by an infinity or NaN."""
    if len(body) < 16:
        return body
    start = len(body) - 4 * rng.randint(1, min(64, len(body) // 4))
    number = rng.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff"))
    return body[:start] + number + body[start + 4 :]


def _shuffle_part(rng: random.Random, body: bytes) -> bytes:
    if len(body) < 4:
        return body
    start = rng.randrange(len(body) - 1)
    part = bytearray(body[start : start + 64])
    rng.shuffle(part)
    return body[:start] + bytes(part) + body[start + 64 :]


_BODY: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip,
    _not_finite,
    _shuffle_part,
    lambda rng, body: body[: rng.randint(0, len(body))],
    lambda rng, body: body + rng.randbytes(rng.choice((1, 8, 1000))),
    lambda rng, body: rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 5000))),
)


def _random_text(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("0123456789abcdef/;= ") for _ in range(length)).strip() or "x"
