"""Games of scripts alone, without text: for tables of thousands of games."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.policies.seats import MovingPolicy
from hanabi_grpo.envs.hanabi.rules.deals import shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.errors import SettingsError


def play_scripted(
    spec: GameSpec, policies: Sequence[MovingPolicy], *, suite: str, seed: int, game: int = 0, max_turns: int = 0
) -> Game:
    """Play one game to its end, move for move the one that `rollouts.play_episode` plays with these policies.

    Args:
        spec: The board.
        policies: One per seat, in turn order.
        suite: With `seed`, names the deal.
        seed: See `suite`.
        game: Number of this game within the deal's group; feeds the randomness of scripts.
        max_turns: Moves after which the game is cut; 0: only the rules end it.

    Returns:
        The finished game, with its score, events and deck.

    Raises:
        SettingsError: The number of policies is not the number of players.
        IllegalActionError: A script made an illegal move.
    """
    if len(policies) != spec.num_players:
        raise SettingsError(f"{len(policies)} policies for players={spec.num_players}: give one policy per player.")
    table = Game(spec, shuffled_deck(spec, suite, seed))
    moves = [
        policy.seat(player, spec=spec, suite=suite, seed=seed, game=game).move for player, policy in enumerate(policies)
    ]
    while not table.is_over and not 0 < max_turns <= table.num_turns:
        player = table.current_player
        table.apply(moves[player](table.view(player)))
    return table
