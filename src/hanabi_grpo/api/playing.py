"""`play` and `evaluate`: a lineup's episodes, and its scores on held-out tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.api.arguments import (
    check_count,
    check_held_out,
    check_temperature,
    check_text,
    lineup_list,
)
from hanabi_grpo.api.servers import (
    Server,
    choose_game,
    console,
    make_missing_model,
    needs_own_server,
)
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Environment, Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import MIN_TASKS, SUITE, tasks_of_all_starts
from hanabi_grpo.evaluation.lineups import Evaluation, evaluate_lineups, parse_lineups
from hanabi_grpo.evaluation.matches import Table, play_tables
from hanabi_grpo.evaluation.result_files import check_out, write_result
from hanabi_grpo.runs.run_folder import results_folder
from hanabi_grpo.settings.refs import SERVED
from hanabi_grpo.settings.zoo import zoo_settings
from hanabi_grpo.terminal import sayer
from hanabi_grpo.types import ALL_STARTS, Episode

PLAY_SUITE = "play"
"""Default suite of the tasks of `play`."""


def play(
    lineup: str,
    env: Setup[Any] | Environment[Any] | str | None = None,
    *,
    tasks: int = 1,
    games: int = 1,
    suite: str = PLAY_SUITE,
    rotate: bool = False,
    temperature: float | None = None,
    server: Server | None = None,
    **settings: Any,
) -> tuple[Episode, ...]:
    """Play episodes and return them.

    Scripts play in this process, without a model. Models play on a rollout server: on `server` if
    given, else on the server at VLLM_SERVER_HOST and VLLM_SERVER_PORT if they are set, else on a
    server that is started for this call.

    Args:
        lineup: Policies that play, as for `hanabi-grpo evaluate`: one for all seats, or a
            comma-separated policy for each seat, e.g. "iggi", "outputs/my-run", "served,random".
        env: The environment, see `make_env`; None: as in training.
        tasks: Tasks 0 to `tasks - 1` of the suite are played.
        games: Games of each task.
        suite: Suite of the tasks.
        rotate: Whether the seat order changes from task to task.
        temperature: 0 is greedy; None: TEMPERATURE.
        server: The server on which models play.
        **settings: Further settings, see `Trainer`; those of the game only beside the name of an
            environment, or with the same values.

    Returns:
        The episodes, ordered by task and game.

    Raises:
        SettingsError: The lineup, the environment, a number or a setting is invalid.
        ServerError: The server failed, or dropped a game.

    Example:
        env = hg.make_env("hanabi", preset="laptop")
        for episode in hg.play("iggi,random", env, tasks=3):
            print(episode.seed, episode.result["score"], [turn.action for turn in episode.turns])
    """
    check_text("play", "lineup", lineup, "one text, with a comma between seats: 'iggi,random'")
    check_count("play", "tasks", tasks, least=1)
    check_count("play", "games", games, least=1)
    check_text("play", "suite", suite, "the name of a suite, e.g. 'play'")
    check_temperature("play", temperature)
    below = _below(server, [lineup])
    given, chosen = choose_game(env, settings, temperature=temperature, below=below)
    game = chosen.game
    scripts = game.environment.policies
    team = parse_lineup(lineup, game.spec.num_players, env=game.env, scripts=scripts)
    orders = team.orders(rotate=rotate)
    tables = [Table(seed, orders[seed % len(orders)]) for seed in range(tasks)]
    own = team.needs_server and needs_own_server(given, server)
    if own:
        make_missing_model(given)
    episodes: list[Episode] = []
    with chosen.serving(console(), needed=team.needs_server, own=own) as served:
        for groups in play_tables(
            tables, game, suite=suite, label=team.text, served=served, num_games=games
        ):
            for group in groups:
                episodes += group
    return tuple(episodes)


def evaluate(
    lineups: str | Sequence[str] = SERVED,
    env: Setup[Any] | Environment[Any] | str | None = None,
    *,
    tasks: int = 1000,
    suite: str = SUITE,
    all_starts: bool = False,
    rotate: bool = True,
    temperature: float | None = None,
    label: str | None = None,
    out: Path | str | None = None,
    server: Server | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate one or more lineups on held-out tasks, with scripts for comparison.

    This is `hanabi-grpo evaluate`: an interrupted evaluation continues when it is called again, and
    results of a run's adapters are stored in the run's `evaluations/`.

    Args:
        lineups: The lineups, each as in `play`.
        env: The environment, see `make_env`; None: as in training.
        tasks: Number of held-out tasks, each played in every seat order. At least 2.
        suite: A held-out suite; its name begins with "eval" or "test".
        all_starts: In a game with few starts, play each of them twice; `tasks` and `suite` are
            ignored.
        rotate: Whether different players change seats.
        temperature: 0 is greedy; None: TEMPERATURE.
        label: Name of the lineup in tables, if there is only one.
        out: JSON file to which the result is written; a line says which other result it replaces.
        server: The server on which models play, see `play`.
        **settings: Further settings, see `play`.

    Raises:
        SettingsError: A lineup, the environment, a number or a setting is invalid, or `out` is
            not writable or holds anything but a result.
        ServerError: The server failed, or dropped a game.

    Example:
        evaluation = hg.evaluate(["iggi", "hint-bot"], env, tasks=200)
        evaluation.results[0].mean
        evaluation.frame()[["label", "mean", "standard_error"]]
    """
    path = None if out is None else Path(out)
    check_out(path, "out=")
    if not all_starts:
        check_count("evaluate", "tasks", tasks, least=MIN_TASKS)
        check_held_out("evaluate", suite)
    check_temperature("evaluate", temperature)
    specs = lineup_list("evaluate", lineups)
    if label is not None:
        check_text("evaluate", "label", label, "a text")
        if len(specs) > 1:
            raise SettingsError(
                f"evaluate(label={label!r}): names a single lineup, but {len(specs)} are given; "
                "leave it out."
            )
    below = _below(server, specs)
    given, chosen = choose_game(env, settings, temperature=temperature, below=below)
    if all_starts:
        suite = ALL_STARTS
        tasks = tasks_of_all_starts(chosen.game, "all_starts=True")
    teams = parse_lineups(specs, chosen.game, label=label, rotate=rotate)
    needs_server = any(team.lineup.needs_server for team in teams)
    own = needs_server and needs_own_server(given, server)
    if own:
        make_missing_model(given)
    with chosen.serving(console(), needed=needs_server, own=own) as served:
        evaluation = evaluate_lineups(
            teams,
            chosen.game,
            tasks,
            suite=suite,
            served=served,
            rotate=rotate,
            out=path,
            folder=results_folder(chosen.loaded.settings),
        )
        say = sayer(console())
        if path is not None:
            note = write_result(path, evaluation.kept_document())
            if note:
                say(note, "yellow")
        evaluation.keep_with_runs(served, say)
    return evaluation


def _below(server: Server | None, specs: Sequence[str]) -> dict[str, str]:
    """Return the variables of a server, and of the zoo's teams in policy specs."""
    variables = dict(zoo_settings(specs))
    if server is not None:
        variables.update(server.environ)
    return variables
