"""Boards and games that many tests play."""

import random
from collections.abc import Iterable, Sequence

from hanabi_grpo.envs.base import Observation, Policy, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.rules import PRESETS, Action, Game, GameSpec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import with_other_cards
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.types import Episode

ALL_BOARDS = [
    (name, num_players) for name, preset in PRESETS.items() for num_players in preset.players
]
"""Every preset with every number of players that it allows."""


def random_game(spec: GameSpec, rng: random.Random, *, suite: str = "train") -> Game:
    """Return a game after a random number of random moves, at its end in half of the cases.

    Half of the games avoid misplays, since games of blind moves bomb long before the deck is empty.
    """
    game = Game(spec, shuffled_deck(spec, suite, rng.randrange(2**32)))
    num_moves = rng.choice([spec.max_turns, rng.randrange(spec.max_turns)])
    careful = rng.random() < 0.5
    while not game.is_over and len(game.events) < num_moves:
        game.apply(random_move(game, rng, careful=careful))
    return game


def random_move(game: Game, rng: random.Random, *, careful: bool) -> Action:
    """Return a legal move; a careful one is no misplay unless there is nothing else."""
    actions = game.legal_actions()
    if careful:
        safe = [action for action in actions if not _is_misplay(game, action)]
        actions = tuple(safe) or actions
    return rng.choice(actions)


def _is_misplay(game: Game, action: Action) -> bool:
    if action.kind != "play":
        return False
    card = game.hands[game.current_player][action.slot]
    return game.fireworks[card.color] != card.rank


def script(name: str) -> Policy:
    """Return a script of Hanabi by its name."""
    return HANABI.policies[name]()


def _scripts(team: Sequence[Policy | str]) -> list[Policy]:
    """Return the team's scripts, each given by itself or by its name."""
    return [script(policy) if isinstance(policy, str) else policy for policy in team]


def scripted_game(
    config: EnvConfig,
    team: Sequence[Policy | str],
    *,
    suite: str = "eval",
    seed: int = 0,
    number: int = 0,
) -> Game:
    """Return the table at the end of a game of scripts.

    Args:
        config: The settings of the game.
        team: A script per seat, by itself or by its name.
        suite: Stream of deals.
        seed: Number of the deal within the suite.
        number: Number of the game within its group; it seeds the scripts.
    """
    task = Setup(HANABI, config).task(suite, seed)
    seats = [
        policy.seat(player, task=task, game=number) for player, policy in enumerate(_scripts(team))
    ]
    game = HANABI.reset(config, split=suite, seed=seed)
    while game.to_act():
        [player] = game.to_act()
        game.step({player: seats[player].act(Observation(game, player))})
    return game.table


def scripted_episodes(
    config: EnvConfig,
    team: Sequence[Policy | str],
    seeds: Iterable[int],
    *,
    suite: str = "train",
    num_games: int = 1,
) -> list[Episode]:
    """Return games of scripts as episodes, deal by deal.

    Args:
        config: The settings of the games.
        team: A script per seat, by itself or by its name.
        seeds: Numbers of the deals within the suite.
        suite: Stream of deals.
        num_games: Games of each deal.
    """
    policies = dict(enumerate(_scripts(team)))
    episodes = []
    for seed in seeds:
        task = Setup(HANABI, config).task(suite, seed)
        for number in range(num_games):
            episodes.append(play_scripts(task, policies, number=number))
    return episodes


def swap_own_cards(game: Game, player: int, rng: random.Random) -> Game | None:
    """Return another game that `player` cannot tell from this one.

    None when no other hand of it is possible.
    """
    other = with_other_cards(game, player, rng)
    return None if other.hands[player] == game.hands[player] else other
