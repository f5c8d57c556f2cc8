"""Pages of one file that need nothing else: no network, no server, and to be read no script either.

Every text goes through a template, which escapes it. The content security policy names the hashes
of the page's own style and script, so that nothing else in it can run or fetch anything; therefore
colours are classes, and pictures are data: addresses."""

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hanabi_grpo.runs.run_folder import save_text

_CODE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def render(template: str, *, script: str = "", frame: str = "", **values: Any) -> str:
    """Return the page of a template, with these values for it.

    `script` is the name of the page's script in templates/; `frame` a whole page of this family
    that stands in a frame of this one."""
    environment = templates(autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": True}
    style, code = _read("page.css"), _read(script) if script else ""
    inner = _CODE.findall(frame)
    # A frame from a data: address may keep its place in its own address, one from srcdoc may not.
    address = (
        "data:text/html;charset=utf-8;base64," + base64.b64encode(frame.encode()).decode()
        if frame
        else ""
    )
    policy = [
        "default-src 'none'",
        _sources("style", [style, *(text for kind, text in inner if kind == "style")]),
        _sources(
            "script",
            [*([code] if code else []), *(text for kind, text in inner if kind == "script")],
        ),
        "img-src data:",
        f"frame-src {'data:' if frame else chr(39) + 'none' + chr(39)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    found = environment.get_template(template)
    return found.render(policy="; ".join(policy), style=style, script=code, frame=address, **values)


def templates(*, autoescape: bool) -> Environment:
    """Return the templates of this room; a value that one lacks is an error."""
    loader, strict = PackageLoader("hanabi_grpo.report"), StrictUndefined
    return Environment(
        loader=loader, autoescape=autoescape, undefined=strict, trim_blocks=True, lstrip_blocks=True
    )


def write_page(path: Path, page: str, option: str) -> str:
    """Write a page and return a line that says so; raises as `save_text`."""
    save_text(path, page, option)
    return f"wrote {path} ({path.stat().st_size / 1000:.0f} kB); open it in a browser."


def _read(name: str) -> str:
    return (
        resources.files("hanabi_grpo.report")
        .joinpath("templates", name)
        .read_text(encoding="utf-8")
    )


def _sources(kind: str, codes: list[str]) -> str:
    hashes = [
        "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        for code in codes
    ]
    return f"{kind}-src " + (" ".join(f"'{one}'" for one in dict.fromkeys(hashes)) or "'none'")
