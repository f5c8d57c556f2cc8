"""W&B and TensorBoard, as far as REPORT_TO asks for them. Nothing is sent and no key is printed."""

import netrc
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.software import installed_version

_SERVICE = "https://api.wandb.ai"


def tracker_checks(context: Context) -> Iterator[Check]:
    """Tell whether each tracker that is asked for can start."""
    settings = context.settings
    if "tensorboard" in settings.report_to:
        version = installed_version("tensorboard")
        if version:
            yield ok("tensorboard", version)
        else:
            yield fail("tensorboard", "REPORT_TO names it, but it is not installed", "export REPORT_TO=none")
    if "wandb" not in settings.report_to:
        yield skip("wandb", f"REPORT_TO={','.join(settings.report_to)} does not ask for it")
        return
    if settings.wandb_mode != "online":
        yield ok("wandb", f"WANDB_MODE={settings.wandb_mode}: needs no key and no network")
        return
    host = urlsplit(context.environ.get("WANDB_BASE_URL") or _SERVICE).hostname or ""
    if context.environ.get("WANDB_API_KEY"):
        yield ok("wandb", f"online at {host}, key from WANDB_API_KEY")
        return
    found, path = netrc_has(host, context.environ)
    if found is True:
        yield ok("wandb", f"online at {host}, key from {path}")
    else:
        why = f"{path} cannot be read ({found})" if found else f"no key in WANDB_API_KEY and none for {host} in {path}"
        ways = ".venv/bin/wandb login\nexport WANDB_MODE=offline"
        yield fail("wandb", f"REPORT_TO=wandb with WANDB_MODE=online, but {why}", ways)


def netrc_has(host: str, environ: Mapping[str, str]) -> tuple[bool | str, Path]:
    """Return (whether the netrc file has a password for a host, or the reason that it cannot be read; its path)."""
    home = Path(environ.get("HOME") or Path.home())
    path = Path(environ.get("NETRC") or home / ".netrc").expanduser()
    try:
        entry = netrc.netrc(path).hosts.get(host) if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        return str(error), path
    except netrc.NetrcParseError as error:
        # Its text may quote a line of the file, and with it a key.
        return f"line {error.lineno} is not in netrc's format", path
    return bool(entry and entry[2]), path
