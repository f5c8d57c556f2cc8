"""Which environment variables hold secrets, so that other software's processes start without them.

Ours are known by their type, those of other software by their names, as the field writes them
(`HF_TOKEN`, `OPENAI_API_KEY`, `AWS_SECRET_ACCESS_KEY`, `PGPASSWORD`), or by their value, an address
with a user and a password. A list of what is allowed would be tighter, but would leave out what a
cluster needs for its network, certificates and libraries.
"""

import re
from collections.abc import Mapping

from hanabi_grpo.settings.model import Settings
from hanabi_grpo.settings.variables import variables_of

_WORDS = frozenset(
    {
        "APIKEY",
        "AUTH",
        "AUTHORIZATION",
        "COOKIE",
        "CREDENTIAL",
        "CREDENTIALS",
        "JWT",
        "KEY",
        "KEYS",
        "PASS",
        "PASSPHRASE",
        "PASSWD",
        "PAT",
        "SECRET",
        "SECRETS",
        "TOKEN",
    }
)
"""Words of names that stand for a secret; words are what underscores separate."""
_PARTS = ("PASSWORD", "SECRET", "APIKEY")
"""The same within a word, e.g. in PGPASSWORD."""
_SUFFIXES = ("_PWD", "TOKEN")
"""The same at the end of a name; PWD alone is a folder."""
_ADDRESS_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@", re.IGNORECASE)


def without_secrets(environ: Mapping[str, str], *, keep: tuple[str, ...] = ()) -> dict[str, str]:
    """Return an environment without secrets.

    Proxies stay, also with a password: without them nothing behind them is reached.

    Args:
        environ: The environment.
        keep: Beginnings of names that stay whatever they hold, e.g. "WANDB_".

    Example:
        without_secrets({"HOME": "/root", "HF_TOKEN": "hf_x"}) == {"HOME": "/root"}
    """
    is_secret_of_name = {}
    for variable in variables_of(Settings):
        is_secret_of_name[variable.env] = variable.secret
    kept = {}
    for name, value in environ.items():
        is_secret = is_secret_of_name.get(name)
        if is_secret is None:
            is_secret = not name.startswith(keep) and _looks_secret(name, value)
        if not is_secret:
            kept[name] = value
    return kept


def _looks_secret(name: str, value: str) -> bool:
    """Tell whether a variable of other software seems to hold a secret."""
    capitals = name.upper()
    if any(word in _WORDS for word in capitals.split("_")):
        return True
    if any(part in capitals for part in _PARTS) or capitals.endswith(_SUFFIXES):
        return True
    is_proxy = capitals.endswith("_PROXY")
    return not is_proxy and _ADDRESS_WITH_PASSWORD.search(value) is not None
