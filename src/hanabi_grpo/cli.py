"""The command line: `hanabi-grpo COMMAND`. Each command imports what it needs when it is called."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hanabi_grpo import __version__
from hanabi_grpo.commands.chart import chart
from hanabi_grpo.commands.compare import compare
from hanabi_grpo.commands.export import export
from hanabi_grpo.commands.games_group import games
from hanabi_grpo.commands.report_page import report_page
from hanabi_grpo.commands.settings import settings
from hanabi_grpo.commands.tiny_model import tiny_model
from hanabi_grpo.commands.upload import upload
from hanabi_grpo.commands.warm_start import warm_start
from hanabi_grpo.commands.watch import watch
from hanabi_grpo.errors import HanabiGrpoError

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_PrintConfig = Annotated[bool, typer.Option("--print-config", help="Show every setting and its origin; start nothing.")]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check everything and show what would start; start nothing. Exits with 1 when a check fails."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
_LookJson = Annotated[bool, typer.Option("--json", help="One JSON object, with one of the other two.")]


class Group(TyperGroup):
    """Turns the package's own errors into a message and exit code 2; any other error keeps its traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answer --version, and take -h for --help."""
        # Here and not as an option of each command: also those that pass options on must not start anything.
        if "--version" in args:
            print(f"hanabi-grpo {__version__}")
            raise typer.Exit
        # Only as a word of its own: vLLM has options such as -dph.
        return super().parse_args(ctx, ["--help" if word == "-h" else word for word in args])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error of the package ends it with exit code 2."""
        try:
            return super().invoke(ctx)
        except HanabiGrpoError as error:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, emoji=False)
            console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    # A rich traceback prints local variables, and with them keys and tokens.
    pretty_exceptions_enable=False,
    help="Train teams of language models to play Hanabi. Settings are environment variables: hanabi-grpo settings. "
    "-h and --version work behind every command.",
)


@app.command(context_settings=_PASS_ON)
def serve(
    ctx: typer.Context, print_config: _PrintConfig = False, dry_run: _DryRun = False, as_json: _LookJson = False
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


@app.command(context_settings=_PASS_ON)
def train(
    ctx: typer.Context, print_config: _PrintConfig = False, dry_run: _DryRun = False, as_json: _LookJson = False
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


@app.command()
def evaluate(
    line_ups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LINE_UP]...",
            help="Who plays, one word for every seat or one each with commas: served, player_1@latest, base, a "
            "checkpoint's or run's folder, wandb:team/project/name:alias, hf:org/repo, or a script such as iggi. "
            "served when left out.",
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="The same as one LINE_UP.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The same as one LINE_UP that is this folder.")] = None,
    deals: Annotated[int, typer.Option(help="Number of held-out deals, each played in every seat order.")] = 1000,
    suite: Annotated[str, typer.Option(help="Stream of held-out deals.")] = "eval",
    preset: Annotated[str | None, typer.Option(help="Board; as in training when left out.")] = None,
    players: Annotated[int | None, typer.Option(help="Players; as in training when left out.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")] = None,
    label: Annotated[str | None, typer.Option(help="Name in tables; what was typed when left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file of the result.")] = None,
    as_json: _Json = False,
    no_rotate: Annotated[bool, typer.Option("--no-rotate", help="Only the seat order that was typed.")] = False,
    own_server: Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command.")] = False,
) -> None:
    """Play held-out deals, beside random and blind play of the same deals; interrupted, the same command goes on.

    A result of a run's checkpoint, or of what its trainer serves, is also left in evaluations/ of the run folder.

    Environment: VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_API_KEY and HANABI_SERVER_TIMEOUT find the server, or MODEL
    and the others of serve with --own-server; DATASET, HANABI_PRESET and HANABI_PLAYERS choose the board; TEMPERATURE
    and MAX_COMPLETION_LENGTH hold for replies, WANDB_ENTITY, WANDB_MODE, OUTPUT_DIR, HF_HOME for wandb: and hf: words.
    """
    from hanabi_grpo.commands.evaluate import evaluate as run

    run(
        line_ups or [],
        policy=policy,
        checkpoint=checkpoint,
        deals=deals,
        suite=suite,
        preset=preset,
        players=players,
        temperature=temperature,
        label=label,
        out=out,
        as_json=as_json,
        rotate=not no_rotate,
        own=own_server,
    )


@app.command()
def collect(
    line_up: Annotated[str, typer.Argument(help="Who plays, as in evaluate.")],
    out: Annotated[Path, typer.Option(help="Folder of the games; an interrupted one is gone on with.")],
    deals: Annotated[int, typer.Option(help="Number of deals.")] = 100,
    games: Annotated[int, typer.Option(help="Games of each deal.")] = 1,
    suite: Annotated[str, typer.Option(help="Stream of deals.")] = "collect",
    preset: Annotated[str | None, typer.Option(help="Board; as in training when left out.")] = None,
    players: Annotated[int | None, typer.Option(help="Players; as in training when left out.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")] = None,
    prompts: Annotated[bool, typer.Option(help="Also what scripts would have been shown.")] = True,
    no_rotate: Annotated[bool, typer.Option("--no-rotate", help="Every deal in the seat order typed.")] = False,
    own_server: Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command.")] = False,
) -> None:
    """Record games of a line-up as JSON lines, without training; interrupted, the same command goes on.

    Environment: HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of evaluate.
    """
    from hanabi_grpo.commands.collect import collect as run

    run(
        line_up,
        out=out,
        deals=deals,
        games=games,
        suite=suite,
        preset=preset,
        players=players,
        temperature=temperature,
        prompts=prompts,
        rotate=not no_rotate,
        own=own_server,
    )


@app.command("cross-play")
def cross_play(
    entries: Annotated[
        list[str],
        typer.Argument(
            metavar="ENTRY ENTRY...",
            help="One word each: a script such as iggi, served, base, player_1@latest, a run's or checkpoint's folder, "
            "wandb:team/project/name:alias, hf:org/repo, or one of these and an adapter, FOLDER:player_1. "
            "NAME=WORD names it.",
        ),
    ],
    preset: Annotated[str | None, typer.Option(help="Board; as in training when left out.")] = None,
    players: Annotated[int | None, typer.Option(help="Players; as in training when left out.")] = None,
    deals: Annotated[int, typer.Option(help="Number of held-out deals that every pair plays.")] = 1000,
    suite: Annotated[str, typer.Option(help="Stream of held-out deals.")] = "eval",
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; an interrupted one is gone on with.")] = None,
    as_json: _Json = False,
    own_server: Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command.")] = False,
) -> None:
    """Play every entry with every other in both orders: heat map, self-play minus cross-play, worst partners.

    Environment: HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of evaluate.
    """
    from hanabi_grpo.commands.cross_play import cross_play as run

    run(
        entries,
        preset=preset,
        players=players,
        deals=deals,
        suite=suite,
        temperature=temperature,
        out=out,
        as_json=as_json,
        own=own_server,
    )


@app.command()
def report(
    before: Annotated[Path, typer.Option(help="Evaluation of the base model.")],
    after: Annotated[Path, typer.Option(help="Evaluation of the trained model, on the same deals.")],
    run: Annotated[Path | None, typer.Option(help="Run folder, for the learning curve.")] = None,
    out_png: Annotated[Path | None, typer.Option(help="Picture; beside --after when left out.")] = None,
    out_markdown: Annotated[Path | None, typer.Option(help="Table; beside --after when left out.")] = None,
    min_rise: Annotated[float | None, typer.Option(help="Exit with 1 below this rise of the mean score.")] = None,
    min_sigma: Annotated[float | None, typer.Option(help="Exit with 1 below this rise in standard errors.")] = None,
    as_json: _Json = False,
) -> None:
    """Show what a training changed: a table and the learning curve."""
    from hanabi_grpo.commands.report import report as run_report

    run_report(
        before,
        after,
        run=run,
        out_png=out_png,
        out_markdown=out_markdown,
        min_rise=min_rise,
        min_sigma=min_sigma,
        as_json=as_json,
    )


@app.command()
def dynamics(
    run: Annotated[Path, typer.Argument(help="Run folder; of a run that is going on too.")],
    out: Annotated[Path | None, typer.Option(help="Picture; dynamics.png in the run folder when left out.")] = None,
    as_json: _Json = False,
) -> None:
    """Show how a run's play changed and which collapse alarms were raised: a table and a picture."""
    from hanabi_grpo.commands.dynamics import dynamics as show

    show(run, out=out, as_json=as_json)


@app.command()
def dataset(
    preset: Annotated[list[str], typer.Option(help="Board, e.g. laptop; may be repeated, with shares: laptop=3.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    players: Annotated[int | None, typer.Option(help="Players; HANABI_PLAYERS when left out.")] = None,
    observation: Annotated[str | None, typer.Option(help="compact or full; HANABI_OBSERVATION when left out.")] = None,
    suite: Annotated[str, typer.Option(help="Stream of deals.")] = "train",
    num_deals: Annotated[int, typer.Option(help="Length of a fixed list of deals; 0: fresh ones for ever.")] = 0,
    from_step: Annotated[int | None, typer.Option(help="First step of these rows; the run's when left out.")] = None,
    until_step: Annotated[int | None, typer.Option(help="Last step of these rows; the run's when left out.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Put the rows behind those of the file.")] = False,
) -> None:
    """Write a dataset: a row for each board, with shares and steps; --add puts more rows into one."""
    from hanabi_grpo.commands.dataset import dataset as run

    line = run(
        preset,
        out=out,
        add=add,
        players=players,
        observation=observation,
        suite=suite,
        num_deals=num_deals,
        from_step=from_step,
        until_step=until_step,
    )
    print(f"wrote {out} ({line}); train on it with DATASET={out}")


@app.command()
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


@app.command()
def conventions(
    line_ups: Annotated[list[str] | None, typer.Argument(metavar="[LINE_UP]...", help="Who plays, as typed.")] = None,
    games: Annotated[list[Path] | None, typer.Option(help="Recorded games: a run, a folder or a file.")] = None,
    deals: Annotated[int, typer.Option(help="Deals that each line-up plays.")] = 1000,
    suite: Annotated[str, typer.Option(help="Stream of deals.")] = "eval",
    preset: Annotated[str | None, typer.Option(help="Board; as in training when left out.")] = None,
    players: Annotated[int | None, typer.Option(help="Players; as in training when left out.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="The page, *.html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures on standard output too.")] = False,
    own: Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command alone.")] = False,
) -> None:
    """Show what moves mean to a team: P(next move | my move), what hints tell, information per play; one page.

    Environment: HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of evaluate.
    """
    from hanabi_grpo.commands.conventions import conventions as run

    run(
        line_ups or [],
        games=games or [],
        deals=deals,
        suite=suite,
        preset=preset,
        players=players,
        temperature=temperature,
        out=out,
        as_json=as_json,
        own=own,
    )


# A name is left out, so they are commands beside the others.
app.add_typer(games)


app.command()(compare)
app.command()(watch)
app.command()(chart)
app.command()(settings)
app.command("report-page")(report_page)
app.command("tiny-model")(tiny_model)
app.command()(export)
app.command()(upload)
app.command("warm-start")(warm_start)

if __name__ == "__main__":
    app()
