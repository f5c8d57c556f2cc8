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
    """Return a game that has been played for a random number of random moves, to the end in half of
    the cases.

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
        hand, fireworks = game.hands[game.current_player], game.view(0).fireworks
        safe = [
            a
            for a in actions
            if a.kind != "play" or fireworks[hand[a.slot].color] == hand[a.slot].rank
        ]
        actions = tuple(safe) or actions
    return rng.choice(actions)


def script(name: str) -> Policy:
    return HANABI.policies[name]()


def scripted_game(
    config: EnvConfig,
    team: Sequence[Policy | str],
    *,
    suite: str = "eval",
    seed: int = 0,
    number: int = 0,
) -> Game:
    """Return the table at the end of a game of scripts, each given by itself or by its name."""
    task = Setup(HANABI, config).task(suite, seed)
    policies = [script(one) if isinstance(one, str) else one for one in team]
    seats = [policy.seat(player, task=task, game=number) for player, policy in enumerate(policies)]
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
    """Return this many games of each task by scripts, each given by itself or by its name."""
    policies = dict(enumerate(script(one) if isinstance(one, str) else one for one in team))
    tasks = [Setup(HANABI, config).task(suite, seed) for seed in seeds]
    return [
        play_scripts(task, policies, number=number) for task in tasks for number in range(num_games)
    ]


def swap_own_cards(game: Game, player: int, rng: random.Random) -> Game | None:
    """Return another game that `player` cannot tell from this one, or None when no other hand of it
    is possible.
    """
    other = with_other_cards(game, player, rng)
    return None if other.hands[player] == game.hands[player] else other
