"""`hanabi-grpo doctor`, `serve` and `train`: their options; what they do is in the modules of their names."""

from typing import Annotated

import typer

_PrintConfig = Annotated[bool, typer.Option("--print-config", help="Show every setting and its origin; start nothing.")]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check everything and show what would start; start nothing. Exits with 1 when a check fails."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object, with one of the other two.")]


def serve(
    ctx: typer.Context, print_config: _PrintConfig = False, dry_run: _DryRun = False, as_json: _Json = False
) -> None:
    """Start the rollout server (terminal 1). Further options go to vLLM, see docs/pass-through.md.

    Environment: MODEL, PORT, HANABI_HOST, HANABI_API_KEY, VLLM_TENSOR_PARALLEL_SIZE, HANABI_MAX_MODEL_LEN,
    HANABI_DTYPE, CUDA_VISIBLE_DEVICES and all others that --print-config shows.
    """
    if print_config or dry_run or as_json:
        from hanabi_grpo.commands.dry_run import look

        look("server", ctx.args, print_config=print_config, dry_run=dry_run, as_json=as_json)
        return
    from hanabi_grpo.commands.serve import serve as run

    run(ctx.args)


def train(
    ctx: typer.Context, print_config: _PrintConfig = False, dry_run: _DryRun = False, as_json: _Json = False
) -> None:
    """Wait for the server, then train (terminal 2). Further options go to ms-swift, see docs/pass-through.md.

    Environment: MODEL, DATASET, OUTPUT_DIR, RESUME, MAX_STEPS, VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_API_KEY,
    NPROC_PER_NODE, DEEPSPEED, REPORT_TO, CUDA_VISIBLE_DEVICES and all others that --print-config shows.
    """
    if print_config or dry_run or as_json:
        from hanabi_grpo.commands.dry_run import look

        look("trainer", ctx.args, print_config=print_config, dry_run=dry_run, as_json=as_json)
        return
    from hanabi_grpo.commands.train import train as run

    run(ctx.args)


def doctor(
    role: Annotated[str, typer.Option(help="The terminal that this shell is for: server, trainer or both.")] = "both",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Look at everything that both terminals need, and say what to do; exits with 1 when something fails.

    Environment: every variable that `hanabi-grpo settings` shows, and CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS,
    HTTP_PROXY, ALL_PROXY, NO_PROXY, HF_HUB_OFFLINE, WANDB_API_KEY, WANDB_BASE_URL, NETRC and VLLM_CPU_KVCACHE_SPACE.
    """
    from hanabi_grpo.commands.doctor.command import doctor as run

    run(role, as_json=as_json)
