"""What only the runs of version 0.1 need: its games, settings that it had not, and boards of which
it dealt half.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.rules import PRESETS, make_spec
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import MAX_PLAYERS

_TEAM_PARTS = ("score", "bomb")
UNRECORDED: dict[str, Any] = {"HANABI_ENV": "hanabi", "HANABI_REWARD_OUT_OF_TOKENS": 0.0}
"""What its runs had of settings that came later."""
REMOVED = {
    **{"HANABI_GROUP": "task", "HANABI_KL": "loss", "HANABI_CLIP_DUAL": None},
    **{"HANABI_WHITEN": False, "HANABI_LENGTH_PENALTY": 0.0},
}
"""Settings that are gone, with the value that every run has now."""


def episode_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a game of version 0.1 in the words of `types.Episode`; what is malformed stays as it
    is.

    It knew Hanabi alone: the parts `score` and `bomb` belong to every player, the others to the one
    who moved."""

    def rewards(turn: Mapping[str, Any]) -> Any:
        parts = turn.get("rewards")
        if not isinstance(parts, dict):
            return parts
        team = {part: value for part, value in parts.items() if part in _TEAM_PARTS}
        return [
            parts if player == turn.get("player") else team for player in range(row["num_players"])
        ]

    bombed = row.get("status") == "bombed"
    new = {name: value for name, value in row.items() if name not in ("score", "score_kept")}
    turns = row.get("turns")
    if (
        isinstance(turns, list)
        and type(row.get("num_players")) is int
        and 1 <= row["num_players"] <= MAX_PLAYERS
    ):
        new["turns"] = [
            {**turn, "step": step, "rewards": rewards(turn)} if isinstance(turn, dict) else turn
            for step, turn in enumerate(turns)
        ]
    result = {name: row[name] for name in ("score", "score_kept") if name in row} | {
        "bombed": int(bombed)
    }
    return {
        **new,
        "env": "hanabi",
        "status": "finished" if bombed else row.get("status"),
        "result": result,
    }


def evaluation(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an evaluation of version 0.1 in the words of `EvaluationResult`; others, and malformed
    ones, as they are.

    Its boards dealt half of their decks, so nothing is known to be attainable there.
    """
    kept = data.get("scores_kept")
    if (
        "decks" not in data
        or not isinstance(kept, list)
        or not all(type(one) in (int, float) for one in kept or "x")
    ):
        return data
    shares = {"bomb_share": "bombed", "truncated_share": "truncated", "perfect_share": "perfect"}
    named = (item for item in data.items() if item[0].endswith(("_share", "_game", "_turn")))
    figures = {shares.get(name, name): value for name, value in named}
    return {
        **data,
        "env": "hanabi",
        "score": "score",
        "score_range": (0, data.get("reachable_max")),
        "attainable": None,
        "starts": data["decks"],
        "figures": {"score_kept": sum(kept) / len(kept), **figures},
    }


def boards_by_hash() -> dict[str, tuple[str, bool]]:
    """Return the name of every board by its hash, and whether the hash says that half of its decks
    are dealt.
    """
    known: dict[str, tuple[str, bool]] = {}
    for name, preset in PRESETS.items():
        for spec in (make_spec(name, players) for players in preset.players):
            known.setdefault(spec.hash, (name, False))
            known.setdefault(spec.rules_hash, (name, spec.deals_all_decks))
    return known


def check_decks(checkpoint: Path | None, spec_hashes: Iterable[str], *, fork: bool) -> None:
    """Refuse to continue a curve of version 0.1 on a board of which it dealt half of the decks."""
    known = boards_by_hash()
    boards = sorted({known[one][0] for one in spec_hashes if one in known and known[one][1]})
    if boards and not fork:
        raise SettingsError(
            f"{checkpoint}: was trained by version 0.1 on half of the decks of "
            f"{', '.join(boards)}; this version "
            "tasks all of them, so the rest of the curve would be another game's. Start a new run "
            "from it with "
            "OUTPUT_DIR=(a new folder), or go on with hanabi_grpo 0.1."
        )
