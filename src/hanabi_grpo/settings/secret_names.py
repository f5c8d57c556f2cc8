"""Which environment variables hold secrets, so that processes of other software start without them.

Our own are identified by their type, those of other software by their usual names (`HF_TOKEN`,
`OPENAI_API_KEY`, `AWS_SECRET_ACCESS_KEY`, `PGPASSWORD`), or by their value, an address with a user
and a password. A list of allowed variables would be stricter, but would omit what a cluster needs
for its network, certificates and libraries.
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
"""Words that mark a name as a secret; underscores separate words."""
_PARTS = ("PASSWORD", "SECRET", "APIKEY")
"""Parts of words that do the same, e.g. in PGPASSWORD."""
_SUFFIXES = ("_PWD", "TOKEN")
"""Ends of names that do the same; PWD alone is a folder."""
_ADDRESS_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@", re.IGNORECASE)


def without_secrets(environ: Mapping[str, str], *, keep: tuple[str, ...] = ()) -> dict[str, str]:
    """Return an environment without secrets.

    Proxies stay, even with a password: they may be the only way to the network.

    Args:
        environ: The environment.
        keep: Prefixes of names that always stay, e.g. "WANDB_".

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
