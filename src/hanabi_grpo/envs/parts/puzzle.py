"""Common code of puzzles in parts: each seat speaks once, in turn, a word from a small vocabulary.

A seat reads only its part of the puzzle and the words said before its turn. The best scores with
and without words can therefore be computed: no seat can solve the puzzle alone, however well it is
trained.
"""

import copy
import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

from hanabi_grpo.envs import base
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.people import Scene, plain_choices, without_format
from hanabi_grpo.envs.replies import last_choice
from hanabi_grpo.types import Episode

SPEAKER = 0
"""The seat that speaks first, which knows only its own part."""

BABBLE = "babble"
"""Name of the script that draws one fixed word for each possible view of a seat."""
_TABLES_REMEMBERED = 32
"""Number of tables that are kept; a large one takes 4 MB."""
_MOST_TABULATED = 1 << 14
"""Maximum number of puzzles for which these words are a table in memory."""


class PuzzleConfig(StateConfig):
    """Settings of every puzzle in parts."""

    channel: Literal["word", "constant", "random"] = "word"
    """What later seats hear: the word itself (word) or, as controls, always the first word of the
    vocabulary (constant) or a random word (random).
    """
    reward_team: float = 1.0
    """Reward of every seat, multiplied by the share of right answers."""


C = TypeVar("C", bound=PuzzleConfig)


class Parts(NamedTuple):
    """What a seat may know."""

    seen: tuple[int, ...]
    """The seat's part of the puzzle."""
    heard: tuple[str, ...]
    """The words of earlier seats, as passed through the channel."""


class PuzzleGame(base.Game, Generic[C]):
    """One puzzle; subclasses define which numbers each seat sees and which answers are right."""

    def __init__(self, config: C, numbers: tuple[int, ...], noise: tuple[str, ...]) -> None:
        """Start a puzzle.

        Args:
            config: The settings.
            numbers: The whole puzzle.
            noise: The word heard from each seat if the channel is "random".
        """
        self.config = config
        self.numbers = numbers
        self.noise = noise
        self.said: list[str] = []

    def num_seats(self) -> int:
        """Return the number of seats."""
        raise NotImplementedError

    def seen(self, player: int) -> tuple[int, ...]:
        """Return the numbers that a seat reads."""
        raise NotImplementedError

    def words(self, player: int) -> tuple[str, ...]:
        """Return the words that a seat may say."""
        raise NotImplementedError

    def answers(self) -> Mapping[int, str]:
        """Return the right answer for each seat that must give one."""
        raise NotImplementedError

    def redrawn(self, player: int, rng: random.Random) -> tuple[int, ...]:
        """Return random numbers that look the same to the seat."""
        raise NotImplementedError

    def text(self, player: int, view: Parts) -> str:
        """Return the message in the full style."""
        raise NotImplementedError

    def code(self, view: Parts) -> str:
        """Return the message in the compact style: one word for everything that the seat knows.

        Every seat's policy is then a table with one row per word, so nothing has to be computed
        before it can be learned.
        """
        words = []
        if view.heard:
            words += ["heard", *view.heard]
        if view.seen:
            words += ["sees", *map(str, view.seen)]
        return "-".join(words) or "nothing"

    def share_right(self, answers: Mapping[int, str]) -> float:
        """Return the share of seats with an answer to give whose answer is right."""
        right = self.answers()
        num_right = sum(answers.get(seat) == answer for seat, answer in right.items())
        return num_right / len(right)

    def to_act(self) -> tuple[int, ...]:
        return (len(self.said),) if len(self.said) < self.num_seats() else ()

    def view(self, player: int) -> Parts:
        return Parts(self.seen(player), self._heard(player))

    def state_message(self, player: int) -> str:
        view = self.view(player)
        return self.code(view) if self.config.style == "compact" else self.text(player, view)

    def scene(self, player: int) -> Scene:
        return Scene(
            table=self.text(player, self.view(player)), choices=plain_choices(self.legal(player))
        )

    def legal(self, player: int) -> tuple[str, ...]:
        return self.words(player) if player in self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        return last_choice(reply, self.words(player))

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Take one word; after the last one, pay all seats the same reward."""
        [word] = actions.values()
        self.said.append(word)
        if self.to_act():
            return [{} for _ in range(self.num_seats())]
        share_right = self.share_right(dict(enumerate(self.said)))
        return [{"team": self.config.reward_team * share_right} for _ in range(self.num_seats())]

    def result(self) -> Mapping[str, float]:
        """Return the share of right answers; 0 before the end."""
        is_over = not self.to_act()
        return {"right": self.share_right(dict(enumerate(self.said))) if is_over else 0.0}

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin.said = list(self.said)
        return twin

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return the whole puzzle, unless the seat sees all of it."""
        if len(self.seen(player)) == len(self.numbers):
            return {}
        return {"the other parts": self.numbers}

    def resampled(self, player: int, rng: random.Random) -> Self:
        """Return a game with other numbers in the parts that the seat does not see.

        Any word is possible for any numbers, so the words said so far stay possible.
        """
        other = self.copy()
        other.numbers = self.redrawn(player, rng)
        return other

    def _heard(self, player: int) -> tuple[str, ...]:
        """Return what a seat heard before its turn; it hears nothing afterward."""
        said = tuple(self.said[:player])
        if self.config.channel == "random":
            return self.noise[: len(said)]
        if self.config.channel == "constant":
            return tuple(self.words(seat)[0] for seat in range(len(said)))
        return said


class Puzzle(base.Environment[C], Generic[C]):
    """An environment of puzzles in parts, with the best possible scores."""

    Game: Callable[..., PuzzleGame[Any]]
    rules_version = 1
    """Part of the environment's hash; increased when the rules change."""
    teachers = (BABBLE,)
    teacher_noise = 0.5

    def num_seats(self, config: C) -> int:
        """Return the number of players."""
        raise NotImplementedError

    def roles(self, config: C) -> tuple[str, ...]:
        """Return the role of each player."""
        raise NotImplementedError

    def limits(self, config: C) -> tuple[int, ...]:
        """Return the number of possible values, from 0, of each number in a puzzle."""
        raise NotImplementedError

    def ceiling(self, config: C) -> float:
        """Return the highest mean share of right answers of any team that hears the words."""
        raise NotImplementedError

    def ceiling_without_words(self, config: C) -> float:
        """Return the same for a team that hears no words.

        This also bounds a single seat and any vote: answers of a seat that hears nothing depend
        only on its part, and so does the majority of many such answers.
        """
        raise NotImplementedError

    def bits_needed(self, config: C) -> float:
        """Return the bits that the first seat must send for the best possible score."""
        raise NotImplementedError

    def spec(self, config: C) -> base.EnvSpec:
        fields = config.rule_fields()
        texts = [self.system(config, player) for player in range(self.num_seats(config))]
        is_heard = config.channel == "word"
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, self.rules_version, texts, fields),
            num_players=self.num_seats(config),
            roles=self.roles(config),
            payoff="team",
            max_turns=self.num_seats(config),
            return_range=(min(0.0, config.reward_team), max(0.0, config.reward_team)),
            score="right",
            max_score=1.0,
            attainable=self.ceiling(config) if is_heard else self.ceiling_without_words(config),
        )

    def person_rules(self, config: C, player: int) -> str:
        readable = config.model_copy(update={"style": "full"})
        return without_format(self.system(readable, player))

    def reset(self, config: C, *, split: str, seed: int) -> PuzzleGame[C]:
        """Draw the numbers uniformly; every split contains all puzzles."""
        numbers = []
        for place, limit in enumerate(self.limits(config)):
            numbers.append(base.draw(self.name, split, seed, place, below=limit))
        game = self.Game(config, tuple(numbers), ())
        noise = []
        for seat in range(self.num_seats(config) - 1):
            words = game.words(seat)
            drawn = base.draw(self.name, "noise", split, seed, seat, below=len(words))
            noise.append(words[drawn])
        game.noise = tuple(noise)
        return game

    def start_id(self, config: C, *, split: str, seed: int) -> str:
        return str(self.reset(config, split=split, seed=seed).numbers)

    def picture(self, config: C, game: PuzzleGame[C]) -> str:
        return f"numbers {game.numbers}, said {' '.join(game.said) or 'nothing'}"

    def metrics(self, config: C, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the mean share of right answers, and the words and bits that the first seat used.

        The bits are the entropy of its words over the episodes; more than `bits_needed` is useless.
        """
        figures = super().metrics(config, episodes)
        said: Counter[str] = Counter()
        for episode in episodes:
            said.update(turn.action for turn in episode.turns if turn.player == SPEAKER)
        figures["words_used"] = float(len(said))
        figures["word_bits"] = entropy(said.values())
        return figures


def entropy(counts: Sequence[int] | Any) -> float:
    """Return the entropy of a distribution in bits.

    Args:
        counts: Number of occurrences of each value.
    """
    counted = [count for count in counts if count]
    total = sum(counted)
    return sum(count / total * math.log2(total / count) for count in counted)


def code_script(name: str, choose: Callable[[int, Parts, tuple[str, ...]], str]) -> base.Script:
    """Return a script that plays a fixed code.

    Args:
        name: Name of the script.
        choose: Returns the word, given the seat, its view and the words that it may say.
    """

    def act(seen: base.Observation, rng: random.Random) -> str:
        return choose(seen.player, seen.view(), seen.legal() or ())

    return base.Script(name, act)


class Babble:
    """A script with an arbitrary word for each possible view of a seat, without an agreed code.

    The words are drawn uniformly from those that the seat may say, and are the same on every
    machine, so the script is right about as often as chance. A tiny model that imitates it learns
    to distinguish its messages, but no code.
    """

    name = BABBLE

    def seat(self, player: int, *, task: base.Task[Any], game: int) -> base.ScriptSeat:
        """Return a seat with its table of words."""
        environment = task.environment
        if not isinstance(environment, Puzzle):
            raise TypeError(f"{BABBLE}: {environment.name} is not a puzzle in parts")
        if math.prod(environment.limits(task.config)) > _MOST_TABULATED:
            return base.ScriptSeat(_babble, random.Random(0))
        table = _babbled(environment, task.config, player)
        return base.ScriptSeat(lambda seen, rng: table[seen.view()], random.Random(0))


def _babble(seen: base.Observation, rng: random.Random) -> str:
    """Return the word for one view, drawn individually if there are too many for a table."""
    words = seen.legal() or ("",)
    drawn = base.draw(BABBLE, seen.player, tuple(seen.view()), below=len(words))
    return words[drawn]


@functools.lru_cache(maxsize=_TABLES_REMEMBERED)
def _babbled(environment: Puzzle[Any], config: PuzzleConfig, player: int) -> dict[Parts, str]:
    """Return a word for each view of a seat, assigned in random order."""
    seen = set()
    for numbers in itertools.product(*map(range, environment.limits(config))):
        game = environment.Game(config, numbers, ())
        seen.add(game.seen(player))
    heard = itertools.product(*(game.words(seat) for seat in range(player)))
    views = [Parts(*both) for both in itertools.product(sorted(seen), heard)]
    views.sort(key=lambda view: base.draw(BABBLE, player, tuple(view), below=1 << 32))
    words = game.words(player)
    return {view: words[number % len(words)] for number, view in enumerate(views)}
