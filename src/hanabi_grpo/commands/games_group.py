"""Commands about single games: watch, play, exchange with hanab.live. `cli` makes them commands of `hanabi-grpo`."""

from pathlib import Path
from typing import Annotated

import typer

games = typer.Typer()


@games.command()
def view(
    path: Annotated[
        Path,
        typer.Argument(help="Run folder, folder of games, a *.jsonl file of games, or wandb:team/project/name:alias."),
    ],
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
    """Watch recorded games: what each player saw, thought, said and did, and what it earned.

    Environment: WANDB_MODE, WANDB_ENTITY and OUTPUT_DIR say where wandb: words are looked for.
    """
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


@games.command()
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
    """Play a game yourself, with scripts or models as partners; ? at the prompt lists your moves.

    Environment: with models, HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of evaluate.
    """
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


@games.command("export-hanab-live")
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


@games.command("import-hanab-live")
def import_hanab_live(
    sources: Annotated[list[str], typer.Argument(help="JSON files, - for standard input, URLs or their fragments.")],
    out: Annotated[Path, typer.Option(help="New file of games, for hanabi-grpo view.")],
) -> None:
    """Replay games of hanab.live in our engine; games of other rules are refused."""
    from hanabi_grpo.commands.hanab_live import import_hanab_live as run

    run(sources, out=out)
