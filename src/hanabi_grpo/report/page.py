"""Self-contained pages: one file, readable without network, server or script.

Every text goes through a template, which escapes it. The content security policy names the hashes
of the page's own style and script, so that nothing else in it can run or fetch anything; therefore
colors are classes, and pictures are data: addresses.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hanabi_grpo.report.own_files import Mark, check_replaceable
from hanabi_grpo.runs.run_folder import save_text
from hanabi_grpo.texts import visible

_PACKAGE = "hanabi_grpo.report"
_STYLE = "page.css"
_INLINE_CODE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_NOTHING = "'none'"
"""Source list of a content security policy that allows nothing."""


def render(template: str, *, script: str = "", frame: str = "", **values: Any) -> str:
    """Return the page of a template.

    Args:
        template: Name of the template.
        script: Name of the page's script in templates/; "": none.
        frame: A whole page of this family, shown in a frame of this one; "": none.
        **values: Values for the template.
    """
    environment = templates(autoescape=True)
    environment.policies["json.dumps_function"] = _dump_visible
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": True}
    style = _read(_STYLE)
    code = _read(script) if script else ""
    return environment.get_template(template).render(
        policy=_security_policy(style, code, frame),
        style=style,
        script=code,
        frame=_frame_address(frame),
        **values,
    )


def _security_policy(style: str, code: str, frame: str) -> str:
    """Return the content security policy of a page.

    Args:
        style: Its style.
        code: Its script; "": none.
        frame: The page in its frame, whose style and script are allowed too; "": none.
    """
    styles = [style]
    scripts = [code] if code else []
    for kind, text in _INLINE_CODE.findall(frame):
        if kind == "style":
            styles.append(text)
        else:
            scripts.append(text)
    directives = (
        f"default-src {_NOTHING}",
        f"style-src {_hashes(styles)}",
        f"script-src {_hashes(scripts)}",
        "img-src data:",
        f"frame-src {'data:' if frame else _NOTHING}",
        f"base-uri {_NOTHING}",
        f"form-action {_NOTHING}",
    )
    return "; ".join(directives)


def _hashes(codes: Sequence[str]) -> str:
    """Return the source list that allows exactly these inline styles or scripts."""
    sources = []
    for code in dict.fromkeys(codes):
        digest_bytes = hashlib.sha256(code.encode()).digest()
        digest = base64.b64encode(digest_bytes).decode()
        sources.append(f"'sha256-{digest}'")
    return " ".join(sources) or _NOTHING


def _frame_address(frame: str) -> str:
    """Return the address of the page in a frame.

    A frame with a data: address may keep its state in its own address, one with srcdoc may not.
    """
    if not frame:
        return ""
    return "data:text/html;charset=utf-8;base64," + base64.b64encode(frame.encode()).decode()


def templates(*, autoescape: bool) -> Environment:
    """Return the templates of this package; a missing value is an error.

    They write texts without invisible characters.
    """
    return Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=autoescape,
        finalize=_visible_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _visible_value(value: Any) -> Any:
    """Return what a template writes for a value; markup of the templates themselves stays."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


def _dump_visible(data: Any, **options: Any) -> str:
    """Return data as JSON for a page's script, which writes its texts into the page."""
    return json.dumps(_visible_data(data), **options)


def _visible_data(data: Any) -> Any:
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, Mapping):
        return {_visible_data(key): _visible_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_visible_data(item) for item in data]
    return data


def write_page(path: Path, page: str, option: str) -> str:
    """Write a page and return a line that reports it.

    Args:
        path: The file.
        page: Its content.
        option: The option that named the file, for the error message.

    Raises:
        SettingsError: The file cannot be written, or is not such a page.
    """
    check_replaceable(path, Mark.PAGE, option)
    save_text(path, page, option)
    kilobytes = path.stat().st_size / 1000
    return f"wrote {path} ({kilobytes:.0f} kB); open it in a browser."


def _read(name: str) -> str:
    path = resources.files(_PACKAGE).joinpath("templates", name)
    return path.read_text(encoding="utf-8")
