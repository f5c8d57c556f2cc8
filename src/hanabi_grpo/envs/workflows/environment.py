"""The four workflows as environments, and scripts that are right as often as one likes."""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from hanabi_grpo.envs import base
from hanabi_grpo.envs.workflows.config import (
    DebateConfig,
    PioneerObserverConfig,
    SummaryConfig,
    VoteConfig,
    WorkflowConfig,
)
from hanabi_grpo.envs.workflows.game import DebateGame, PioneerObserverGame, VoteGame, WorkflowGame
from hanabi_grpo.envs.workflows.problems import (
    CHAIN_SUM,
    Problem,
    Source,
    draw_problem,
    load_source,
)

SYSTEM = (
    "You solve problems, alone or with others. Think, then end your reply with a line that begins "
    "with Answer: and "
    "holds nothing but the answer. Where you are shown what other players answered, weigh it: "
    "they may be wrong."
)
"""Of every seat in every workflow, so that the first step is the same question in all of them."""
NOISY = 0.7
"""How often the script `noisy` is right by itself."""
_GUESSES = 50
_MOST_WORDS = 1000
C = TypeVar("C", bound=WorkflowConfig)


class Workflow(base.Environment[C], Generic[C]):
    """A way to answer problems together; subclasses say who answers when."""

    Game: Callable[..., WorkflowGame[Any]] = WorkflowGame
    teachers = ("noisy",)
    teacher_noise = 0.0

    def __init__(self) -> None:
        self.presets = {self.name: self.Config(preset=self.name)}
        chances = {"random": 0.0, "noisy": NOISY, "solver": 1.0}
        self.policies = {
            name: partial(Solver, self, name, right) for name, right in chances.items()
        }

    def steps(self, config: C) -> tuple[tuple[int, ...], ...]:
        """Return the seats that answer in each step."""
        raise NotImplementedError

    def returns(self, config: C) -> Mapping[str, tuple[float, float]]:
        """Return per kind of reward beside `correct` and `team` its least and greatest sum in an
        episode.
        """
        return {}

    def source(self, config: C) -> Source:
        """Return where the problems come from; SettingsError where they cannot be had."""
        return load_source(config.problems, config.chain_terms, config.chain_highest)

    def problem(self, config: C, *, split: str, seed: int) -> Problem:
        """Return the problem of a start."""
        return draw_problem(self.source(config), split, seed)

    def spec(self, config: C) -> base.EnvSpec:
        """Return what others have to know; the problems count by their content, wherever the file
        is.
        """
        ranges = {"reward_correct": (0.0, 1.0), "reward_team": (0.0, 1.0), **self.returns(config)}
        paid = {name: (float(getattr(config, name)), *ends) for name, ends in ranges.items()}
        ends = [sorted((weight * low, weight * high)) for weight, low, high in paid.values()]
        alike = all(
            name in ("reward_team", "reward_sum") for name, (weight, *_) in paid.items() if weight
        )
        fields, roles = config.model_dump(exclude={"preset", "problems"}), self.roles(config)
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, 1, SYSTEM, fields, self.source(config).digest),
            num_players=len(roles),
            roles=roles,
            payoff="team" if alike else "general",
            max_turns=len(self.steps(config)),
            return_range=(sum(low for low, _ in ends), sum(high for _, high in ends)),
            bad_reply="skip",
            score="final",
            max_score=1.0,
            disjoint_splits=True,
        )

    def roles(self, config: C) -> tuple[str, ...]:
        """Return what each seat is."""
        return ("solver",) * (1 + max(map(max, self.steps(config))))

    def system(self, config: C, player: int) -> str:
        return "" if config.style == "compact" else SYSTEM

    def reply_words(self, config: C) -> tuple[str, ...]:
        """Return every sum that a compact answer may be, one word each, where they are few."""
        least, most = (
            -(config.chain_terms - 1) * config.chain_highest,
            config.chain_terms * config.chain_highest,
        )
        if config.style != "compact" or config.problems != CHAIN_SUM or most - least > _MOST_WORDS:
            return ()
        return (*map(str, range(least, most + 1)), "=", "other", "own", "none")

    def reset(self, config: C, *, split: str, seed: int) -> WorkflowGame[C]:
        return self.Game(
            config,
            self.steps(config),
            self.source(config),
            self.problem(config, split=split, seed=seed),
        )

    def start_id(self, config: C, *, split: str, seed: int) -> str:
        return self.problem(config, split=split, seed=seed).question

    def render(self, config: C, episode: base.Episode) -> Iterator[base.Frame]:
        """Yield what each player was shown and said, and at the end the solution."""
        *frames, last = super().render(config, episode)
        yield from frames
        solution = self.problem(config, split=episode.suite, seed=episode.seed).answer
        yield base.Frame(
            title=last.title, text=f"{last.text}\nsolution: {solution or 'not one alone'}"
        )


class Vote(Workflow[VoteConfig]):
    """Nobody sees another's answer."""

    name, Config, Game = "vote", VoteConfig, VoteGame

    def steps(self, config: VoteConfig) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(config.players)),)

    def returns(self, config: VoteConfig) -> Mapping[str, tuple[float, float]]:
        return {"reward_difference": (-1.0, 1.0)}


class Debate(Workflow[DebateConfig]):
    """All answer again after each round."""

    name, Config, Game = "debate", DebateConfig, DebateGame

    def steps(self, config: DebateConfig) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(config.players)),) * config.rounds

    def returns(self, config: DebateConfig) -> Mapping[str, tuple[float, float]]:
        return {
            "reward_difference": (-1.0, 1.0),
            "reward_later_rounds": (0.0, float(config.rounds)),
        }


class Summary(Workflow[SummaryConfig]):
    """The last seat has the last word."""

    name, Config = "summary", SummaryConfig

    def steps(self, config: SummaryConfig) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(config.players - 1)), (config.players - 1,))

    def roles(self, config: SummaryConfig) -> tuple[str, ...]:
        return (*["worker"] * (config.players - 1), "writer")


class PioneerObserver(Workflow[PioneerObserverConfig]):
    """Both are paid for both answers."""

    name, Config, Game = "pioneer_observer", PioneerObserverConfig, PioneerObserverGame

    def steps(self, config: PioneerObserverConfig) -> tuple[tuple[int, ...], ...]:
        return ((0,), (1,))

    def roles(self, config: PioneerObserverConfig) -> tuple[str, ...]:
        return ("pioneer", "observer")

    def returns(self, config: PioneerObserverConfig) -> Mapping[str, tuple[float, float]]:
        return {"reward_sum": (0.0, 2.0)}


class Solver:
    """Knows the solution and gives it with the chance `right`.

    Else it takes over one of the answers that it is shown, or where it is shown none, that of
    another problem; with no chance at all always the latter."""

    def __init__(self, workflow: Workflow[Any], name: str, right: float) -> None:
        self.workflow, self.name, self.right = workflow, name, right

    def seat(self, player: int, *, task: base.Task[Any], game: int) -> base.ScriptSeat:
        """Return a seat whose generator depends only on the script, the player, the task and the
        episode's number.
        """
        config, source = task.config, self.workflow.source(task.config)
        problem = self.workflow.problem(config, split=task.split, seed=task.seed)

        def guess(rng: random.Random) -> Problem:
            found = (source.make(rng.randrange(1 << 30)) for _ in range(_GUESSES))
            return next((other for other in found if other.answer), Problem("", "0"))

        def choose(seen: base.Observation, rng: random.Random) -> str:
            shown = [text for text in seen.view().others if seen.parse(text)]
            if rng.random() < self.right:
                found = problem if problem.answer else guess(rng)
            elif self.right and shown:
                return rng.choice(shown)
            else:
                found = guess(rng)
            if config.style == "compact":
                return " = ".join((*found.work, found.answer))
            return f"Answer:{chr(10) if chr(10) in found.answer else ' '}{found.answer}"

        return base.ScriptSeat(
            choose,
            random.Random(repr((self.name, self.right, player, task.split, task.seed, game))),
        )


VOTE, DEBATE, SUMMARY, PIONEER_OBSERVER = Vote(), Debate(), Summary(), PioneerObserver()
WORKFLOWS = tuple(one.name for one in (VOTE, DEBATE, SUMMARY, PIONEER_OBSERVER))
