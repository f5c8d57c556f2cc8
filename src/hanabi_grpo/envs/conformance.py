"""Checks that any environment must pass; `check` runs all of them.

    from hanabi_grpo.envs.conformance import check
    print(check(MY_GAME, MY_GAME.presets["small"]))

A failed check raises `ConformanceError`, which reports the expectation, where it was violated, and
what was found instead. The checked games are drawn from a fixed seed, so failures are reproducible.
A passed check covers only the positions that occurred and the values that `Game.hidden` lists: a
secret that the environment does not list has not been tested.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import (
    FORFEIT,
    SKIP,
    C,
    Environment,
    EnvSpec,
    Game,
    Observation,
    Setup,
    Task,
)
from hanabi_grpo.envs.referee import Referee, parts_of, play_scripts
from hanabi_grpo.envs.tools.tool import Tool, run_tool
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.types import REPLY_PARTS, CallError, Episode, ReplyKind

STRANGE_REPLIES = (
    "",
    " \n\t",
    "\x00",
    "\ud800",
    "\ufffd" * 40,
    "{}",
    "-1",
    "9" * 400,
    "<think>",
    "</think>",
    "<answer></answer>",
    "\u202eevil",
    "0" * 20_000,
    "a\n" * 2_000,
    "%s %n {0}",
    FORFEIT,
    SKIP,
)
"""What a model may write instead of an action; none of these may raise an error."""
_NUM_SPLIT_SEEDS = 50
"""Number of starts per split in `check_starts`."""
_NUM_REPEATED_STARTS = 20
"""Number of these starts that are started twice."""
_STARTS_OF_ANOTHER_PROCESS = "from hanabi_grpo.envs.conformance import print_starts; print_starts()"
"""Program of the other process of `check_another_process`."""
_NOT_FOUND = 3
"""Exit code of that process if it does not know the environment."""
_MAX_PROCESS_SECONDS = 300
"""Time limit of that process."""
_NUM_TOOL_EPISODES = 4
"""Number of episodes in which `check_tools` calls tools."""
_TOOL_ARGUMENTS = ("1 + 1", "a", "Paris", "[", "((((", "9 ** 9 ** 9", "1 / 0")
"""Arguments of these calls, in addition to `STRANGE_REPLIES`."""
_MAX_TOOL_SECONDS = 0.05
"""Thread time limit for one call to a tool that is not slow."""
_ROUNDING = 1e-9
"""Tolerance for comparing sums of rewards."""


class ConformanceError(HanabiGrpoError, AssertionError):
    """An environment violates the interface that it implements."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What the checks covered when nothing failed."""

    env: str
    preset: str
    num_episodes: int = 0
    num_steps: int = 0
    num_copies: int = 0
    """Positions whose copy was played alongside the original; 0 if games cannot be copied."""
    num_starts: int = 0
    """Number of distinct starts among the episodes."""
    hidden_at: dict[str, Counter[int]] = field(default_factory=dict)
    """Number of positions with each hidden value, by name and step."""
    exchanged_at: dict[str, Counter[int]] = field(default_factory=dict)
    """Number of these positions in which another value was found, by name and step.

    In all of them, the player saw the same."""
    is_repeated_elsewhere: bool = False
    """Whether another process started the same games."""

    @property
    def secrets(self) -> Counter[str]:
        """Number of positions in which each hidden value was exchanged, by name."""
        return Counter({name: steps.total() for name, steps in self.exchanged_at.items()})

    def __str__(self) -> str:
        """Return a summary of a few lines."""
        played = f"{self.num_episodes} episodes of {self.num_starts} starts, {self.num_steps} steps"
        lines = [
            f"{self.env}, {self.preset}: {played}, {self.num_copies} copies: all checks passed"
        ]
        for name, count in sorted(self.secrets.items()):
            num_hidden = self.hidden_at[name].total()
            line = f"  hidden: {name}, exchanged in {count} of {num_hidden} positions"
            never = self._never_exchanged_at(name)
            if never:
                line += f"; never at step {', '.join(map(str, never))}, where a leak is not noticed"
            lines.append(line)
        if not self.secrets:
            lines.append("  hidden: nothing")
        if not self.is_repeated_elsewhere:
            lines.append("  not checked: whether another process starts the same games")
        return "\n".join(lines)

    def _never_exchanged_at(self, name: str) -> list[int]:
        """Return the steps, counted from 0, at which a hidden value was never exchanged."""
        exchanged = self.exchanged_at[name]
        return [step for step in sorted(self.hidden_at[name]) if not exchanged[step]]


def check(environment: Environment[C], config: C, *, num_episodes: int = 30) -> Report:
    """Run every check on an environment with one config.

    Args:
        environment: The environment.
        config: Its settings.
        num_episodes: Episodes with legal moves; as many more are played with random replies.

    Returns:
        What the checks covered.

    Raises:
        ConformanceError: A check failed.
        AssertionError: A check of PettingZoo or Gymnasium failed.
    """
    report = check_games(environment, config, num_episodes=num_episodes)
    check_starts(environment, config)
    report.is_repeated_elsewhere = check_another_process(environment, config)
    check_replies(environment, config, num_episodes=num_episodes)
    check_policies(environment, config)
    check_tools(environment, config)
    check_symmetries(environment, config, num_episodes=num_episodes)
    check_wrappers(environment, config)
    return report


def check_games(environment: Environment[C], config: C, *, num_episodes: int = 30) -> Report:
    """Play legal episodes and check every position.

    This checks the spec, moves, messages, privacy, copies, rewards and figures.
    """
    spec = environment.spec(config)
    _expect(
        spec == environment.spec(config),
        spec,
        "spec() to return the same spec for the same config each time",
        "a different spec",
    )
    _expect(
        spec.env == environment.name,
        spec,
        f"spec().env to be the name {environment.name!r}",
        spec.env,
    )
    _expect(
        spec.preset == config.preset, spec, f"spec().preset to be {config.preset!r}", spec.preset
    )
    for player in range(spec.num_players):
        _expect(
            isinstance(environment.system(config, player), str),
            spec,
            f"a system message for player {player}",
            "none",
        )
    report = Report(env=spec.env, preset=spec.preset)
    rng = random.Random(0)
    starts: set[str] = set()
    episodes: list[Episode] = []
    for number in range(num_episodes):
        task = Task(environment=environment, config=config, split="train", seed=number)
        starts.add(environment.start_id(config, split="train", seed=number))
        referee = Referee(task)
        num_steps_before = report.num_steps
        while referee.status is None:
            step = report.num_steps - num_steps_before
            _check_position(referee.game, step, spec, rng, report)
            actions = _random_actions(referee, rng)
            _check_copy(referee.game, actions, spec, report)
            turns = referee.step(actions)
            report.num_steps += 1
            for turn in turns:
                _expect(
                    turn.kind is ReplyKind.LEGAL,
                    spec,
                    f"parse to read the legal action {turn.reply!r}",
                    turn.kind,
                )
                read = f"parse({turn.reply!r}) to return the legal action itself"
                _expect(
                    turn.action == turn.reply or referee.game.legal(turn.player) is None,
                    spec,
                    read,
                    turn.action,
                )
            _check_rewards(
                tuple(parts_of(turns, player) for player in range(spec.num_players)), spec
            )
        _expect(
            referee.game.to_act() == () or referee.status.is_truncated,
            spec,
            "to_act() == () at the end",
            "players to act",
        )
        late = referee.game.late()
        for rewards in late:
            _check_rewards(tuple(rewards), spec, "late()")
        episodes.append(referee.episode())
        for player in range(spec.num_players):
            total = episodes[-1].reward(player)
            low, high = spec.return_range
            _expect(
                low - _ROUNDING <= total <= high + _ROUNDING,
                spec,
                f"player {player}'s return in {spec.return_range}",
                total,
            )
    report.num_episodes = num_episodes
    report.num_starts = len(starts)
    for name, steps in report.hidden_at.items():
        found = f"that resampled() changed it in none of {steps.total()} positions"
        _expect(
            name in report.secrets,
            spec,
            f"the hidden value {name!r} to be exchanged in some positions",
            found,
        )
    _check_figures(environment.metrics(config, episodes), spec, "metrics()")
    for episode in episodes:
        for frame in environment.render(config, episode):
            _expect(bool(frame.title), spec, "a title for each frame of render()", frame)
    return report


def check_starts(environment: Environment[C], config: C) -> None:
    """Check that each (split, seed) identifies one start, and that disjoint splits share no start.

    Two starts that a player cannot distinguish must differ in its `hidden`, or be the same for all
    players. Thus an environment cannot omit from `hidden` what another player sees at the start.
    """
    spec = environment.spec(config)
    starts: dict[str, dict[str, tuple[Any, ...]]] = {}
    opened_alike: dict[str, list[dict[str, Any]]] = {}
    for split in ("train", "train-other", "eval", "test"):
        for seed in range(_NUM_SPLIT_SEEDS):
            name = environment.start_id(config, split=split, seed=seed)
            games = [
                environment.reset(config, split=split, seed=seed)
                for _ in range(2 if seed < _NUM_REPEATED_STARTS else 1)
            ]
            opened = [_everything(game, spec) for game in games]
            _expect(
                opened[0] == opened[-1],
                spec,
                f"({split!r}, {seed}) to start the same game each time",
                "a different game",
            )
            for other in starts.values():
                same = f"equal starts for the equal start_id {name!r}"
                _expect(
                    other.get(name, opened[0]) == opened[0],
                    spec,
                    same,
                    f"a different game at ({split!r}, {seed})",
                )
            starts.setdefault(split, {})[name] = opened[0]
            shown = [_shown(games[0], player) for player in range(spec.num_players)]
            for player in range(spec.num_players):
                alike = opened_alike.setdefault(
                    repr((player, shown[player], games[0].hidden(player))), shown
                )
                secret = (
                    f"equal starts if both what player {player} is shown and its hidden() are equal"
                )
                _expect(alike == shown, spec, secret, f"{alike} and {shown}")
    if spec.disjoint_splits:
        training = starts["train"].keys() | starts["train-other"].keys()
        common = training & (starts["eval"].keys() | starts["test"].keys())
        _expect(
            not common,
            spec,
            "no start in both a training split and a held-out split",
            sorted(common)[:3],
        )


def check_another_process(environment: Environment[C], config: C) -> bool:
    """Check that another process, in which strings have other hashes, starts the same games.

    Server and trainer are two processes, and a later evaluation is a third. A start must therefore
    not depend on `hash()` of a string, on the order of a set or on an address.

    Returns:
        Whether it was checked: another process finds only environments of installed packages, and
        it does not start games of another server.

    Raises:
        ConformanceError: The other process failed, or started other games.
    """
    spec = environment.spec(config)
    if registry.reaches_out(environment.name) or not _is_registered(environment):
        return False
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", _STARTS_OF_ANOTHER_PROCESS],
        input=json.dumps({"env": environment.name, "config": config.model_dump(mode="json")}),
        env={
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=_MAX_PROCESS_SECONDS,
        check=False,
    )
    if done.returncode == _NOT_FOUND:
        return False
    _expect(
        done.returncode == 0, spec, "another process to start the games", done.stderr[-300:].strip()
    )
    theirs = json.loads(done.stdout)
    for name, start in _starts(environment, config).items():
        _expect(
            theirs[name] == start,
            spec,
            f"{name} to start the same game in another process (PYTHONHASHSEED={hash_seed})",
            f"{theirs[name]} instead of {start}",
        )
    return True


def print_starts() -> None:
    """Print what players are told in the first games of an environment, as JSON.

    This is the other process of `check_another_process`; standard input names the environment.
    """
    chosen = json.load(sys.stdin)
    try:
        environment = registry.get(chosen["env"])
    except SettingsError:
        sys.exit(_NOT_FOUND)
    config = environment.parse_config(chosen["config"])
    print(json.dumps(_starts(environment, config)))


def _is_registered(environment: Environment[C]) -> bool:
    try:
        return registry.get(environment.name) is environment
    except SettingsError:
        return False


def _starts(environment: Environment[C], config: C) -> dict[str, list[Any]]:
    """Return what each player is told at the first starts, as JSON values by split and seed."""
    spec = environment.spec(config)
    starts: dict[str, list[Any]] = {}
    for split in ("train", "eval"):
        for seed in range(_NUM_REPEATED_STARTS):
            game = environment.reset(config, split=split, seed=seed)
            told: list[Any] = [environment.start_id(config, split=split, seed=seed)]
            for player in range(spec.num_players):
                legal = game.legal(player)
                told.append(game.state_message(player))
                told.append(None if legal is None else list(legal))
            for player in game.to_act():
                told.append(game.message(player))
            starts[str((split, seed))] = told
    return starts


def check_replies(environment: Environment[C], config: C, *, num_episodes: int = 30) -> None:
    """Play episodes of arbitrary replies: every text must be accepted, every episode must end."""
    spec, rng = environment.spec(config), random.Random(0)
    for number in range(num_episodes):
        referee = Referee(Task(environment=environment, config=config, split="train", seed=number))
        while referee.status is None:
            legal = _random_actions(referee, rng)
            replies = {player: _strange_reply(legal[player], rng) for player in referee.to_act()}
            listed = {player: referee.game.legal(player) for player in replies}
            try:
                turns = referee.step(replies)
            except Exception as error:
                shown = {player: reply[:60] for player, reply in replies.items()}
                found = f"{type(error).__name__} from {shown!r}: {error}"
                _expect(False, spec, "every text to be accepted as a reply", found)
            for turn in turns:
                options = listed[turn.player]
                applied = (*(options or ()), FORFEIT, SKIP)
                _expect(
                    options is None or turn.action in applied,
                    spec,
                    "only legal actions to be applied",
                    turn.action,
                )
            forfeited = spec.bad_reply == "forfeit" and any(
                turn.kind is not ReplyKind.LEGAL for turn in turns
            )
            _expect(
                not forfeited or referee.status is not None,
                spec,
                "the episode to end after a forfeit",
                "more turns",
            )
        _check_figures(referee.game.result(), spec, "result()")


def check_policies(environment: Environment[C], config: C) -> None:
    """Check that presets and scripts have the right names and scripts choose legal actions."""
    spec = environment.spec(config)
    for name, preset in environment.presets.items():
        _expect(
            preset.preset == name, spec, f"presets[{name!r}].preset to be {name!r}", preset.preset
        )
        environment.spec(preset)
    for name, make in environment.policies.items():
        policy = make()
        _expect(policy.name == name, spec, f"policies[{name!r}]().name to be {name!r}", policy.name)
        for number in range(3):
            task = Task(environment=environment, config=config, split="eval", seed=number)
            try:
                played = play_scripts(task, dict.fromkeys(range(spec.num_players), policy))
            except SettingsError:  # a script may reject a config with a reason
                break
            for turn in played.turns:
                _expect(
                    turn.kind is ReplyKind.LEGAL,
                    spec,
                    f"legal actions from policy {name!r}",
                    turn.reply,
                )


def check_tools(environment: Environment[C], config: C) -> None:
    """Check the active tools: every argument gets an answer, and only the caller sees it.

    A tool returns a text or raises a `ToolError`. A tool that is not slow does so within a few
    milliseconds, with the same result each time. A call changes nothing in the game, and nothing
    that other players see. Without tools, this check does nothing.
    """
    setup = Setup(environment, config)
    spec = setup.spec
    for tool in setup.tools:
        for player in range(spec.num_players):
            is_told = tool.name in environment.system_message(config, player)
            _expect(
                is_told or environment.has_short_calls(config),
                spec,
                f"player {player}'s system message to name the tool {tool.name!r}",
                "no such name",
            )
        if not tool.slow:
            for argument in (*STRANGE_REPLIES, *_TOOL_ARGUMENTS):
                _check_call(tool, argument, spec)
    if not setup.tools:
        return
    for number in range(_NUM_TOOL_EPISODES):
        _check_tool_episode(setup, number)


def _check_call(tool: Tool, argument: str, spec: EnvSpec) -> None:
    """Check one call to a tool that is not slow."""
    start = time.thread_time()
    outcome = run_tool(tool, argument, 1.0)
    seconds = time.thread_time() - start
    where = f"the tool {tool.name!r} to handle {argument[:40]!r}"
    _expect(
        outcome.error in (None, CallError.BAD_CALL),
        spec,
        f"{where}, or to raise a ToolError",
        outcome.text,
    )
    _expect(
        seconds <= _MAX_TOOL_SECONDS,
        spec,
        f"{where} within {_MAX_TOOL_SECONDS:g} s, as it is not slow",
        f"{seconds:.3f} s",
    )
    again = run_tool(tool, argument, 1.0)
    _expect(again == outcome, spec, f"{where} the same way each time", again.text)


def _check_tool_episode(setup: Setup[Any], number: int) -> None:
    """Play an episode twice, once with tool calls before each action of one player."""
    spec = setup.spec
    rng = random.Random(number)
    caller = number % spec.num_players
    task = setup.task("train", number)
    referee = Referee(task)
    plain = Referee(task)
    while referee.status is None:
        if caller in referee.to_act():
            seen = referee.see(caller)
            for tool in seen.tools:
                reply = seen.call_of(tool, rng.choice(_TOOL_ARGUMENTS))
                wanted = referee.wanted_call(caller, reply)
                if wanted is None:
                    # No calls are left in this turn.
                    break
                if wanted.tool is None or wanted.tool.slow:
                    continue
                outcome = referee.tools_of(caller).run(wanted)
                call = referee.add_call(caller, reply, wanted, outcome)
                _expect(
                    referee.see(caller).message() == call.result,
                    spec,
                    f"player {caller} to receive the result of its call",
                    referee.see(caller).message(),
                )
        for player in range(spec.num_players):
            if player != caller:
                read = _shown(referee.game, player), referee.see(player).calls
                _expect(
                    read == (_shown(plain.game, player), ()),
                    spec,
                    f"player {player} to see nothing of player {caller}'s calls",
                    read,
                )
        actions = _random_actions(referee, rng)
        referee.step(actions)
        plain.step(actions)
    with_calls = referee.episode()
    without = plain.episode()
    moves = [replace(turn, prompt="", follows_call=False) for turn in with_calls.moves]
    _expect(
        moves == list(without.turns) and with_calls.result == without.result,
        spec,
        "the same game with and without tool calls",
        with_calls.result,
    )


def check_symmetries(environment: Environment[C], config: C, *, num_episodes: int = 30) -> None:
    """Play games side by side with their renamed twins, which must be equivalent.

    Every player of a twin sees its own random symmetry. In every position, the same players must
    act, the legal actions must be the renamed legal actions of the game, renamed actions must earn
    the same rewards, and what a player is shown must depend only on its own symmetry. Without
    symmetries, this check does nothing.
    """
    count = environment.num_symmetries(config)
    if count == 1:
        return
    spec = environment.spec(config)
    rng = random.Random(0)
    for number in range(num_episodes):
        start = environment.reset(config, split="train", seed=number)
        game = environment.seen_under(config, start, [0] * spec.num_players)
        symmetries = [rng.randrange(count) for _ in range(spec.num_players)]
        twin = environment.seen_under(config, start, symmetries)
        for _ in range(spec.max_turns):
            _expect(
                game.to_act() == twin.to_act(),
                spec,
                f"{game.to_act()} to act under symmetries, too",
                twin.to_act(),
            )
            if not game.to_act():
                break
            actions = {}
            renamed = {}
            for player in game.to_act():
                symmetry = symmetries[player]
                alike = environment.seen_under(config, game, [symmetry] * spec.num_players)
                _expect(
                    twin.message(player) == alike.message(player),
                    spec,
                    f"player {player}'s message to depend only on its own symmetry",
                    twin.message(player),
                )
                legal = game.legal(player) or ()
                words = [environment.worded_under(config, text, symmetry) for text in legal]
                _expect(
                    sorted(words) == sorted(twin.legal(player) or ()),
                    spec,
                    f"the legal actions {words} under symmetry {symmetry}",
                    twin.legal(player),
                )
                chosen = rng.randrange(len(legal))
                actions[player] = legal[chosen]
                renamed[player] = words[chosen]
            paid = game.step(actions)
            paid_twin = twin.step(renamed)
            _expect(
                list(paid) == list(paid_twin), spec, f"{paid} to be paid for {renamed}", paid_twin
            )
        _expect(game.result() == twin.result(), spec, f"the result {game.result()}", twin.result())


def check_wrappers(environment: Environment[C], config: C) -> None:
    """Run PettingZoo's checks on `AECWrapper`, and Gymnasium's on `SeatEnv`.

    `SeatEnv` is checked for every seat, with the first script in the other seats.
    """
    import contextlib
    import io
    import warnings

    from gymnasium.utils.env_checker import check_env
    from pettingzoo.test import api_test, seed_test

    from hanabi_grpo.envs.wrappers import AECWrapper, SeatEnv

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # Warnings about observations that are not arrays, about text spaces, and about an option
        # that the check itself passes.
        warnings.simplefilter("ignore")
        api_test(AECWrapper(environment, config), num_cycles=50)
        seed_test(lambda: AECWrapper(environment, config), num_cycles=50)
    spec = environment.spec(config)
    has_partner = spec.num_players == 1 or len(environment.policies) > 0
    _expect(has_partner, spec, "a script in `policies` as a partner", "none")
    for seat in range(spec.num_players):
        others = [player for player in range(spec.num_players) if player != seat]
        partners = {player: next(iter(environment.policies.values()))() for player in others}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # The one warning for an env not created by gymnasium.make: render modes cannot be
            # checked.
            warnings.filterwarnings(
                "ignore", message=".*[Nn]ot able to test alternative render modes.*"
            )
            check_env(SeatEnv(environment, config, seat, partners))


def _check_position(
    game: Game, step: int, spec: EnvSpec, rng: random.Random, report: Report
) -> None:
    acting = game.to_act()
    _expect(len(set(acting)) == len(acting), spec, "each player once in to_act()", acting)
    _expect(
        set(acting) <= set(range(spec.num_players)),
        spec,
        f"players below {spec.num_players} in to_act()",
        acting,
    )
    before = _everything(game, spec)
    _expect(
        _everything(game, spec) == before,
        spec,
        "messages, views and legal actions to change nothing",
        "a change",
    )
    for player in range(spec.num_players):
        legal = game.legal(player)
        if player in acting:
            _expect(
                legal is None or len(legal) > 0,
                spec,
                f"legal actions for player {player}, who is to act",
                legal,
            )
            _expect(
                spec.bad_reply != "random_legal" or legal is not None,
                spec,
                "a list of legal actions to draw from",
                legal,
            )
        else:
            _expect(
                legal in ((), None),
                spec,
                f"legal() == () for player {player}, who is not to act",
                legal,
            )
        _expect(len(set(legal or ())) == len(legal or ()), spec, "each legal action once", legal)
        _check_questions(game, player, spec)
        _expect(
            not {FORFEIT, SKIP} & set(legal or ()),
            spec,
            f"no legal action {FORFEIT} or {SKIP}",
            legal,
        )
        _check_privacy(game, player, step, spec, rng, report)


def _check_questions(game: Game, player: int, spec: EnvSpec) -> None:
    questions = game.questions(player)
    truths = game.truths(player)
    _expect(len(truths) == len(questions), spec, f"{len(questions)} truths()", truths)
    for question, truth in zip(questions, truths, strict=True):
        answers = question.answers
        _expect(truth in answers, spec, f"one of {answers} for {question.name}", truth)


def _check_privacy(
    game: Game, player: int, step: int, spec: EnvSpec, rng: random.Random, report: Report
) -> None:
    secrets = game.hidden(player)
    if not secrets:
        return
    shown = _shown(game, player)
    other = game.resampled(player, rng)
    others = other.hidden(player)
    _expect(
        others.keys() == secrets.keys(),
        spec,
        f"the hidden values {sorted(secrets)}",
        sorted(others),
    )
    _expect(
        other.to_act() == game.to_act(),
        spec,
        "the same players to act in resampled()",
        other.to_act(),
    )
    changed = [name for name in secrets if others[name] != secrets[name]]
    what = " and ".join(map(repr, changed)) or "anything hidden"
    for part, text in _shown(other, player).items():
        independent = f"{part} of player {player} not to depend on {what}"
        _expect(text == shown[part], spec, independent, f"{shown[part]!r} become {text!r}")
    _expect(
        _shown(game, player) == shown and game.hidden(player) == secrets,
        spec,
        "resampled() to change nothing",
        "",
    )
    for name in secrets:
        report.hidden_at.setdefault(name, Counter())[step] += 1
    for name in changed:
        report.exchanged_at.setdefault(name, Counter())[step] += 1


def _check_copy(game: Game, actions: Mapping[int, str], spec: EnvSpec, report: Report) -> None:
    try:
        twin = game.copy()
        moved = game.copy()
    except NotImplementedError:
        return
    before = _everything(game, spec)
    _expect(_everything(twin, spec) == before, spec, "copy() to be equal", "a different position")
    parsed = {player: game.parse(player, action) or action for player, action in actions.items()}
    rewards = [dict(part) for part in moved.step(parsed)]
    _expect(
        _everything(game, spec) == before,
        spec,
        "a move in a copy to leave the game unchanged",
        "a change",
    )
    _expect(
        [dict(part) for part in twin.step(parsed)] == rewards,
        spec,
        "a copy to pay the same rewards",
        "different rewards",
    )
    _expect(
        _everything(twin, spec) == _everything(moved, spec),
        spec,
        "equal copies after equal moves",
        "different ones",
    )
    report.num_copies += 1


def _check_rewards(
    rewards: tuple[Mapping[str, float], ...], spec: EnvSpec, where: str = "step()"
) -> None:
    _expect(
        len(rewards) == spec.num_players,
        spec,
        f"reward parts for {spec.num_players} players from {where}",
        len(rewards),
    )
    for parts in rewards:
        _check_figures(parts, spec, where)
        _expect(
            not REPLY_PARTS & parts.keys(),
            spec,
            f"no parts named {sorted(REPLY_PARTS)}",
            sorted(parts),
        )
    if spec.payoff == "team":
        _expect(
            all(parts == rewards[0] for parts in rewards),
            spec,
            f"the same parts from {where} for all players of a team",
            rewards,
        )
    if spec.payoff == "zero_sum":
        total = sum(value for parts in rewards for value in parts.values())
        _expect(
            abs(total) < _ROUNDING, spec, f"zero-sum parts from {where} that add up to 0", rewards
        )


def _check_figures(figures: Mapping[str, float], spec: EnvSpec, where: str) -> None:
    for name, value in figures.items():
        is_number = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) < float("inf")
        )
        _expect(
            isinstance(name, str) and is_number,
            spec,
            f"finite numbers by name from {where}",
            {name: value},
        )


def _random_actions(referee: Referee, rng: random.Random) -> dict[int, str]:
    """Return a legal action for each player to act.

    The action is random, or a script's if any text is legal.
    """
    actions = {}
    for player in referee.to_act():
        legal = referee.game.legal(player)
        if legal is None:
            scripts = list(referee.task.environment.policies.values())
            wanted = f"a script in `policies` that can play when legal() is None (player {player})"
            _expect(len(scripts) > 0, referee.spec, wanted, "none")
            seat = rng.choice(scripts)().seat(player, task=referee.task, game=rng.randrange(1000))
            actions[player] = seat.act(Observation(referee.game, player))
        else:
            actions[player] = rng.choice(legal)
    return actions


def _strange_reply(legal: str, rng: random.Random) -> str:
    letters = "".join(rng.sample(legal * 2, 2 * len(legal)))
    noise = rng.randbytes(rng.randrange(200)).decode(
        "utf-8", rng.choice(["replace", "surrogateescape"])
    )
    return rng.choice((legal, rng.choice(STRANGE_REPLIES), noise, letters))


def _shown(game: Game, player: int) -> dict[str, Any]:
    shown = {
        "state_message()": game.state_message(player),
        "view()": game.view(player),
        "legal()": game.legal(player),
        "scene()": game.scene(player),
        "questions()": tuple(game.questions(player)),
    }
    if player in game.to_act():
        shown["message()"] = game.message(player)
    return shown


def _everything(game: Game, spec: EnvSpec) -> tuple[Any, ...]:
    players = []
    for player in range(spec.num_players):
        players.append((_shown(game, player), dict(game.hidden(player))))
    return game.to_act(), dict(game.result()), players


def _expect(is_right: bool, spec: EnvSpec, expected: str, found: object) -> None:
    if not is_right:
        raise ConformanceError(
            f"environment {spec.env!r}, preset {spec.preset!r}: expected {expected}; found "
            f"{found!s:.300}."
        )
