"""The page on which a person plays: a single HTML file that includes its style and script.

It is the same for every request. The content security policy has the hashes of its style and
script, so that no other script can run, and allows requests to this server only.
"""

import base64
import functools
import hashlib
from importlib import resources

from fastapi.responses import Response

_FOLDER = resources.files("hanabi_grpo.server").joinpath("page")
_STYLE_MARK = "/* style */"
_SCRIPT_MARK = "/* script */"


def page_response() -> Response:
    """Return the page."""
    page, policy = _page()
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


@functools.cache
def _page() -> tuple[bytes, str]:
    """Return the page and its content security policy."""
    style = _read("play.css")
    script = _read("play.js")
    page = _read("play.html").replace(_STYLE_MARK, style).replace(_SCRIPT_MARK, script)
    directives = (
        "default-src 'none'",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(script)}'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return page.encode(), "; ".join(directives)


def _hash(code: str) -> str:
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return f"sha256-{digest}"


def _read(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")
