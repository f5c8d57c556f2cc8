"""The system prompt: the rules of exactly one board."""

from hanabi_grpo.envs.hanabi.prompts.style import ObservationStyle
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import COLOR_NAMES, Action
from hanabi_grpo.types import player_name


def system_prompt(spec: GameSpec, style: ObservationStyle | str, player: int, *, bomb_rule: str = "zero") -> str:
    """Return the rules as told to one player, or "" in the compact style.

    Args:
        spec: The board.
        style: `compact` has no system prompt: a tiny model learns the rules by playing.
        player: Seat that is spoken to, from 0.
        bomb_rule: "zero" or "keep": what losing the last life does to the score.
    """
    if ObservationStyle(style) is ObservationStyle.COMPACT:
        return ""
    return "\n\n".join((_goal(spec, player), _cards(spec), _moves(spec), _end(spec, bomb_rule), _format(spec, player)))


def _goal(spec: GameSpec, player: int) -> str:
    return (
        f"You are {player_name(player)} in a game of Hanabi for {spec.num_players} players, "
        f"{player_name(0)} to {player_name(spec.num_players - 1)}, who move in this order. All of you are one team. "
        "You see the cards of everybody else but never your own; hints are the only way to tell each other "
        "what one holds.\n"
        f"Together you build one firework per colour, rank by rank from 1 to {spec.num_ranks}. "
        f"Every card that is added scores 1 point; the maximum is {spec.max_score}."
    )


def _cards(spec: GameSpec) -> str:
    colors = ", ".join(COLOR_NAMES[: spec.num_colors])
    copies = ", ".join(f"rank {rank + 1} x{num_copies(rank, spec.num_ranks)}" for rank in range(spec.num_ranks))
    return (
        f"Cards: {spec.deck_size}. Colours: {colors}. Copies in each colour: {copies}.\n"
        f"Everybody holds {spec.hand_size} cards in slots counted from 0, the oldest card. When a card leaves a hand, "
        "the younger ones move down by one slot and the new card takes the last slot."
    )


def _moves(spec: GameSpec) -> str:
    return (
        "On your turn you make one move:\n"
        "- Play a card. If its rank is the next one of its colour, it is added to the firework and the team scores; "
        "finishing a colour gives back a hint token, if one is spent. If not, the card is discarded and the team "
        "loses a life.\n"
        "- Discard a card. This gives back one hint token, and is not allowed while "
        f"all {spec.max_hints} hint tokens are there.\n"
        "- Hint: name one colour or one rank to one other player, who learns which of their cards have it and which do "
        "not. It costs a hint token and must touch at least one card."
    )


def _end(spec: GameSpec, bomb_rule: str) -> str:
    lives = "1 life" if spec.max_lives == 1 else f"{spec.max_lives} lives"
    tokens = "1 hint token" if spec.max_hints == 1 else f"{spec.max_hints} hint tokens"
    cost = (
        "every point scored so far is lost: the score is 0"
        if bomb_rule == "zero"
        else "the points scored so far are kept"
    )
    return (
        f"The team starts with {lives} and {tokens}. When the last life is lost, the game ends at once and {cost}. "
        "The game also ends when every firework is complete, or after each player has had one more turn "
        "once the last card has been drawn."
    )


def _format(spec: GameSpec, player: int) -> str:
    partner = (player + 1) % spec.num_players
    examples = (
        Action("play", slot=0),
        Action("discard", slot=spec.hand_size - 1),
        Action("hint_color", target=partner, value=0),
        Action("hint_rank", target=partner, value=0),
    )
    texts = "\n".join(
        format_action(action, style=ObservationStyle.FULL, num_players=spec.num_players) for action in examples
    )
    return f"End your reply with your move on a line of its own, written like one of these:\n{texts}"
