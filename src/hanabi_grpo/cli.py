"""The command line: `hanabi-grpo COMMAND`. Each command imports what it needs when it is called."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hanabi_grpo.errors import HanabiGrpoError

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


class _Group(TyperGroup):
    """Turns the package's own errors into a message and exit code 2; any other error keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HanabiGrpoError as error:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, emoji=False)
            console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    # A rich traceback prints local variables, and with them keys and tokens.
    pretty_exceptions_enable=False,
    help="Train teams of language models to play Hanabi. Settings are environment variables: hanabi-grpo settings",
)


@app.command(context_settings=_PASS_ON)
def serve(ctx: typer.Context) -> None:
    """Start the rollout server (terminal 1). Further options go to vLLM."""
    from hanabi_grpo.commands.serve import serve as run

    run(ctx.args)


@app.command(context_settings=_PASS_ON)
def train(ctx: typer.Context) -> None:
    """Wait for the server, then train (terminal 2). Further options go to ms-swift."""
    from hanabi_grpo.commands.train import train as run

    run(ctx.args)


@app.command()
def evaluate(
    line_ups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LINE_UP]...",
            help="Who plays, one word for every seat or one each with commas: served, player_1@latest, base, a "
            "checkpoint's or run's folder, or a script such as iggi. served when left out.",
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    no_rotate: Annotated[bool, typer.Option("--no-rotate", help="Only the seat order that was typed.")] = False,
    own_server: Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command.")] = False,
) -> None:
    """Play held-out deals, beside random and blind play of the same deals; interrupted, the same command goes on."""
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
    """Record games of a line-up as JSON lines, without training; interrupted, the same command goes on."""
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
            "or that and an adapter, FOLDER:player_1. NAME=WORD names it.",
        ),
    ],
    preset: Annotated[str | None, typer.Option(help="Board; as in training when left out.")] = None,
    players: Annotated[int | None, typer.Option(help="Players; as in training when left out.")] = None,
    deals: Annotated[int, typer.Option(help="Number of held-out deals that every pair plays.")] = 1000,
    suite: Annotated[str, typer.Option(help="Stream of held-out deals.")] = "eval",
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; an interrupted one is gone on with.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    own_server: Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command.")] = False,
) -> None:
    """Play every entry with every other in both orders: heat map, self-play minus cross-play, worst partners."""
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


@app.command("tiny-model")
def tiny_model(
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("outputs/tiny-model"),
    preset: Annotated[str | None, typer.Option(help="Board; HANABI_PRESET or laptop when left out.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; SEED when left out.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of the warm start.")] = 900,
    force: Annotated[bool, typer.Option("--force", help="Make it even if the folder is complete.")] = False,
) -> None:
    """Make the tiny model that trains on a laptop; at once when it is there already."""
    from hanabi_grpo.commands.tiny_model import tiny_model as run

    run(out, preset=preset, seed=seed, steps=steps, force=force)


@app.command()
def report(
    before: Annotated[Path, typer.Option(help="Evaluation of the base model.")],
    after: Annotated[Path, typer.Option(help="Evaluation of the trained model, on the same deals.")],
    run: Annotated[Path | None, typer.Option(help="Run folder, for the learning curve.")] = None,
    out_png: Annotated[Path | None, typer.Option(help="Picture; beside --after when left out.")] = None,
    out_markdown: Annotated[Path | None, typer.Option(help="Table; beside --after when left out.")] = None,
    min_rise: Annotated[float | None, typer.Option(help="Exit with 1 below this rise of the mean score.")] = None,
    min_sigma: Annotated[float | None, typer.Option(help="Exit with 1 below this rise in standard errors.")] = None,
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
    )


@app.command()
def settings(
    as_json: Annotated[bool, typer.Option("--json", help="As settings.json holds them.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The README's table of all variables.")] = False,
) -> None:
    """Show every setting, its value, and where that came from."""
    import json

    from hanabi_grpo.commands.console import make_console
    from hanabi_grpo.settings import environment_markdown, load_settings, settings_json, settings_table

    if as_markdown:
        sys.stdout.write(environment_markdown())
    elif as_json:
        sys.stdout.write(json.dumps(settings_json(load_settings()), indent=2, ensure_ascii=False) + "\n")
    else:
        make_console().print(settings_table(load_settings()))


@app.command()
def dataset(
    preset: Annotated[str, typer.Option(help="Board, e.g. laptop or full.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    players: Annotated[int | None, typer.Option(help="Players; HANABI_PLAYERS when left out.")] = None,
    suite: Annotated[str, typer.Option(help="Stream of deals.")] = "train",
    num_deals: Annotated[int, typer.Option(help="Length of a fixed list of deals; 0: fresh ones for ever.")] = 0,
) -> None:
    """Write a dataset of one row."""
    from hanabi_grpo.commands.dataset import dataset_row, write_dataset

    write_dataset(out, dataset_row(preset, players=players, suite=suite, num_deals=num_deals))
    print(f"wrote {out}; train on it with DATASET={out}")


@app.command()
def doctor(
    role: Annotated[str, typer.Option(help="The terminal that this shell is for: server, trainer or both.")] = "both",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Look at everything that both terminals need, and say what to do; exits with 1 when something fails."""
    from hanabi_grpo.commands.doctor import doctor as run

    run(role, as_json=as_json)


@app.command()
def view(
    path: Annotated[Path, typer.Argument(help="Run folder, folder of games, or a *.jsonl file of games.")],
    worst: Annotated[int | None, typer.Option(help="This many games of the lowest score.")] = None,
    best: Annotated[int | None, typer.Option(help="This many games of the highest score.")] = None,
    illegal: Annotated[bool, typer.Option("--illegal", help="Only games with a reply that was no legal move.")] = False,
    player: Annotated[str | None, typer.Option(help="Only turns of this player, e.g. player_1.")] = None,
    game: Annotated[int | None, typer.Option(help="Only the game of this number.")] = None,
    step: Annotated[int | None, typer.Option(help="Recorded step of a run; the last when left out.")] = None,
    prompts: Annotated[bool, typer.Option("--prompts", help="Also what the players were shown.")] = False,
    hands: Annotated[bool, typer.Option("--hands", help="Also the cards that the mover could not see.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one page for a browser instead.")] = None,
) -> None:
    """Watch recorded games: what each player saw, thought, said and did, and what it earned."""
    from hanabi_grpo.commands.view import view as run

    run(
        path,
        worst=worst,
        best=best,
        illegal=illegal,
        player=player,
        game=game,
        step=step,
        prompts=prompts,
        hands=hands,
        html=html,
    )


@app.command()
def play(
    partners: Annotated[
        str | None,
        typer.Argument(
            help="One word for every partner (iggi), one for each (iggi,piers), or with human in your seat one for "
            "every player (served,human). A word is a script, served, player_1@latest, base, or a checkpoint's folder; "
            "iggi when left out.",
            show_default=False,
        ),
    ] = None,
    seat: Annotated[str | None, typer.Option(help="Your seat; player_0 when left out.")] = None,
    preset: Annotated[str | None, typer.Option(help="Board; full when left out, with models as in training.")] = None,
    players: Annotated[int | None, typer.Option(help="Players, you included.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names the deal; a random one when left out.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of models, 0 for greedy; else TEMPERATURE.")] = None,
    out: Annotated[Path | None, typer.Option(help="New file of the game; in outputs/played/ when left out.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an unfinished game, *.unfinished.json.")] = None,
    own: Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this game.")] = False,
) -> None:
    """Play a game yourself, with scripts or models as partners; ? at the prompt lists your moves."""
    from hanabi_grpo.commands.play import play as run

    code = run(
        partners,
        seat=seat,
        preset=preset,
        players=players,
        seed=seed,
        temperature=temperature,
        out=out,
        resume=resume,
        own=own,
    )
    raise typer.Exit(code)


@app.command("export-hanab-live")
def export_hanab_live(
    path: Annotated[Path, typer.Argument(help="Run folder, folder of games, or a *.jsonl file of games.")],
    out: Annotated[Path | None, typer.Option(help="New file, one game a line; the terminal when left out.")] = None,
    url: Annotated[bool, typer.Option("--url", help="Links that open the games instead of JSON.")] = False,
    game: Annotated[int | None, typer.Option(help="Only the game of this number.")] = None,
    step: Annotated[int | None, typer.Option(help="Recorded step of a run; the last when left out.")] = None,
) -> None:
    """Write games of the board full as hanab.live reads them."""
    from hanabi_grpo.commands.hanab_live import export_hanab_live as run

    run(path, out=out, url=url, game=game, step=step)


@app.command("import-hanab-live")
def import_hanab_live(
    sources: Annotated[list[str], typer.Argument(help="JSON files, - for standard input, URLs or their fragments.")],
    out: Annotated[Path, typer.Option(help="New file of games, for hanabi-grpo view.")],
) -> None:
    """Replay games of hanab.live in our engine; games of other rules are refused."""
    from hanabi_grpo.commands.hanab_live import import_hanab_live as run

    run(sources, out=out)


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
    """Show what moves mean to a team: P(next move | my move), what hints tell, information per play; one page."""
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


@app.command()
def scores(
    deals: Annotated[int, typer.Option(help="Games of each row.")] = 10000,
    out: Annotated[Path | None, typer.Option(help="Markdown file that gets the table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON on standard output.")] = False,
) -> None:
    """Let the bots play, beside what they score elsewhere; exits with 1 when one is four standard errors off."""
    from hanabi_grpo.commands.scores import scores as run

    run(deals=deals, out=out, as_json=as_json)


if __name__ == "__main__":
    app()
