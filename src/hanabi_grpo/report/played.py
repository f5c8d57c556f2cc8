"""The game of a run or a recording, in any environment: its setup, frames and texts."""

import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Frame, Setup
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import earned, signed, split_reply
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.recordings import num_bad_replies
from hanabi_grpo.settings.game import game_defaults
from hanabi_grpo.texts import visible
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn, task_name

_ENDINGS = {
    EpisodeStatus.FINISHED: "played to the end",
    EpisodeStatus.TRUNCATED_TURNS: "cut off",
    EpisodeStatus.TRUNCATED_TOKENS: "cut off: out of tokens",
}
_OWN_PAGES = {"hanabi": "hanabi_grpo.report.hanabi.replay_page"}
"""Modules of environments that draw their own games, by environment."""
_SEPARATOR = " · "
_MOST_REPLIES = 4
"""Largest number of a sampling teacher's replies that are shown with a turn."""


def run_setup(settings: Mapping[str, Any]) -> Setup[Any] | None:
    """Return the game of a run; None where this version lacks the preset.

    Args:
        settings: Settings of the run, by variable.
    """
    env = settings.get("HANABI_ENV") or "hanabi"
    try:
        config = {}
        for name in registry.get(env).Config.model_fields:
            value = settings.get(f"HANABI_{name.upper()}")
            if value is not None:
                config[name] = value
        return registry.setup(env, config)
    except HanabiGrpoError:
        return None


def has_rivals(settings: Mapping[str, Any], presets: Iterable[str]) -> bool:
    """Tell whether a run's players play against each other in any of its games.

    Args:
        settings: Settings of the run, by variable.
        presets: The presets that were trained on, by name, which a dataset's rows chose.
    """
    own = run_setup(settings)
    setups = [own]
    if own is None:
        setups = [_setup_named(preset, settings) for preset in presets]
    return any(setup is not None and not setup.spec.has_common_score for setup in setups)


def _setup_named(preset: str, settings: Mapping[str, Any]) -> Setup[Any] | None:
    """Return the game of a preset: of the run's environment, or of another that has the preset."""
    setup = run_setup({**settings, "HANABI_PRESET": preset})
    if setup is not None:
        return setup
    for env in registry.OWN:
        environment = registry.get(env)
        if preset in environment.presets:
            return Setup(environment, environment.presets[preset])
    return None


def setup_of(episode: Episode, settings: Mapping[str, Any]) -> Setup[Any] | None:
    """Return the setup of a recorded game: that of its run's settings, or of a preset.

    Args:
        episode: The game.
        settings: Settings of its run, by variable; empty where they are unknown.

    Returns:
        The setup whose rules have the hash that the game names; None if there is none.
    """
    candidates = [run_setup(settings)]
    # Presets with a fixed number of players do not take it as a field.
    numbers_of_players: tuple[dict[str, int], ...] = ({}, {"players": episode.num_players})
    for device, players in itertools.product(("cpu", "gpu"), numbers_of_players):
        named: dict[str, Any] = {"env": episode.env, "device": device, "preset": episode.preset}
        named |= players
        with suppress(HanabiGrpoError):
            config = game_defaults(named) | players
            candidates.append(registry.setup(episode.env, config))
    for candidate in candidates:
        if candidate is None or candidate.env != episode.env:
            continue
        if candidate.spec.hash == episode.spec_hash:
            return candidate
    return None


def own_page(env: str) -> ModuleType | None:
    """Return the module with which an environment draws its own games; None for others.

    The module has `SCRIPT`, `draw_games` and `frames`.
    """
    module = _OWN_PAGES.get(env)
    if module is None:
        # The environment may belong to a package that is not installed here.
        with suppress(SettingsError):
            module = _OWN_PAGES.get(registry.get(env).draws_as)
    return importlib.import_module(module) if module else None


def frames_of(recording: Recording, settings: Mapping[str, Any]) -> tuple[Frame, ...]:
    """Return the frames of a game: one per step, and one of the end.

    Args:
        recording: The game.
        settings: Settings of its run, by variable.

    Returns:
        The frames; none where this version does not know the game.

    Raises:
        SettingsError: The game cannot be played again.
    """
    try:
        frames = _render_frames(recording, settings)
    except SettingsError:
        raise
    except HanabiGrpoError as error:
        raise SettingsError(f"{recording.where}: {error}") from error
    visible_frames = []
    for frame in frames:
        visible_frames.append(Frame(title=visible(frame.title), text=visible(frame.text)))
    return tuple(visible_frames)


def _render_frames(recording: Recording, settings: Mapping[str, Any]) -> Sequence[Frame]:
    episode = recording.episode
    page = own_page(episode.env)
    if page is not None:
        frames: Sequence[Frame] = page.frames(recording)
        return frames
    setup = setup_of(episode, settings)
    if setup is None:
        return ()
    return tuple(setup.environment.render(setup.config, episode))


def outcome(episode: Episode) -> str:
    """Return the figures of a game and its ending, e.g. "score 3, bombed 0; played to the end"."""
    figures = []
    for name, value in episode.result.items():
        figures.append(f"{name.replace('_', ' ')} {value:.4g}")
    ending = _ENDINGS[episode.status]
    if not figures:
        return visible(ending)
    return visible(f"{', '.join(figures)}; {ending}")


def returns(episode: Episode) -> str:
    """Return each player's return, e.g. "+3" where all are the same, else "+1 / -1"."""
    texts = []
    for player in range(episode.num_players):
        texts.append(signed(episode.reward(player)))
    if len(set(texts)) == 1:
        return texts[0]
    return " / ".join(texts)


def game_texts(
    recording: Recording,
    advantages: Sequence[float] | None = None,
    *,
    prompts: bool = False,
) -> dict[str, Any]:
    """Return a game as texts, as pages, tables and the dashboard show it.

    Args:
        recording: The game.
        advantages: Advantage of each turn; None: not known.
        prompts: Whether to include the players' prompts.

    Returns:
        Values for the template of a page; "moves" has an entry per turn, see `_move_texts`.
    """
    episode = recording.episode
    advantage_of_turn: Sequence[float | None] = advantages or [None] * len(episode.turns)
    rewards = [episode.reward(player) for player in range(episode.num_players)]
    plural = "s" if episode.num_players > 1 else ""
    moves = []
    for turn, advantage in zip(episode.turns, advantage_of_turn, strict=True):
        moves.append(_move_texts(recording, turn, advantage, prompts=prompts))
    returns_by_player = []
    for name, reward in zip(recording.players, rewards, strict=True):
        returns_by_player.append((visible(name), signed(reward)))
    return {
        "number": recording.number,
        "task": visible(task_name(episode.suite, episode.seed)),
        "group_game": episode.game,
        "preset": visible(f"{episode.preset}, {episode.num_players} player{plural}"),
        "source": visible(recording.source),
        "score": round(sum(rewards), 4),
        "shown": returns(episode),
        "outcome": outcome(episode),
        "num_bad": num_bad_replies(recording),
        "returns": returns_by_player,
        "moves": moves,
        # Pages put the last frame here.
        "end": "",
    }


def _chances_text(chances: Mapping[str, float]) -> str:
    """Return the actions that a teacher draws from, with their probabilities.

    Example:
        "raise 67 %, call 33 %"
    """
    parts = []
    likeliest = sorted(chances, key=lambda action: -chances[action])
    for action in likeliest[:_MOST_REPLIES]:
        parts.append(f"{visible(action)} {chances[action]:.0%}".replace("%", " %"))
    if len(chances) > _MOST_REPLIES:
        parts.append(f"{len(chances) - _MOST_REPLIES} more")
    return ", ".join(parts)


def _move_texts(
    recording: Recording, turn: Turn, advantage: float | None, *, prompts: bool
) -> dict[str, Any]:
    """Return one turn as texts.

    Args:
        recording: The game.
        turn: The turn.
        advantage: Its advantage; None: not known.
        prompts: Whether to include the player's prompt.
    """
    is_legal = turn.kind is ReplyKind.LEGAL
    action = visible(turn.action)
    thought, message = map(visible, split_reply(turn.reply))
    if is_legal and message == action:
        # A reply that is only the action is not shown twice.
        message = ""
    elif not message:
        message = "(nothing)"
    rewards = visible(earned(turn.rewards[turn.player]))
    facts = [rewards] if rewards else []
    result = ""
    if turn.call is not None and turn.is_call:
        action = visible(f"calls {turn.call.tool or 'a tool'}({turn.call.argument})")
        result = visible(turn.call.result)
        message = ""
        if turn.call.error is not None:
            facts.append(turn.call.error.value.replace("_", " "))
    elif turn.call is not None:
        facts.append("over the call limit")
    if advantage is not None:
        facts.append(f"adv {advantage:+.2f}")
    if turn.lesson is not None and turn.lesson.plays:
        facts.append("played by the teacher")
    elif turn.lesson is not None and turn.lesson.replies:
        facts.append(f"teacher: {_chances_text(turn.lesson.action_chances())}")
    elif turn.lesson is not None and turn.lesson.action not in ("", turn.action):
        facts.append(f"teacher: {visible(turn.lesson.action)}")
    if turn.version is not None:
        facts.append(f"v{turn.version}")
    return {
        # Pages put the frame of the step here.
        "frame": "",
        "player": visible(recording.players[turn.player]),
        "did": action,
        "bad": "" if is_legal else turn.kind.value,
        "earned": rewards,
        "facts": _SEPARATOR.join(facts),
        "thought": thought,
        "said": message,
        # The answer to a tool call, which only this player saw.
        "result": result,
        "is_call": turn.is_call,
        "prompt": visible(turn.prompt) if prompts else "",
    }
