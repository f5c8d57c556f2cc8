"""`hanabi-grpo serve`: the rollout server.

This process holds the port, and starts and restarts a child process that runs the engine.
"""

import typer

from hanabi_grpo.commands.console import announce, make_console, sayer
from hanabi_grpo.commands.doctor.nvidia_smi import list_gpus
from hanabi_grpo.commands.dry_run import AsJson, AsYaml, DryRun, PrintConfig, show_start
from hanabi_grpo.settings import LoadedSettings, Settings
from hanabi_grpo.settings.gpus import check_enough_gpus
from hanabi_grpo.settings.names import check_names
from hanabi_grpo.settings.pass_through import check_options
from hanabi_grpo.settings.shell import TRAIN_SCRIPT, shell_assignments, start_words

_REACHED_AT_DEFAULT = ("localhost", "0.0.0.0", "::")
"""Values of HANABI_HOST with which a local trainer reaches the server by default."""


def serve(
    ctx: typer.Context,
    print_config: PrintConfig = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> None:
    """Start the rollout server (terminal 1).

    Other options are passed through to vLLM; see docs/pass-through.md.

    Environment: MODEL, PORT, HANABI_HOST, HANABI_API_KEY, VLLM_TENSOR_PARALLEL_SIZE,
    HANABI_MAX_MODEL_LEN, HANABI_DTYPE, CUDA_VISIBLE_DEVICES and all others that --print-config
    shows.
    """
    check_names()
    check_options("server", ctx.args)
    if print_config or dry_run or as_json or as_yaml:
        show_start(
            "server",
            ctx.args,
            print_config=print_config,
            dry_run=dry_run,
            as_json=as_json,
            as_yaml=as_yaml,
        )
        return
    console = make_console()
    loaded = announce(console, "server")
    check_enough_gpus(loaded, "server", count=lambda: len(list_gpus()[0]))
    sayer(console)(f"To train, run in another terminal:\n    {trainer_command(loaded)}")
    # Imported here: the offline switches must be set before a hub library reads them.
    from hanabi_grpo.server.main import serve as run_server

    run_server(loaded.settings, ctx.args)


def trainer_command(loaded: LoadedSettings) -> str:
    """Return the command that starts a trainer for this server in the other terminal."""
    settings = loaded.settings
    default = Settings()
    assignments = shell_assignments(loaded, both=True)
    if settings.port != default.vllm_server_port:
        assignments.append(f"VLLM_SERVER_PORT={settings.port}")
    if settings.host not in (*_REACHED_AT_DEFAULT, default.vllm_server_host):
        assignments.append(f"VLLM_SERVER_HOST={settings.host}")
    return " ".join([*assignments, *start_words(TRAIN_SCRIPT, "train")])
