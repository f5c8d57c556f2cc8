"""Who is trained in which step, at which rate, and which of these settings do not go together."""

from collections.abc import Mapping

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import Settings
from hanabi_grpo.types import SHARED_ADAPTER, player_names


def check_updates(settings: Settings) -> None:
    """Refuse settings of updates that contradict each other or the number of players.

    Raises:
        SettingsError: With the values and a way out.
    """
    names, count = player_names(settings.players), len(settings.learning_rates)
    for name in settings.freeze:
        if name not in names:
            raise SettingsError(f"HANABI_FREEZE={name}: not at the table; allowed are {', '.join(names)}.")
    if count not in (0, settings.players):
        raise SettingsError(
            f"HANABI_LEARNING_RATES has {count} rate(s) for {settings.players} players; give one for each player, in "
            "turn order, or unset it for LEARNING_RATE."
        )
    apart = {
        "HANABI_FREEZE": settings.freeze,
        "HANABI_LEARNING_RATES": settings.learning_rates,
        f"HANABI_UPDATE={settings.update}": settings.update != "independent",
    }
    for name in [name for name, given in apart.items() if given and settings.adapters == SHARED_ADAPTER]:
        raise SettingsError(
            f"{name} with HANABI_ADAPTERS=shared: the players are one adapter, which cannot be told apart; unset it, "
            "or set HANABI_ADAPTERS=per_player."
        )
    if not trained_players(settings):
        raise SettingsError(
            f"HANABI_FREEZE={','.join(settings.freeze)}: nobody is left to train; leave out at least one player."
        )
    if settings.clip_dual is not None and settings.clip_dual <= 1 + settings.clip_high:
        raise SettingsError(
            f"HANABI_CLIP_DUAL={settings.clip_dual:g} is not above 1 + HANABI_CLIP_HIGH = {1 + settings.clip_high:g}, "
            "so it would cut tokens with a positive advantage too; the usual value is 3."
        )
    if settings.start_from and settings.resume not in (None, "latest"):
        raise SettingsError(
            f"HANABI_START_FROM with RESUME={settings.resume}: both say which weights the run starts with; unset one. "
            "RESUME=latest may stay: it wins once the run has a checkpoint."
        )


def trained_players(settings: Settings) -> tuple[str, ...]:
    """Return the players that are not frozen, in turn order, e.g. ("player_0",)."""
    return tuple(name for name in player_names(settings.players) if name not in settings.freeze)


def active_players(settings: Settings, step: int) -> tuple[str, ...]:
    """Return the players whose data counts in a step.

    Args:
        settings: HANABI_FREEZE, HANABI_UPDATE and HANABI_ALTERNATE_EVERY from here.
        step: Steps that were made before it.
    """
    trained = trained_players(settings)
    if settings.update != "alternating":
        return trained
    return (trained[step // settings.alternate_every % len(trained)],)


def steps_of_each(settings: Settings, num_steps: int) -> dict[str, int]:
    """Return in how many of a run's steps each player may move, at least 1; a schedule ends there."""
    trained = trained_players(settings)
    if settings.update != "alternating":
        return dict.fromkeys(player_names(settings.players), num_steps)
    rounds, rest = divmod(num_steps, settings.alternate_every * len(trained))
    every = settings.alternate_every
    counts = {
        name: rounds * every + min(max(rest - position * every, 0), every) for position, name in enumerate(trained)
    }
    return {name: max(counts.get(name, 0), 1) for name in player_names(settings.players)}


def rates_of_each(settings: Settings) -> Mapping[str, float]:
    """Return each adapter's peak learning rate."""
    names = player_names(settings.players)
    rates = settings.learning_rates or (settings.learning_rate,) * len(names)
    return {**dict(zip(names, rates, strict=True)), SHARED_ADAPTER: settings.learning_rate}


def update_notes(settings: Settings) -> list[str]:
    """Return a sentence for each setting that has no effect here."""
    given, alternates = settings.model_fields_set, settings.update == "alternating"
    clips = [f"HANABI_{name.upper()}" for name in ("clip_low", "clip_high", "clip_dual") if name in given]
    corrects = settings.sampler_correction != "none"
    idle = {
        f"{', '.join(clips)}: no effect with HANABI_UPDATES_PER_STEP=1, where every probability ratio is 1": clips
        and settings.updates_per_step == 1
        and not settings.overlap,
        "HANABI_KL=reward: no effect with BETA=0": settings.kl == "reward" and not settings.beta,
        "HANABI_SAMPLER_CORRECTION_LIMIT: no effect without HANABI_SAMPLER_CORRECTION": not corrects
        and "sampler_correction_limit" in given,
        "HANABI_ALTERNATE_EVERY: no effect without HANABI_UPDATE=alternating": not alternates
        and "alternate_every" in given,
        "HANABI_UPDATE=alternating: no effect, HANABI_FREEZE leaves one player to train": alternates
        and len(trained_players(settings)) == 1,
    }
    return [note for note, is_idle in idle.items() if is_idle]
