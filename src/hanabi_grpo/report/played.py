"""What a run or a recorded game played, for any environment: its setup, its frames, and how it
ended in words.
"""

import importlib
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Frame, Setup
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import earned, signed, split_reply, visible
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.recordings import num_bad_replies
from hanabi_grpo.settings.game import game_defaults
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn, task_name

_ENDINGS = {
    EpisodeStatus.FINISHED: "played to its end",
    EpisodeStatus.TRUNCATED_TURNS: "cut off",
    EpisodeStatus.TRUNCATED_TOKENS: "cut off: out of tokens",
}


def run_setup(settings: Mapping[str, Any]) -> Setup[Any] | None:
    """Return what the settings of a run, by variable, play; None where this version lacks the
    preset.
    """
    env = settings.get("HANABI_ENV") or "hanabi"
    try:
        fields = registry.get(env).Config.model_fields
        given = {name: settings.get(f"HANABI_{name.upper()}") for name in fields}
        return registry.setup(
            env, {name: value for name, value in given.items() if value is not None}
        )
    except HanabiGrpoError:
        return None


def setup_of(episode: Episode, settings: Mapping[str, Any]) -> Setup[Any] | None:
    """Return what a recorded game played: that of its run's settings, or a preset; None where
    neither has its rules.
    """
    found = [run_setup(settings)]
    for device, more in itertools.product(("cpu", "gpu"), ({}, {"players": episode.num_players})):
        with suppress(HanabiGrpoError):
            given = {"env": episode.env, "device": device, "preset": episode.preset, **more}
            found.append(registry.setup(episode.env, game_defaults(given) | more))
    wanted = (episode.env, episode.spec_hash)
    return next(
        (one for one in found if one is not None and (one.env, one.spec.hash) == wanted), None
    )


def own_page(env: str) -> ModuleType | None:
    """Return the module of an environment that shows its games itself: it has `SCRIPT`,
    `draw_games` and `frames`.
    """
    return (
        importlib.import_module("hanabi_grpo.report.hanabi.replay_page")
        if env == "hanabi"
        else None
    )


def frames_of(recording: Recording, settings: Mapping[str, Any]) -> tuple[Frame, ...]:
    """Return the frames of a game, one a step and the end; none where this version does not know
    what was played.

    `settings` are those of its run, by variable. A game that cannot be played again is a
    SettingsError."""
    episode, own = recording.episode, own_page(recording.episode.env)
    setup = None if own else setup_of(episode, settings)
    try:
        found = (
            own.frames(recording)
            if own
            else setup.environment.render(setup.config, episode)
            if setup
            else ()
        )
        return tuple(Frame(title=visible(one.title), text=visible(one.text)) for one in found)
    except SettingsError:
        raise
    except HanabiGrpoError as error:
        raise SettingsError(f"{recording.where}: {error}") from error


def outcome(episode: Episode) -> str:
    """Return the figures of a game and its ending, e.g. "score 3, bombed 0; played to its end"."""
    figures = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in episode.result.items()
    )
    return visible("; ".join(filter(None, [figures, _ENDINGS[episode.status]])))


def returns(episode: Episode) -> str:
    """Return what each player got, e.g. "+3" where all got the same, else "+1 / -1"."""
    texts = [signed(episode.reward(player)) for player in range(episode.num_players)]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def game_words(
    recording: Recording, advantages: Sequence[float] | None = None, *, prompts: bool = False
) -> dict[str, Any]:
    """Return a game in words: what pages, tables and the dashboard show of it."""
    episode = recording.episode
    values: Sequence[float | None] = advantages or [None] * len(episode.turns)
    return {
        "number": recording.number,
        "task": visible(task_name(episode.suite, episode.seed)),
        "group_game": episode.game,
        "preset": visible(
            f"{episode.preset}, {episode.num_players} player{'s' * (episode.num_players > 1)}"
        ),
        "source": visible(recording.source),
        "score": round(sum(episode.reward(seat) for seat in range(episode.num_players)), 4),
        "shown": returns(episode),
        "outcome": outcome(episode),
        "num_bad": num_bad_replies(recording),
        "returns": [
            (visible(name), signed(episode.reward(seat)))
            for seat, name in enumerate(recording.players)
        ],
        "moves": [
            _words(recording, turn, value, prompts)
            for turn, value in zip(episode.turns, values, strict=True)
        ],
        "end": "",
    }


def _words(
    recording: Recording, turn: Turn, advantage: float | None, prompts: bool
) -> dict[str, Any]:
    is_legal = turn.kind is ReplyKind.LEGAL
    thought, said = map(visible, split_reply(turn.reply))
    parts = visible(earned(turn.rewards[turn.player]))
    version = "" if turn.version is None else f"v{turn.version}"
    worth = "" if advantage is None else f"adv {advantage:+.2f}"
    return {
        "frame": "",
        "player": visible(recording.players[turn.player]),
        "did": visible(turn.action),
        "bad": "" if is_legal else turn.kind.value,
        "earned": parts,
        "facts": " · ".join(filter(None, [parts, worth, version])),
        "thought": thought,
        # A reply that is nothing but the action says it a second time.
        "said": "" if is_legal and said == visible(turn.action) else said or "(nothing)",
        "prompt": visible(turn.prompt) if prompts else "",
    }
