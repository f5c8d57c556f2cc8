"""What a tiny model is made from, and the hash of it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.errors import SettingsError

_VERSION = 1
"""Raised when the architecture, the loss or the schedule changes, none of which a probe of the data would show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the weights, apart from the number of threads.

    Example:
        Recipe(presets=("laptop", "mini"), players=2, seed=42)
    """

    presets: tuple[str, ...] = ("laptop",)
    """The boards, in the order in which their words are numbered."""
    players: int = 2
    legal_moves: bool = False
    """Whether the prompts that it learns from list the legal moves; as in the rollouts to come (HANABI_LEGAL_MOVES)."""
    seed: int = 0
    """Of the games, the initial weights and the order of batches."""
    steps: int = 900
    """Optimizer steps."""
    num_games: int = 6000
    """On each board."""
    noise: float = 0.4
    """Share of the teacher's moves that are random; they are learnt as well, so the start is legal but mediocre."""
    batch_size: int = 18
    """Conversations of one step."""
    single_turn_share: float = 0.4
    """Share of the steps, the first ones, that learn from conversations of one turn.

    An observation is the whole state, so a move can be learnt without the turns before it, and faster; the steps
    that follow teach to read the newest of several observations.
    """
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        """Check the numbers and the names.

        Raises:
            SettingsError: `steps` or `seed` is out of range, or not every board is named once.
        """
        if self.steps < 1 or self.seed < 0:
            raise SettingsError(f"steps={self.steps} seed={self.seed}: steps are 1 or more, a seed is 0 or more.")
        if not self.presets or len(set(self.presets)) < len(self.presets):
            raise SettingsError(f"--preset {' '.join(self.presets)}: name at least one board, and each once.")

    def configs(self) -> list[EnvConfig]:
        """Return the games of all boards.

        Raises:
            GameParameterError: A preset is unknown or not for this number of players.
        """
        common = {"players": self.players, "observation": "compact", "legal_moves": self.legal_moves}
        return [EnvConfig.parse({"preset": preset, **common}) for preset in self.presets]

    def words(self) -> tuple[str, ...]:
        """Return the words of all games, in the order in which the tokenizer numbers them."""
        return tuple(dict.fromkeys(word for config in self.configs() for word in compact_vocabulary(config.spec())))

    def hash(self, probe: Any) -> str:
        """Return a short sha256 over the recipe and a probe of the data (JSON-able) that it makes."""
        fields = asdict(self)
        first, *others = fields.pop("presets")
        # Spelt so that a recipe of one board has the same hash in every version of the package.
        fields |= {"preset": first, "more_presets": others} if others else {"preset": first}
        text = json.dumps([_VERSION, fields, probe], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
