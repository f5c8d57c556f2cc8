"""The recipe of a tiny model: its words, the games that it learns from, and a hash of them."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Policy, Setup, no_such_preset
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.envs.workflows.environment import WORKFLOWS
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.vocabulary import game_texts, game_words
from hanabi_grpo.runs.fingerprint import model_fingerprint
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
"""Incremented when architecture, loss or schedule changes, which the data's probes do not show."""
_PARTS_VERSION = 1
"""The same for changes that only concern models whose words share parts."""
_NO_LIMIT = 1 << 30
"""Token limit of a conversation: more than any game has."""
_HASH_CHARACTERS = 16
_WORD_GAMES = 500
"""Number of random games from which the words of an environment are collected."""
_TURNS = 96
"""Conversations per step if each turn is a conversation."""
WIDTH_STEP = 64
"""The hidden size is a multiple of it: two attention heads of width 32 share keys and values."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    HANABI: {"num_games": 6000, "steps": 900, "single_turn_share": 0.4},
    "tic_tac_toe": {"num_games": 12000, "steps": 1200},
    "connect_four": {"num_games": 12000, "steps": 1200},
    "sokoban": {"num_games": 12000, "steps": 1200},
    **{name: {"num_games": 6000, "steps": 500} for name in WORKFLOWS},
}
"""Default fields of a recipe for specific environments.

Single turns suit Hanabi, because an observation there shows the whole state.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that determines the weights, except the number of threads.

    Example:
        Recipe.of("hanabi", presets=("laptop", "mini"), players=2, seed=42)
    """

    env: str = HANABI
    presets: tuple[str, ...] = ("laptop",)
    """In the order in which their words are numbered.

    A preset of another environment has that name as a prefix, e.g. "kuhn_poker:kuhn_poker".
    """
    players: int = 2
    """Used if the environment's config has such a field; the same holds for the next field."""
    legal_moves: bool = False
    """Whether prompts list the legal moves, as in the rollouts (HANABI_LEGAL_MOVES)."""
    deductions: str = "possible"
    """The deductions that prompts contain (HANABI_DEDUCTIONS)."""
    style: str = PromptStyle.COMPACT.value
    """Style of the prompts: `compact`, one word per fact, or `full`, English with the rules
    (HANABI_OBSERVATION in Hanabi, HANABI_STYLE elsewhere)."""
    teacher: str | None = None
    """The script whose games it learns from; None: those of the environment."""
    memory: str | None = None
    """How much of earlier turns a prompt contains (HANABI_MEMORY); None: the environment's
    default."""
    seed: int = 0
    """Seed of the games, the initial weights and the order of batches."""
    steps: int = 300
    """Optimizer steps."""
    num_games: int = 2000
    """Games of each preset."""
    noise: float = 0.4
    """Share of the teacher's actions that are random.

    They are learned as well, so the model makes legal moves and plays badly.
    """
    batch_size: int = 18
    """Conversations per step."""
    single_turn_share: float = 0.0
    """Share of the steps, starting from the first, that use conversations of one turn."""
    learning_rate: float = 3e-3
    logit_scale: float = 1.0
    """Factor by which the final norm is multiplied after half of the steps.

    Behind that norm every hidden state is equally long, so the length of a word's vector bounds its
    logit. Adapters change neither the norm nor the vectors: with 1, players who train from here may
    be unable to say a word with a probability above .96, however long they train.
    """
    width: int | None = None
    """Hidden size of the network, a multiple of `WIDTH_STEP`; None: the usual one for its words
    (`network.usual_shape`)."""
    layers: int | None = None
    """Number of layers of the network; None: the usual one for its words."""
    beliefs: PerPlayer = 0.0
    """Share of the learned replies that answer questions about hidden cards (`sft.beliefs`)."""
    start: str | None = None
    """Folder of a tiny model of the same shape whose weights it starts from (`transfer`); None:
    random weights."""

    @classmethod
    def of(cls, env: str, **fields: Any) -> "Recipe":
        """Return the recipe of an environment.

        Args:
            env: The environment.
            fields: Fields of the recipe; None: the default.

        Raises:
            SettingsError: The width is not a multiple of `WIDTH_STEP`.
        """
        environment = registry.get(env)
        values = {"noise": environment.teacher_noise, **_DEFAULTS.get(env, {})}
        if fields.get("style") == PromptStyle.FULL:
            # The first turn starts with the rules, unlike the others.
            values["single_turn_share"] = 0.0
        first_preset = next(iter(environment.presets.values()))
        if first_preset.window is not None or fields.get("memory") == "turn":
            # A conversation has only one reply; this gives about as many replies per step as usual.
            values.setdefault("batch_size", _TURNS)
        for name, value in fields.items():
            if value is not None:
                values[name] = value
        recipe = cls(env=env, **values)
        if recipe.width is not None and recipe.width % WIDTH_STEP:
            raise SettingsError(
                f"--width {recipe.width}: must be a multiple of {WIDTH_STEP}, e.g. "
                f"{WIDTH_STEP * math.ceil(recipe.width / WIDTH_STEP)}."
            )
        return recipe

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
                problems.append(f"--preset {name}: {no_such_preset(environment, preset)}")
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
        """Yield the texts of random games, and the teachers' replies in their games."""
        for setup in self.setups():
            yield from game_texts(setup, num_games=_WORD_GAMES)
            for episode in self._episodes(setup, _WORD_GAMES):
                for turn in episode.turns:
                    yield turn.reply

    def samples(
        self, setup: Setup[Any], chat: ChatFormat, num_games: int, *, first_game: int = 0
    ) -> Iterator[Sample]:
        """Play games of the teachers in turn; every legal reply is learned.

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
        """Return a short sha256 over the recipe, its words and each preset's first conversation.

        Raises:
            SettingsError: `start` is no folder with a model.
        """
        probes = []
        for setup in self.setups():
            first_sample = next(self.samples(setup, chat, 1))
            probes.append(list(first_sample.ids))
        fields = asdict(self)
        if self.deductions == "possible":
            # Left out, so that models from before the setting existed keep their hash.
            del fields["deductions"]
        if self.style == PromptStyle.COMPACT:
            del fields["style"]
        if not any(entries(self.beliefs).values()):
            del fields["beliefs"]
        if self.logit_scale == 1:
            del fields["logit_scale"]
        for optional in ("teacher", "memory", "width", "layers"):
            if fields[optional] is None:
                del fields[optional]
        if self.start is None:
            del fields["start"]
        else:
            fields["start"] = model_fingerprint(Path(self.start))
        if self.env == HANABI:
            # In this form, so that a recipe for one board has the same hash in every version of the
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

        Empty in the full style, whose tokenizer reads any text.
        """
        from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary

        # A dict keeps the order of first appearance.
        words: dict[str, None] = {}
        if self.style != PromptStyle.COMPACT:
            return ()
        for setup in self.setups():
            if setup.env == HANABI:
                # In the order of the shipped tokenizer, which random games would not reproduce.
                vocabulary = compact_vocabulary(setup.config.spec(), setup.config.deductions)
            else:
                vocabulary = game_words(setup, num_games=_WORD_GAMES)
            words |= dict.fromkeys(vocabulary)
        return tuple(words)

    def word_parts(self) -> dict[str, tuple[str, ...]]:
        """Return the parts that words of the presets share, see `Environment.word_parts`."""
        parts: dict[str, tuple[str, ...]] = {}
        if self.style != PromptStyle.COMPACT:
            return parts
        for setup in self.setups():
            parts |= setup.environment.word_parts(setup.config)
        return parts


def _teachers(setup: Setup[Any], noise: float) -> list[Policy]:
    """Return the policies that play in turn.

    In Hanabi this is the hint bot, elsewhere the environment's `teachers`. If the environment names
    no teachers, random play alternates with its scripts.
    """
    if setup.env == HANABI:
        # The bot draws its own noise, as when the shipped model was built.
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
