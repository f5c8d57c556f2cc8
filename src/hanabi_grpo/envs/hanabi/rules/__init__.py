"""The game layer, pure: OpenSpiel, nothing heavier.

Map: presets     GameSpec, the named boards, and the check of every parameter before OpenSpiel sees
    it deals       the deck that (suite, seed) stands for; which suites are for evaluation view
    the data: Card, Action, Event, Knowledge, PlayerView actions     a move as text and back game
    Game: legal actions, moves, scores, what each player sees; OpenSpiel's numbers for moves and
    cards
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
