"""Games made by hand, and counts of scripted ones, for the tests of conventions."""

from boards import scripted_game
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.conventions.counts import ConventionCounts
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Card, Game, GameSpec, make_spec, parse_action

LAPTOP = make_spec("laptop")


def cards(text: str) -> list[Card]:
    """Return the cards of a text such as "R1 Y2"."""
    return [Card(COLOR_LETTERS.index(word[0]), int(word[1]) - 1) for word in text.split()]


def played(spec: GameSpec, deck: str, moves: str) -> Game:
    """Return a game of these moves, e.g. "Hint R, Play 0"."""
    game = Game(spec, cards(deck))
    for move in moves.split(", "):
        action = parse_action(move, num_players=spec.num_players, player=game.current_player)
        assert action is not None
        game.apply(action)
    return game


def golden_game() -> Game:
    """Return a game of six moves: two hints that are played, a discard and a bomb with both attributes known."""
    deck = "R1 Y1 Y1  R2 R1 Y2  R1 Y1"
    return played(LAPTOP, deck, "Hint R, Play 1, Hint 2, Play 0, Discard 0, Play 0")


def some_counts(
    num_games: int, *, policy: str = "hint-bot", spec: GameSpec = LAPTOP, first: int = 0
) -> ConventionCounts:
    counts = ConventionCounts(spec)
    config = EnvConfig(preset=spec.preset, players=spec.num_players)
    for seed in range(first, first + num_games):
        counts.add(scripted_game(config, [policy] * spec.num_players, seed=seed))
    return counts
