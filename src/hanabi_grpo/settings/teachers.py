"""HANABI_TEACHER: which player learns from whom, and which settings rule out a teacher.

Everything here is a function of its arguments; nothing is read or sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import MixingPolicy
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import Settings
from hanabi_grpo.settings.partners import (
    MAX_GUEST_ADAPTERS,
    num_adapters,
    num_kept_versions,
    read_pool,
    replaced_player,
    seated,
)
from hanabi_grpo.settings.refs import (
    CheckpointRef,
    Role,
    ScriptRef,
    parse_ref,
    parse_seat,
    split_player,
)
from hanabi_grpo.training.estimators import ESTIMATORS, Learned, names_needing
from hanabi_grpo.types import SHARED_ADAPTER, player_names

LabelKind = Literal["reply", "distribution", "logprobs"]
"""Labels of a teacher: its reply, the probabilities of its replies, or its logprobs of the player's
reply."""
Teacher = ScriptRef | Role | CheckpointRef
"""Who may teach: a script, the base model, or an adapter of a checkpoint."""
VARIABLE = "HANABI_TEACHER"
_UNREAD = {
    "teacher_weight": "HANABI_TEACHER_WEIGHT",
    "teacher_steps": "HANABI_TEACHER_STEPS",
    "teacher_plays": "HANABI_TEACHER_PLAYS",
    "reward_weight": "HANABI_REWARD_WEIGHT",
}
"""Settings that have no effect without a teacher, by field."""
VARIABLES_OF_TEACHERS = tuple(_UNREAD.values())
"""Only players with a teacher need a value of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatTeacher:
    """The teacher of a seat, also on the wire."""

    policy: str
    """A script of the environment, or a model that scores what the player says: "base", or an
    adapter at a version."""
    plays: float = 0.0
    """Fraction of the turns on which it plays instead of its player."""

    @property
    def is_script(self) -> bool:
        """Whether it replies itself instead of scoring the player's replies."""
        return isinstance(parse_seat(self.policy), ScriptRef)


def parse_teachers(settings: Settings) -> dict[str, Teacher]:
    """Return who teaches each player, without players that have no teacher.

    A teacher without a player's name teaches everybody who learns and is not named.

    Example:
        HANABI_TEACHER=player_1=iggi gives {"player_1": ScriptRef(name="iggi")}

    Raises:
        SettingsError: An entry cannot teach, names no player, or names a player twice.
    """
    names = player_names(settings.players)
    named: dict[str, Teacher] = {}
    others: Teacher | None = None
    for entry in settings.teacher:
        player, spec = split_player(entry)
        teacher = _teacher(spec, settings)
        if player is None:
            if others is not None:
                raise SettingsError(
                    f"{_typed(settings)}: both {others} and {teacher} are for all players; keep "
                    f"one, or put a player's name before it, e.g. {names[0]}={others}."
                )
            others = teacher
            continue
        if player not in names:
            raise SettingsError(
                f"{_typed(settings)}: {player} is not a player of this game; allowed: "
                f"{', '.join(names)}."
            )
        if player in named:
            raise SettingsError(f"{_typed(settings)}: {player} is named twice; name it once.")
        named[player] = teacher
    teachers: dict[str, Teacher] = {}
    resting = _resting(settings)
    for name in names:
        if name in named:
            teachers[name] = named[name]
        elif others is not None and name not in resting:
            teachers[name] = others
    if others is not None and len(named) == len(names):
        raise SettingsError(
            f"{_typed(settings)}: {others} applies to no player, since every player is named; "
            "remove it."
        )
    return teachers


def seat_teachers(
    settings: Settings,
    version: int,
    guest: Callable[[CheckpointRef, str], str] | None = None,
) -> tuple[SeatTeacher | None, ...]:
    """Return the teacher of each seat at a version; () if the run has no teacher.

    Args:
        settings: The run's settings.
        version: Optimizer steps made so far, after which players may have moved to other seats.
        guest: (checkpoint, player) -> the seat of the checkpoint's adapter that teaches the player;
            None: no checkpoint teaches.

    Returns:
        The teacher of each seat; None for a seat without a teacher.
    """
    teachers = parse_teachers(settings)
    if not teachers:
        return ()
    players = seated(settings.players, version, settings.swap_every)
    seats: list[SeatTeacher | None] = []
    for player in players:
        seat = None
        if player in teachers:
            teacher = teachers[player]
            policy = str(teacher)
            if isinstance(teacher, CheckpointRef) and guest is not None:
                policy = guest(teacher, player)
            seat = SeatTeacher(policy=policy, plays=settings.teacher_plays_of(player))
        seats.append(seat)
    return tuple(seats)


def label_kinds(settings: Settings) -> dict[str, LabelKind]:
    """Return the kind of labels of each player with a teacher.

    A script's labels are a distribution if it samples and gives the probability of each reply.

    Args:
        settings: The run's settings.
    """
    kinds: dict[str, LabelKind] = {}
    for player, teacher in parse_teachers(settings).items():
        if not isinstance(teacher, ScriptRef):
            kinds[player] = "logprobs"
            continue
        policy = registry.get(settings.env).policies[teacher.name]()
        kinds[player] = "distribution" if isinstance(policy, MixingPolicy) else "reply"
    return kinds


def check_teacher(settings: Settings) -> None:
    """Refuse teachers that cannot teach, and settings that would have no effect.

    Raises:
        SettingsError: There are some.
    """
    if not settings.teacher:
        _check_unread(settings)
        return
    teachers = parse_teachers(settings)
    _check_learners(settings, teachers)
    scripts = [ref for ref in teachers.values() if isinstance(ref, ScriptRef)]
    if settings.thinking and scripts:
        raise SettingsError(
            f"{_typed(settings)} with HANABI_THINKING=1: a script does not think as the model "
            "does, so a player would learn to skip its own thoughts; unset one, or use a model."
        )
    _check_models(settings, teachers)
    _check_plays(settings, teachers)
    # With NUM_TRAIN_EPOCHS the number of steps follows from the dataset, and is checked with it.
    check_something_teaches(settings, settings.max_steps or 0)


def _check_unread(settings: Settings) -> None:
    for field, variable in _UNREAD.items():
        if field in settings.model_fields_set:
            raise SettingsError(
                f"{variable}={getattr(settings, field)} without {VARIABLE}: no player has a "
                f"teacher, so it would have no effect; set {VARIABLE} to a script, e.g. "
                f"{_scripts(settings)[0] if _scripts(settings) else 'of a game that has some'}, or "
                f"unset {variable}."
            )


def _resting(settings: Settings) -> dict[str, str]:
    """Return the players that do not learn, and the setting that says so."""
    resting = {name: f"HANABI_FREEZE={','.join(settings.freeze)}" for name in settings.freeze}
    replaced = replaced_player(settings)
    if replaced is not None:
        resting[replaced] = "HANABI_PARTNER_SHARE=1, where a partner always takes its seat"
    return resting


def _check_learners(settings: Settings, teachers: Mapping[str, Teacher]) -> None:
    """Refuse a teacher of a player that does not learn."""
    resting = _resting(settings)
    for player in teachers:
        if player in resting:
            learners = [name for name in player_names(settings.players) if name not in resting]
            raise SettingsError(
                f"{_typed(settings)} with {resting[player]}: {player} does not learn, so it needs "
                f"no teacher; name those that do ({', '.join(learners)}), e.g. "
                f"{learners[0]}={teachers[player]}."
            )


def _check_models(settings: Settings, teachers: Mapping[str, Teacher]) -> None:
    """Refuse models as teachers that cannot score, or that the server has no room for."""
    models = {name: ref for name, ref in teachers.items() if not isinstance(ref, ScriptRef)}
    for player, ref in models.items():
        if settings.temperature != 1:
            raise SettingsError(
                f"{_typed(settings)} with TEMPERATURE={settings.temperature:g}: {ref} scores "
                f"replies at temperature 1, but {player} samples at another; set TEMPERATURE=1, or "
                "use a script."
            )
        if settings.teacher_plays_of(player):
            raise SettingsError(
                f"{_typed(settings)} with HANABI_TEACHER_PLAYS={settings.teacher_plays}: {ref} "
                f"scores what {player} says but does not reply; set HANABI_TEACHER_PLAYS=0, or "
                "use a script."
            )
    checkpoints = {str(ref) for ref in models.values() if isinstance(ref, CheckpointRef)}
    pool = read_pool(settings)
    needed = len(checkpoints) and len(models) + num_adapters(
        pool,
        num_players=settings.players,
        shared=settings.adapters == SHARED_ADAPTER,
        num_earlier=num_kept_versions(settings),
    )
    if needed > MAX_GUEST_ADAPTERS:
        raise SettingsError(
            f"{_typed(settings)} with HANABI_PARTNERS={','.join(settings.partners)}: up to {needed}"
            f" adapters of other runs, but a server holds {MAX_GUEST_ADAPTERS}; name fewer."
        )


def _check_plays(settings: Settings, teachers: Mapping[str, Teacher]) -> None:
    """Refuse a teacher that plays if a critic or credit network learns from every turn."""
    needs = ESTIMATORS[settings.advantage].needs
    if needs is not Learned.NOTHING and any(map(settings.teacher_plays_of, teachers)):
        raise SettingsError(
            f"HANABI_TEACHER_PLAYS={settings.teacher_plays} with HANABI_ADVANTAGE="
            f"{settings.advantage}: this estimator trains a network on the players' own "
            f"replies; set HANABI_TEACHER_PLAYS=0, or use one of "
            f"{', '.join(names_needing(Learned.NOTHING))}."
        )


def check_something_teaches(settings: Settings, num_steps: int) -> None:
    """Refuse to switch off the reward if the teacher is switched off too.

    A reward teaches nothing on turns that the teacher plays, so a teacher that plays all of them
    switches it off.

    Args:
        settings: Settings of the run.
        num_steps: Steps of the whole run.

    Raises:
        SettingsError: A player would learn from neither.
    """
    steps = settings.teacher_steps
    for player in parse_teachers(settings):
        plays_all = settings.teacher_plays_of(player) == 1
        if settings.reward_weight_of(player) and not plays_all:
            continue
        given = f"HANABI_REWARD_WEIGHT={settings.reward_weight}"
        remedy = "a reward weight above 0"
        if plays_all:
            given = f"HANABI_TEACHER_PLAYS={settings.teacher_plays}"
            remedy = "HANABI_TEACHER_PLAYS below 1"
        if not settings.teacher_weight_of(player):
            raise SettingsError(
                f"{given} with HANABI_TEACHER_WEIGHT={settings.teacher_weight}: {player} would "
                "learn from neither; set one of them above 0."
            )
        if steps and steps < num_steps:
            raise SettingsError(
                f"{given} with HANABI_TEACHER_STEPS={steps} in a run of {num_steps} steps: "
                f"{player} would learn nothing from step {steps + 1} on; set "
                f"HANABI_TEACHER_STEPS=0, or at least {num_steps}, or {remedy}."
            )


def _teacher(spec: str, settings: Settings) -> Teacher:
    ref = parse_ref(spec, where=VARIABLE, roles=(Role.BASE,), scripts=_scripts(settings))
    if isinstance(ref, ScriptRef | Role | CheckpointRef):
        return ref
    raise SettingsError(
        f"{VARIABLE}={spec}: a model behind a URL does not return logprobs of given tokens; "
        f"allowed are base, a checkpoint, and the scripts of {settings.env}: "
        f"{', '.join(_scripts(settings))}. To learn from its games, use hanabi-grpo collect and "
        "warm-start."
    )


def _scripts(settings: Settings) -> tuple[str, ...]:
    return tuple(registry.get(settings.env).policies)


def _typed(settings: Settings) -> str:
    return f"{VARIABLE}={','.join(settings.teacher)}"
