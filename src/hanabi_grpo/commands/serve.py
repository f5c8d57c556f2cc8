"""`hanabi-grpo serve`: the rollout server, in this process."""

from hanabi_grpo.commands.console import SECTIONS, announce, make_console, trainer_command
from hanabi_grpo.settings.misspelt import check_names
from hanabi_grpo.settings.pass_through import check_options


def serve(extra_args: list[str]) -> None:
    """Print the settings and the other terminal's command, then serve until stopped.

    Args:
        extra_args: vLLM's own options.
    """
    check_names()
    check_options("server", extra_args)
    console = make_console()
    loaded = announce(console, SECTIONS["server"], "server")
    console.print(
        f"For training, type in another terminal:\n    {trainer_command(loaded)}", soft_wrap=True, markup=False
    )
    # Imported here: the offline switches must be set before a hub library reads them.
    from hanabi_grpo.server.main import serve as run_server

    run_server(loaded.settings, extra_args)
