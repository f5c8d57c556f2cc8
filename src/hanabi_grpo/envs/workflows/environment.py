"""The workflows as environments, and scripts that are right with a given probability."""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from hanabi_grpo.envs import base
from hanabi_grpo.envs.tools.calculator import CALCULATOR
from hanabi_grpo.envs.tools.calls import RESULT, SHORT_WORDS
from hanabi_grpo.envs.tools.tool import Tool
from hanabi_grpo.envs.workflows.config import (
    DebateConfig,
    PioneerObserverConfig,
    ReviseConfig,
    SummaryConfig,
    VoteConfig,
    WorkflowConfig,
)
from hanabi_grpo.envs.workflows.game import (
    CRITIC,
    SOLVER,
    WRONG,
    DebateGame,
    PioneerObserverGame,
    ReviseGame,
    VoteGame,
    WorkflowGame,
)
from hanabi_grpo.envs.workflows.problems import (
    CHAIN_SUM,
    REASONING_GYM,
    Problem,
    Source,
    draw_problem,
    load_source,
    with_math,
)
from hanabi_grpo.types import player_name

SYSTEM = (
    "You solve problems, alone or with others. Think, then end your reply with a line that begins "
    "with Answer: and holds nothing but the answer. Where you are shown what other players "
    "answered, weigh it: they may be wrong."
)
"""System message of every seat, so that the first step is the same question in all workflows."""
CRITIC_SYSTEM = (
    "Another player answers a problem, and you comment on the answer; then the player answers "
    "again. Think, then say whether the answer is right, and where it is not, what is wrong with "
    "it. The player reads all that you write beside your thoughts."
)
"""System message of the critic in `revise`."""
NOISY = 0.7
"""Probability that the script `noisy` is right on its own."""
_SCRIPTS = {"random": 0.0, "noisy": NOISY, "solver": 1.0}
"""Scripts by name, with the probability that each is right on its own."""
WITH_CALCULATOR = "-calculator"
"""Suffix of the presets whose seats have a calculator."""
_LONG_TERMS = 4
"""Number of terms in such a preset's chain sums: more than a tiny model can add reliably."""
_LONG_HIGHEST = 9
"""Largest term in these sums."""
CALLS = 0.5
"""Probability that the script `noisy` calls the calculator, if it has one."""
_RULES_VERSION = 1
"""Part of the environment's hash; increased when the rules change."""
_COMMON_REWARDS = ("reward_team", "reward_sum", "reward_gain")
"""Rewards that are the same for every seat."""
_ATTEMPTS = 50
"""Maximum number of problems tried until one has a solution to use as a wrong guess."""
_NUM_GUESSES = 1 << 30
"""Range of numbers from which the problem for a wrong guess is drawn."""
_ASKS = " = ?"
"""Suffix of a chain-sum question."""
_MOST_WORDS = 1000
"""Maximum number of sums that `reply_words` lists."""

Range = tuple[float, float]
"""Minimum and maximum sum of one kind of reward in an episode, at weight 1."""

C = TypeVar("C", bound=WorkflowConfig)


class Workflow(base.Environment[C], Generic[C]):
    """A way to answer problems together; subclasses define who answers when."""

    Game: Callable[..., WorkflowGame[Any]] = WorkflowGame
    teachers = ("noisy",)
    teacher_noise = 0.0
    outside_fields: Mapping[str, tuple[str, ...]] = {"problems": (CHAIN_SUM,)}

    def __init__(self) -> None:
        with_calculator = f"{self.name}{WITH_CALCULATOR}"
        self.presets = {
            self.name: self.Config(preset=self.name),
            with_calculator: self.Config(
                preset=with_calculator,
                tools=CALCULATOR.name,
                chain_terms=_LONG_TERMS,
                chain_highest=_LONG_HIGHEST,
            ),
        }
        policies = {}
        for name, chance in _SCRIPTS.items():
            policies[name] = partial(Solver, self, name, chance)
        self.policies = policies

    def steps(self, config: C) -> tuple[tuple[int, ...], ...]:
        """Return the seats that answer in each step."""
        raise NotImplementedError

    def step_of_round(self, config: C, number: int) -> int:
        """Return the step of round `number`, counted from 1."""
        return number - 1

    def reward_ranges(self, config: C) -> Mapping[str, Range]:
        """Return the range of each reward setting other than `reward_correct` and `reward_team`."""
        return {}

    def source(self, config: C) -> Source:
        """Return the problem source; raises a SettingsError if it is unavailable."""
        source = load_source(config.problems, config.chain_terms, config.chain_highest)
        return with_math(source) if config.verify == "math" else source

    def outside(self, config: C) -> Mapping[str, base.Outside]:
        """Return the problem source, unless problems are generated here."""
        if config.problems == CHAIN_SUM:
            return {}
        source = self.source(config)
        outside = base.Outside(
            value=config.problems, name=source.public_name, digest=source.public_digest
        )
        return {"problems": outside}

    def may_block(self, config: C) -> bool:
        """Return True if a problem or an answer may take seconds.

        Some problems of reasoning-gym do, and so does checking some answers with math-verify.
        """
        return config.problems.startswith(REASONING_GYM) or config.verify == "math"

    def tools(self, config: C) -> tuple[Tool, ...]:
        return (CALCULATOR,)

    def has_short_calls(self, config: C) -> bool:
        return config.style == "compact"

    def problem(self, config: C, *, split: str, seed: int) -> Problem:
        """Return the problem of a start."""
        return draw_problem(self.source(config), split, seed)

    def spec(self, config: C) -> base.EnvSpec:
        """Return the spec; problems are hashed by content, wherever their file is."""
        fields = config.rule_fields(exclude=("problems",))
        source = self.source(config)
        digest = source.digest
        if source.verifier:
            digest += f" {source.verifier}"
        roles = self.roles(config)
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, _RULES_VERSION, SYSTEM, fields, digest),
            num_players=len(roles),
            roles=roles,
            payoff="team" if self._pays_all_alike(config) else "general",
            max_turns=len(self.steps(config)),
            return_range=self._return_range(config),
            bad_reply="skip",
            score="final",
            max_score=1.0,
            disjoint_splits=True,
        )

    def roles(self, config: C) -> tuple[str, ...]:
        """Return the role of each seat."""
        last_seat = max(max(seats) for seats in self.steps(config))
        return ("solver",) * (last_seat + 1)

    def system(self, config: C, player: int) -> str:
        return "" if config.style == "compact" else SYSTEM

    def person_rules(self, config: C, player: int) -> str:
        roles = self.roles(config)
        return (
            f"You are {player_name(player)} ({roles[player]}) of {len(roles)} players who solve a "
            "problem. Type your answer. Where you are shown what others answered, weigh it: they "
            "may be wrong."
        )

    def reply_words(self, config: C) -> tuple[str, ...]:
        """Return all sums possible in compact answers, one word each, if they are not too many."""
        if config.style != "compact" or config.problems != CHAIN_SUM:
            return ()
        least = -(config.chain_terms - 1) * config.chain_highest
        greatest = config.chain_terms * config.chain_highest
        if greatest - least > _MOST_WORDS:
            return ()
        sums = map(str, range(least, greatest + 1))
        words = (*sums, "=", "other", "own", "none")
        tools = base.tools_of(self, config)
        if not tools:
            return words
        signs = ("+", "-")
        return (*words, *signs, *(tool.name for tool in tools), *SHORT_WORDS)

    def reset(self, config: C, *, split: str, seed: int) -> WorkflowGame[C]:
        problem = self.problem(config, split=split, seed=seed)
        return self.Game(config, self.steps(config), self.source(config), problem)

    def start_id(self, config: C, *, split: str, seed: int) -> str:
        return self.problem(config, split=split, seed=seed).question

    def render(self, config: C, episode: base.Episode) -> Iterator[base.Frame]:
        """Yield what each player was shown and said, and finally the solution."""
        *frames, last = super().render(config, episode)
        yield from frames
        answer = self.problem(config, split=episode.suite, seed=episode.seed).answer
        solution = answer or "not unique"
        yield base.Frame(title=last.title, text=f"{last.text}\nsolution: {solution}")

    def _all_ranges(self, config: C) -> dict[str, Range]:
        return {
            "reward_correct": (0.0, 1.0),
            "reward_team": (0.0, 1.0),
            **self.reward_ranges(config),
        }

    def _pays_all_alike(self, config: C) -> bool:
        """Return whether all rewards in use are the same for every seat."""
        for name in self._all_ranges(config):
            weight = getattr(config, name)
            if weight and name not in _COMMON_REWARDS:
                return False
        return True

    def _return_range(self, config: C) -> Range:
        """Return the minimum and maximum return; a negative weight swaps a reward's bounds."""
        least = 0.0
        greatest = 0.0
        for name, (low, high) in self._all_ranges(config).items():
            weight = float(getattr(config, name))
            least += min(weight * low, weight * high)
            greatest += max(weight * low, weight * high)
        return least, greatest


class Vote(Workflow[VoteConfig]):
    """No player sees another's answer."""

    name = "vote"
    Config = VoteConfig
    Game = VoteGame

    def steps(self, config: VoteConfig) -> tuple[tuple[int, ...], ...]:
        everybody = tuple(range(config.players))
        return (everybody,)

    def reward_ranges(self, config: VoteConfig) -> Mapping[str, Range]:
        return {"reward_difference": (-1.0, 1.0)}


class Debate(Workflow[DebateConfig]):
    """All seats answer again in each round."""

    name = "debate"
    Config = DebateConfig
    Game = DebateGame

    def steps(self, config: DebateConfig) -> tuple[tuple[int, ...], ...]:
        everybody = tuple(range(config.players))
        return (everybody,) * config.rounds

    def reward_ranges(self, config: DebateConfig) -> Mapping[str, Range]:
        return {
            "reward_difference": (-1.0, 1.0),
            "reward_later_rounds": (0.0, float(config.rounds)),
        }


class Summary(Workflow[SummaryConfig]):
    """The last seat writes the final answer."""

    name = "summary"
    Config = SummaryConfig

    def steps(self, config: SummaryConfig) -> tuple[tuple[int, ...], ...]:
        writer = config.players - 1
        workers = tuple(range(writer))
        return (workers, (writer,))

    def roles(self, config: SummaryConfig) -> tuple[str, ...]:
        num_workers = config.players - 1
        return ("worker",) * num_workers + ("writer",)


class PioneerObserver(Workflow[PioneerObserverConfig]):
    """Both players are rewarded for both answers."""

    name = "pioneer_observer"
    Config = PioneerObserverConfig
    Game = PioneerObserverGame

    def steps(self, config: PioneerObserverConfig) -> tuple[tuple[int, ...], ...]:
        return ((0,), (1,))

    def roles(self, config: PioneerObserverConfig) -> tuple[str, ...]:
        return ("pioneer", "observer")

    def reward_ranges(self, config: PioneerObserverConfig) -> Mapping[str, Range]:
        return {"reward_sum": (0.0, 2.0)}


class Revise(Workflow[ReviseConfig]):
    """One seat answers repeatedly; a critic may comment in between."""

    name = "revise"
    Config = ReviseConfig
    Game = ReviseGame

    def steps(self, config: ReviseConfig) -> tuple[tuple[int, ...], ...]:
        if config.feedback != "comment":
            return ((SOLVER,),) * config.rounds
        return ((SOLVER,), (CRITIC,)) * (config.rounds - 1) + ((SOLVER,),)

    def step_of_round(self, config: ReviseConfig, number: int) -> int:
        return 2 * (number - 1) if config.feedback == "comment" else number - 1

    def roles(self, config: ReviseConfig) -> tuple[str, ...]:
        has_critic = config.feedback == "comment" and config.rounds > 1
        return ("solver", "critic") if has_critic else ("solver",)

    def system(self, config: ReviseConfig, player: int) -> str:
        if config.style == "full" and player == CRITIC:
            return CRITIC_SYSTEM
        return super().system(config, player)

    def person_rules(self, config: ReviseConfig, player: int) -> str:
        if player == CRITIC:
            return CRITIC_SYSTEM
        return super().person_rules(config, player)

    def reply_words(self, config: ReviseConfig) -> tuple[str, ...]:
        words = super().reply_words(config)
        # Independent of the feedback: one tiny model serves all feedback settings.
        return (*words, WRONG) if words else ()

    def reward_ranges(self, config: ReviseConfig) -> Mapping[str, Range]:
        return {"reward_gain": (-1.0, 1.0)}


class Solver:
    """A script that knows the solution and gives it with probability `right`.

    Otherwise it copies one of the answers that it is shown, or if there are none, gives the answer
    to another problem. If `right` is 0, it always does the latter.

    If a calculator can compute the sum, `noisy` calls it in a share `CALLS` of its turns and
    answers with the result.
    """

    def __init__(self, workflow: Workflow[Any], name: str, right: float) -> None:
        self.workflow = workflow
        self.name = name
        self.right = right

    def seat(self, player: int, *, task: base.Task[Any], game: int) -> base.ScriptSeat:
        """Return a seat with its own random generator.

        The generator depends only on the script, player, task and episode number.
        """
        config = task.config
        source = self.workflow.source(config)
        problem = self.workflow.problem(config, split=task.split, seed=task.seed)

        def choose(seen: base.Observation, rng: random.Random) -> str:
            if seen.calls:
                return _reply(Problem("", _told(seen)), config.style)
            if self._may_call(config, seen) and rng.random() < CALLS:
                return seen.call_of(CALCULATOR, problem.question.removesuffix(_ASKS))
            others_answers = []
            for text in seen.view().others:
                if text != base.SKIP and seen.parse(text):
                    others_answers.append(text)
            if rng.random() < self.right:
                solved = problem if problem.answer else _other_problem(source, rng)
            elif self.right and others_answers:
                return rng.choice(others_answers)
            else:
                solved = _other_problem(source, rng)
            return _reply(solved, config.style)

        key = (self.name, self.right, player, task.split, task.seed, game)
        return base.ScriptSeat(choose, random.Random(repr(key)))

    def _may_call(self, config: WorkflowConfig, seen: base.Observation) -> bool:
        """Return whether this script calls tools, and the calculator can solve the problem."""
        is_noisy = 0 < self.right < 1
        return is_noisy and config.problems == CHAIN_SUM and CALCULATOR in seen.tools


def _told(seen: base.Observation) -> str:
    """Return the last number that the calculator returned."""
    first_line = seen.calls[-1].result.partition("\n")[0]
    return first_line.removeprefix(RESULT).strip()


def _other_problem(source: Source, rng: random.Random) -> Problem:
    """Return a random problem whose solution is known."""
    for _ in range(_ATTEMPTS):
        problem = source.make(rng.randrange(_NUM_GUESSES))
        if problem.answer:
            return problem
    return Problem("", "0")


def _reply(problem: Problem, style: str) -> str:
    """Return the solution as a reply, after its intermediate results or after "Answer:"."""
    answer = problem.answer
    if style == "compact":
        return " = ".join((*problem.work, answer))
    if "\n" in answer:
        return f"Answer:\n{answer}"
    return f"Answer: {answer}"


VOTE = Vote()
DEBATE = Debate()
SUMMARY = Summary()
PIONEER_OBSERVER = PioneerObserver()
REVISE = Revise()
WORKFLOWS = (VOTE.name, DEBATE.name, SUMMARY.name, PIONEER_OBSERVER.name, REVISE.name)
"""Names of all workflows."""
