"""`hanabi-grpo play`, its words: who sits where, and which game is played."""

from hanabi_grpo.commands.playing import game_config
from hanabi_grpo.commands.view import read_player
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import SCRIPTED
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import HUMAN
from hanabi_grpo.types import player_name

_DEFAULT_PRESET = "full"


def read_game(
    partners: str, seat: str | None, preset: str | None, players: int | None, settings: Settings
) -> tuple[tuple[str, ...], EnvConfig]:
    """Return who sits where, one word per seat, and the game.

    Args:
        partners: A word for every other seat ("iggi"), one for each ("iggi,served"), or the whole line-up with the
            person in it ("iggi,human").
        seat: The person's seat, for partners without it.
        preset: See `play`.
        players: See `play`.
        settings: Everything else of the game.

    Raises:
        SettingsError: Words or numbers that do not fit together.
    """
    typed = [word.strip() for word in partners.split(",")]
    parse_line_up(partners, len(typed), human=True)
    with_models = any(word not in (HUMAN, *SCRIPTED) for word in typed)
    if with_models and preset is None:
        fields = game_config(settings, None).model_dump()
    else:
        fields = {name: getattr(settings, name) for name in EnvConfig.model_fields}
        given = settings.preset if "preset" in settings.model_fields_set else None
        fields["preset"] = preset or given or _DEFAULT_PRESET
        if not with_models:
            fields["observation"] = "full"
    if HUMAN in typed:
        count = len(typed)
    elif players is not None:
        count = players
    else:
        count = len(typed) + 1 if len(typed) > 1 else fields["players"]
    if typed.count(HUMAN) > 1 or typed == [HUMAN]:
        raise SettingsError(f"line-up {partners!r}: one person and at least one partner, e.g. human,iggi.")
    if players not in (None, count) or (HUMAN not in typed and len(typed) not in (1, count - 1)):
        num_players = count if players is None else players
        raise SettingsError(
            f"partners {partners!r} for {num_players} players: give one word for every partner, one for each, or with "
            f"{HUMAN} in your seat one for every player."
        )
    config = EnvConfig.parse({**fields, "players": count})
    if HUMAN in typed:
        if seat is not None:
            raise SettingsError(f"--seat {seat} with {partners!r}: {HUMAN} names your seat already; leave --seat out.")
        words = typed
    else:
        own = read_seat(seat, count)
        words = typed * (count - 1) if len(typed) == 1 else typed
        words = [*words[:own], HUMAN, *words[own:]]
    return parse_line_up(",".join(words), count, human=True).words, config


def read_seat(name: str | None, num_players: int) -> int:
    """Return the seat of the person, the first when no name is given.

    Raises:
        SettingsError: No such player at this table.
    """
    try:
        own = read_player(name) or 0
    except SettingsError:
        own = num_players
    if own >= num_players:
        raise SettingsError(f"--seat {name}: the players are player_0 to {player_name(num_players - 1)}.")
    return own
