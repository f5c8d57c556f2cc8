"""The rules of Hanabi without prompts, policies or models; the heaviest import is OpenSpiel.

- `presets`: `GameSpec`, the named boards, and the check of every parameter, before OpenSpiel sees
  it.
- `deals`: the deck that (suite, seed) stands for, and which suites are held out for evaluation.
- `view`: the data of a game: `Card`, `Action`, `Event`, `Knowledge`, `PlayerView`.
- `actions`: a move as text, and text as a move.
- `game`: `Game` with its legal actions, moves, scores and views, and OpenSpiel's numbers for moves
  and cards.
- `beliefs`: what a player can work out about its own cards and about the deck.
"""

from hanabi_grpo.envs.hanabi.rules.actions import format_action, parse_action
from hanabi_grpo.envs.hanabi.rules.deals import shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.presets import (
    PRESETS,
    GameSpec,
    attainable,
    make_spec,
    recorded_spec,
)
from hanabi_grpo.envs.hanabi.rules.view import (
    COLOR_LETTERS,
    COLOR_NAMES,
    Action,
    Card,
    Event,
    Knowledge,
    PlayerView,
)
