"""What a tiny model is made from: the words, the games that it learns from, and the hash of it
all.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Policy, Setup
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.envs.workflows.environment import WORKFLOWS
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.vocabulary import game_words
from hanabi_grpo.settings.game import HANABI
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.sources import SUITE, NoisyPolicy, starts_of
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.types import ReplyKind

_VERSION = 1
"""Raised when the architecture, the loss or the schedule changes, none of which a probe of the data
would show.
"""
_NO_LIMIT = 1 << 30
_WORD_GAMES = 500
"""Random games from which the words of an environment are read."""
_TURNS = 96
"""Conversations of a step where each turn is one."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    HANABI: {"num_games": 6000, "steps": 900, "single_turn_share": 0.4},
    "tic_tac_toe": {"num_games": 12000, "steps": 1200},
    "connect_four": {"num_games": 12000, "steps": 1200},
    "sokoban": {"num_games": 12000, "steps": 1200},
    **{name: {"num_games": 6000, "steps": 500} for name in WORKFLOWS},
}
"""Fields of a recipe that an environment has of its own; a Hanabi observation is the whole
state.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the weights, apart from the number of threads.

    Example:
        Recipe.of("hanabi", presets=("laptop", "mini"), players=2, seed=42)
    """

    env: str = HANABI
    presets: tuple[str, ...] = ("laptop",)
    """In the order in which their words are numbered; one of another environment is e.g.
    "kuhn_poker:kuhn_poker".
    """
    players: int = 2
    """Where the environment's config has such a field, and likewise the next one."""
    legal_moves: bool = False
    """Whether the prompts that it learns from list the legal moves; as in the rollouts to come
    (HANABI_LEGAL_MOVES).
    """
    deductions: str = "possible"
    """What the prompts work out (HANABI_DEDUCTIONS)."""
    seed: int = 0
    """Of the games, the initial weights and the order of batches."""
    steps: int = 300
    """Optimizer steps."""
    num_games: int = 2000
    """Of each preset."""
    noise: float = 0.4
    """Share of the teacher's actions that are random; they are learnt as well, so the start is
    legal but mediocre.
    """
    batch_size: int = 18
    """Conversations of one step."""
    single_turn_share: float = 0.0
    """Share of the steps, the first ones, that learn from conversations of one turn."""
    learning_rate: float = 3e-3

    @classmethod
    def of(cls, env: str, **fields: Any) -> "Recipe":
        """Return the recipe of an environment; a field that is None has its default."""
        given = {name: value for name, value in fields.items() if value is not None}
        own = {"noise": registry.get(env).teacher_noise, **_DEFAULTS.get(env, {})}
        if next(iter(registry.get(env).presets.values())).window is not None:
            # A conversation has one reply there; so a step learns about as many as elsewhere.
            own.setdefault("batch_size", _TURNS)
        return cls(env=env, **{**own, **given})

    def setups(self) -> list[Setup[Any]]:
        """Return what is played; a HanabiGrpoError: a preset is unknown or not for this number of
        players.
        """
        fields = {
            "players": self.players,
            "legal_moves": self.legal_moves,
            "observation": "compact",
        }
        fields |= {"deductions": self.deductions}
        found, unknown = [], []
        for name in self.presets:
            env, _, preset = name.rpartition(":")
            environment = registry.get(env or self.env)
            given = {
                name: value
                for name, value in fields.items()
                if name in environment.Config.model_fields
            }
            given = {**environment.Config.defaults("cpu", given), **given, "preset": preset}
            if preset in environment.presets:
                found.append(
                    registry.setup(
                        environment.name, environment.presets[preset].model_dump() | given
                    )
                )
            else:
                unknown.append(
                    f"--preset {name}: {environment.name} has {', '.join(environment.presets)}."
                )
        if unknown:
            raise SettingsError(" ".join(unknown))
        return found

    def chat(self) -> ChatFormat:
        """Return the chat format of a tokenizer that knows the words of all presets."""
        return ChatFormat.from_tokenizer(build_tokenizer(self._words()))

    def samples(self, setup: Setup[Any], chat: ChatFormat, num_games: int) -> Iterator[Sample]:
        """Play games of the teachers in turn; yield a sample per player that had a turn, every
        legal reply learned.
        """
        encoder = Encoder(
            setup=setup, chat=chat, max_model_len=_NO_LIMIT, max_completion_length=_NO_LIMIT // 2
        )
        teachers = _teachers(setup, self.noise)
        for number, start in enumerate(starts_of(self.seed, num_games)):
            policies = dict.fromkeys(
                range(setup.spec.num_players), teachers[number % len(teachers)]
            )
            episode = play_scripts(setup.task(SUITE, start), policies)
            is_taught = [turn.kind is ReplyKind.LEGAL for turn in episode.turns]
            yield from encoder.samples(Recording(episode=episode), is_taught)

    def hash(self, chat: ChatFormat) -> str:
        """Return a short sha256 over the recipe, its words and the first conversation of each
        preset.
        """
        probes = [list(next(self.samples(setup, chat, 1)).ids) for setup in self.setups()]
        fields = asdict(self)
        if self.deductions == "possible":
            # As before there were others.
            del fields["deductions"]
        if self.env == HANABI:
            # Spelt so that a recipe of one board has the same hash in every version of the package.
            del fields["env"]
            first, *others = fields.pop("presets")
            fields |= {"preset": first, "more_presets": others} if others else {"preset": first}
        text = json.dumps([_VERSION, fields, [list(self._words()), *probes]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _words(self) -> tuple[str, ...]:
        """Return the words of all presets, in the order in which the tokenizer numbers them."""
        from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary

        words: dict[str, None] = {}
        for setup in self.setups():
            if setup.env == HANABI:
                # In the order of the shipped tokenizer, which random games would not meet them in.
                words |= dict.fromkeys(
                    compact_vocabulary(setup.config.spec(), setup.config.deductions)
                )
            else:
                words |= dict.fromkeys(game_words(setup, num_games=_WORD_GAMES))
        return tuple(words)


def _teachers(setup: Setup[Any], noise: float) -> list[Policy]:
    """Return who plays in turn: in Hanabi the hint bot, else the environment's `teachers`.

    Where it names none: random play in every other game, else its scripts.
    """
    if setup.env == HANABI:
        # It draws its noise itself, as when the shipped model was made.
        from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot

        return [rule_bot("hint-bot", noise)]
    scripts = setup.environment.teachers or [
        name for name in setup.environment.policies if name != "random"
    ]
    if "random" in setup.environment.policies and not setup.environment.teachers:
        scripts = [name for script in scripts for name in ("random", script)] or ["random"]
    return [NoisyPolicy(inner=make_script(setup, name).policy, noise=noise) for name in scripts]
