"""W&B and TensorBoard, as far as REPORT_TO asks for them. Nothing is sent and no key is printed."""

import netrc
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.software import installed_version


def tracker_checks(context: Context) -> Iterator[Check]:
    """Tell whether each tracker that is asked for can start."""
    settings, environ = context.settings, context.environ
    if "tensorboard" in settings.report_to:
        if version := installed_version("tensorboard"):
            yield ok("tensorboard", version)
        else:
            yield fail("tensorboard", "REPORT_TO names it, but it is not installed", "export REPORT_TO=none")
    if "wandb" not in settings.report_to:
        yield skip("wandb", f"REPORT_TO={','.join(settings.report_to)} does not ask for it")
        return
    if settings.wandb_mode != "online":
        yield ok("wandb", f"WANDB_MODE={settings.wandb_mode}: needs no key and no network")
        return
    host = urlsplit(environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    if environ.get("WANDB_API_KEY"):
        yield ok("wandb", f"online at {host}, key from WANDB_API_KEY")
        return
    path = Path(environ.get("NETRC") or Path(environ.get("HOME") or Path.home()) / ".netrc").expanduser()
    why = f"no key in WANDB_API_KEY and none for {host} in {path}"
    try:
        entry = netrc.netrc(path).hosts.get(host) if path.exists() else None
        if entry and entry[2]:
            yield ok("wandb", f"online at {host}, key from {path}")
            return
    except (OSError, UnicodeDecodeError) as error:
        why = f"{path} cannot be read ({error})"
    except netrc.NetrcParseError as error:
        # Its text may quote a line of the file, and with it a key.
        why = f"{path} cannot be read (line {error.lineno} is not in netrc's format)"
    ways = ".venv/bin/wandb login\nexport WANDB_MODE=offline"
    yield fail("wandb", f"REPORT_TO=wandb with WANDB_MODE=online, but {why}", ways)
