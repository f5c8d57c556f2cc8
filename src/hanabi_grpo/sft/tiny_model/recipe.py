"""What a tiny model is made from: its words, the games that it learns from, and the hash of all."""

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
from hanabi_grpo.rollout.vocabulary import game_texts, game_words
from hanabi_grpo.settings.defaults import PromptStyle
from hanabi_grpo.settings.game import HANABI
from hanabi_grpo.settings.per_player import PerPlayer, entries
from hanabi_grpo.sft.beliefs import parse_shares
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.sources import SUITE, NoisyPolicy, starts_of
from hanabi_grpo.sft.tiny_model.tokenizer import build_text_tokenizer, build_tokenizer
from hanabi_grpo.types import Episode, ReplyKind

_VERSION = 1
"""Raised when architecture, loss or schedule changes, which no probe of the data would show."""
_PARTS_VERSION = 1
"""The same, of what concerns models whose words share parts alone."""
_NO_LIMIT = 1 << 30
"""Tokens of a conversation: more than any game has."""
_HASH_CHARACTERS = 16
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
"""Fields of a recipe that an environment has of its own.

Single turns suit Hanabi because an observation there is the whole state.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the weights, apart from the number of threads.

    Example:
        Recipe.of("hanabi", presets=("laptop", "mini"), players=2, seed=42)
    """

    env: str = HANABI
    presets: tuple[str, ...] = ("laptop",)
    """In the order in which their words are numbered.

    One of another environment has its name in front, e.g. "kuhn_poker:kuhn_poker".
    """
    players: int = 2
    """Where the environment's config has such a field, and likewise the next one."""
    legal_moves: bool = False
    """True where the prompts list the legal moves, as in the rollouts (HANABI_LEGAL_MOVES)."""
    deductions: str = "possible"
    """What the prompts work out (HANABI_DEDUCTIONS)."""
    style: str = PromptStyle.COMPACT.value
    """Of the prompts: `compact`, a word for each fact, or `full`, English with the rules
    (HANABI_OBSERVATION in Hanabi, HANABI_STYLE elsewhere)."""
    teacher: str | None = None
    """The script whose games it learns from; None: those of the environment."""
    memory: str | None = None
    """What a prompt holds of earlier turns (HANABI_MEMORY); None: the environment's default."""
    seed: int = 0
    """Of the games, the initial weights and the order of batches."""
    steps: int = 300
    """Optimizer steps."""
    num_games: int = 2000
    """Of each preset."""
    noise: float = 0.4
    """Share of the teacher's actions that are random.

    They are learned as well, so the model moves legally and plays badly.
    """
    batch_size: int = 18
    """Conversations of one step."""
    single_turn_share: float = 0.0
    """Share of the steps, the first ones, that learn from conversations of one turn."""
    learning_rate: float = 3e-3
    beliefs: PerPlayer = 0.0
    """Share of the learned replies that answer questions about hidden cards (`sft.beliefs`)."""

    @classmethod
    def of(cls, env: str, **fields: Any) -> "Recipe":
        """Return the recipe of an environment.

        Args:
            env: The environment.
            fields: Fields of the recipe; one that is None has its default.
        """
        environment = registry.get(env)
        values = {"noise": environment.teacher_noise, **_DEFAULTS.get(env, {})}
        if fields.get("style") == PromptStyle.FULL:
            # A first turn has the rules in front of it, and is unlike the others.
            values["single_turn_share"] = 0.0
        first_preset = next(iter(environment.presets.values()))
        if first_preset.window is not None or fields.get("memory") == "turn":
            # A conversation has one reply there; so a step learns about as many as elsewhere.
            values.setdefault("batch_size", _TURNS)
        for name, value in fields.items():
            if value is not None:
                values[name] = value
        return cls(env=env, **values)

    def setups(self) -> list[Setup[Any]]:
        """Return the games that are played.

        Raises:
            HanabiGrpoError: A preset is unknown or not for this number of players.
        """
        fields = {
            "players": self.players,
            "legal_moves": self.legal_moves,
            "observation": self.style,
            "deductions": self.deductions,
        }
        if self.style != PromptStyle.COMPACT:
            fields["style"] = self.style
        if self.memory is not None:
            fields["memory"] = self.memory
        setups = []
        problems = []
        for name in self.presets:
            env, _, preset = name.rpartition(":")
            environment = registry.get(env or self.env)
            if not environment.knows_preset(preset):
                known = ", ".join(environment.presets)
                problems.append(f"--preset {name}: no such preset; {environment.name} has {known}.")
                continue
            given = {}
            for field, value in fields.items():
                if field in environment.Config.model_fields:
                    given[field] = value
            named = environment.presets.get(preset)
            config = {
                **(named.model_dump() if named else {}),
                **environment.Config.defaults("cpu", given),
                **given,
                "preset": preset,
            }
            setups.append(registry.setup(environment.name, config))
        if problems:
            raise SettingsError(" ".join(problems))
        return setups

    def chat(self) -> ChatFormat:
        """Return the chat format of a tokenizer that knows the texts of all presets."""
        if self.style == PromptStyle.COMPACT:
            return ChatFormat.from_tokenizer(build_tokenizer(self.words()))
        return ChatFormat.from_tokenizer(build_text_tokenizer(self._texts()))

    def _texts(self) -> Iterator[str]:
        """Yield the texts of random games, and what the teachers reply in theirs."""
        for setup in self.setups():
            yield from game_texts(setup, num_games=_WORD_GAMES)
            for episode in self._episodes(setup, _WORD_GAMES):
                for turn in episode.turns:
                    yield turn.reply

    def samples(
        self, setup: Setup[Any], chat: ChatFormat, num_games: int, *, first_game: int = 0
    ) -> Iterator[Sample]:
        """Play games of the teachers in turn, every legal reply learned.

        Args:
            setup: The game.
            chat: The chat format of the model.
            num_games: Number of games.
            first_game: Number of the first of them.

        Yields:
            A sample for each player that had a turn, and one for each question.
        """
        encoder = Encoder(
            setup=setup,
            chat=chat,
            max_model_len=_NO_LIMIT,
            max_completion_length=_NO_LIMIT // 2,
            belief_shares=parse_shares(self.beliefs, setup),
        )
        for episode in self._episodes(setup, num_games, first_game):
            is_taught = [turn.kind is ReplyKind.LEGAL for turn in episode.turns]
            yield from encoder.samples(Recording(episode=episode), is_taught)

    def _episodes(
        self, setup: Setup[Any], num_games: int, first_game: int = 0
    ) -> Iterator[Episode]:
        """Play games of the teachers in turn."""
        if self.teacher is None:
            teachers = _teachers(setup, self.noise)
        else:
            script = make_script(setup, self.teacher).policy
            teachers = [NoisyPolicy(inner=script, noise=self.noise)]
        starts = starts_of(self.seed, first_game + num_games)
        for number, start in enumerate(starts[first_game:]):
            teacher = teachers[number % len(teachers)]
            policies = dict.fromkeys(range(setup.spec.num_players), teacher)
            yield play_scripts(setup.task(SUITE, start), policies)

    def hash(self, chat: ChatFormat) -> str:
        """Return a short sha256 over the recipe, its words and each preset's first conversation."""
        probes = []
        for setup in self.setups():
            first_sample = next(self.samples(setup, chat, 1))
            probes.append(list(first_sample.ids))
        fields = asdict(self)
        if self.deductions == "possible":
            # Left out, so that models from before there were others keep their hash.
            del fields["deductions"]
        if self.style == PromptStyle.COMPACT:
            del fields["style"]
        if not any(entries(self.beliefs).values()):
            del fields["beliefs"]
        for optional in ("teacher", "memory"):
            if fields[optional] is None:
                del fields[optional]
        if self.env == HANABI:
            # Spelled so that a recipe of one board has the same hash in every version of the
            # package.
            del fields["env"]
            first_preset, *more_presets = fields.pop("presets")
            fields["preset"] = first_preset
            if more_presets:
                fields["more_presets"] = more_presets
        version: Any = _VERSION
        if self.word_parts():
            version = [_VERSION, _PARTS_VERSION]
        text = json.dumps([version, fields, [list(self.words()), *probes]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]

    def words(self) -> tuple[str, ...]:
        """Return the words of all presets, in the order in which the tokenizer numbers them.

        There are none in the full style, whose tokenizer reads any text.
        """
        from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary

        # A dict keeps the order of first appearance.
        words: dict[str, None] = {}
        if self.style != PromptStyle.COMPACT:
            return ()
        for setup in self.setups():
            if setup.env == HANABI:
                # In the order of the shipped tokenizer, in which random games would not meet them.
                vocabulary = compact_vocabulary(setup.config.spec(), setup.config.deductions)
            else:
                vocabulary = game_words(setup, num_games=_WORD_GAMES)
            words |= dict.fromkeys(vocabulary)
        return tuple(words)

    def word_parts(self) -> dict[str, tuple[str, ...]]:
        """Return what words of the presets share with others, see `Environment.word_parts`."""
        parts: dict[str, tuple[str, ...]] = {}
        if self.style != PromptStyle.COMPACT:
            return parts
        for setup in self.setups():
            parts |= setup.environment.word_parts(setup.config)
        return parts


def _teachers(setup: Setup[Any], noise: float) -> list[Policy]:
    """Return the policies that play in turn.

    In Hanabi it is the hint bot, elsewhere the environment's `teachers`. Where it names none, it is
    random play in every other game, else its scripts.
    """
    if setup.env == HANABI:
        # It draws its noise itself, as when the shipped model was made.
        from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot

        return [rule_bot("hint-bot", noise)]
    policies: list[Policy] = []
    for name in _teacher_names(setup):
        script = make_script(setup, name).policy
        policies.append(NoisyPolicy(inner=script, noise=noise))
    return policies


def _teacher_names(setup: Setup[Any]) -> list[str]:
    environment = setup.environment
    if environment.teachers:
        return list(environment.teachers)
    scripts = [name for name in environment.policies if name != "random"]
    if "random" not in environment.policies:
        return scripts
    if not scripts:
        return ["random"]
    names = []
    for script in scripts:
        names += ["random", script]
    return names
