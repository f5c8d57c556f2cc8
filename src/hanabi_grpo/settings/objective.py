"""Settings of the objective that contradict each other, and the estimator that they choose."""

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import Settings
from hanabi_grpo.settings.per_player import entries
from hanabi_grpo.settings.teachers import parse_teachers
from hanabi_grpo.training.estimators import (
    DISCOUNTED,
    ESTIMATORS,
    Estimator,
    Learned,
    make_estimator,
    names_needing,
)


def run_estimator(settings: Settings) -> Estimator:
    """Return the estimator of a run with all its options."""
    return make_estimator(
        settings.advantage,
        scale=settings.advantage_scale,
        gae_lambda=settings.gae_lambda,
        gamma=settings.gamma,
        normalize=settings.normalize,
        normalize_over=settings.normalize_over,
    )


def check_objective(settings: Settings) -> None:
    """Refuse settings of the objective that contradict each other.

    Raises:
        SettingsError: They do.
    """
    _check_normalization(settings)
    _check_discount(settings)
    _check_group_size(settings)
    _check_minibatches(settings)
    _check_paid(settings)
    _check_kl(settings)
    _check_entropy(settings)
    _check_token_filter(settings)
    _check_sequential(settings)
    _check_correction(settings)
    _check_critic(settings)
    _check_beliefs(settings)


def _check_beliefs(settings: Settings) -> None:
    if settings.thinking and any(entries(settings.belief_weight).values()):
        raise SettingsError(
            f"HANABI_BELIEF_WEIGHT={settings.belief_weight} with HANABI_THINKING=1: right answers "
            "have no thoughts, so a player would learn to skip its own; unset one."
        )
    weights = entries(settings.belief_weight)
    for name in settings.freeze:
        if weights.get(name):
            raise SettingsError(
                f"HANABI_BELIEF_WEIGHT={settings.belief_weight} with HANABI_FREEZE="
                f"{','.join(settings.freeze)}: {name} does not learn, so its weight would have no "
                "effect; leave it out, or do not freeze the player."
            )


def _check_normalization(settings: Settings) -> None:
    given = _given_normalization(settings)
    if settings.advantage_scale is not None and given:
        raise SettingsError(
            f"HANABI_ADVANTAGE_SCALE={settings.advantage_scale} with {given}: both set whether "
            "advantages are scaled; unset HANABI_ADVANTAGE_SCALE, and set HANABI_NORMALIZE=mean "
            "or mean_std."
        )


def _given_normalization(settings: Settings) -> str:
    """Return the normalization settings that are set, as messages name them; "" for none."""
    given = []
    if settings.normalize is not None:
        given.append(f"HANABI_NORMALIZE={settings.normalize}")
    if settings.normalize_over is not None:
        given.append(f"HANABI_NORMALIZE_OVER={settings.normalize_over}")
    return " ".join(given)


def _check_discount(settings: Settings) -> None:
    if settings.gamma == 1 or settings.advantage in DISCOUNTED:
        return
    raise SettingsError(
        f"HANABI_GAMMA={settings.gamma:g} with HANABI_ADVANTAGE={settings.advantage}: this "
        "estimator does not discount, so gamma would have no effect; unset it, or use one of "
        f"{', '.join(DISCOUNTED)}."
    )


def _check_group_size(settings: Settings) -> None:
    if settings.num_generations > 1 or run_estimator(settings).compares_more_than_a_group():
        return
    others = [name for name in ESTIMATORS if make_estimator(name).compares_more_than_a_group()]
    given = _given_normalization(settings)
    raise SettingsError(
        f"NUM_GENERATIONS=1 with HANABI_ADVANTAGE={settings.advantage}"
        f"{' ' + given if given else ''}: a game is compared with the other games of its group, "
        "so a group of one gives no gradient; set 2 or more, or use one of "
        f"{', '.join(others)}, or HANABI_NORMALIZE_OVER=environment."
    )


def _check_minibatches(settings: Settings) -> None:
    """Refuse more minibatches than a step has groups."""
    if settings.minibatches <= settings.tasks_per_step:
        return
    raise SettingsError(
        f"HANABI_MINIBATCHES={settings.minibatches} with HANABI_TASKS_PER_STEP="
        f"{settings.tasks_per_step}: a minibatch needs at least one whole group, the games of one "
        f"task; set 1 to {settings.tasks_per_step}, or more tasks (a smaller NUM_GENERATIONS "
        "keeps the number of games per step the same)."
    )


def _check_paid(settings: Settings) -> None:
    """Refuse changed rewards if a critic or credit network predicts points."""
    needs = ESTIMATORS[settings.advantage].needs
    if settings.reward_clip is not None and needs.is_credit:
        raise SettingsError(
            f"HANABI_REWARD_CLIP={settings.reward_clip:g} with HANABI_ADVANTAGE="
            f"{settings.advantage}: this estimator divides the reward of the whole team, but the "
            "clip limits the reward of one player; unset it, or use another estimator."
        )
    if settings.whiten_rewards and needs is not Learned.NOTHING:
        raise SettingsError(
            f"HANABI_WHITEN_REWARDS=1 with HANABI_ADVANTAGE={settings.advantage}: this estimator "
            "trains a network that predicts points, and whitening changes their scale in every "
            "step; set HANABI_WHITEN_ADVANTAGES=1 instead, or use another estimator."
        )


def _check_kl(settings: Settings) -> None:
    """Refuse settings of the KL term that have no effect, or that the estimator cannot honor."""
    choices = {
        f"HANABI_KL_IN={settings.kl_in}": settings.kl_in != "loss",
        f"HANABI_KL_TARGET={settings.kl_target}": settings.kl_target is not None,
        f"HANABI_REFERENCE={settings.reference}": settings.reference != "base",
    }
    if not settings.beta:
        for name, is_given in choices.items():
            if is_given:
                raise SettingsError(
                    f"{name} with BETA=0: there is no KL term, so it has no effect; set BETA, the "
                    "weight of that term (with HANABI_KL_TARGET its initial value), e.g. 0.01, or "
                    "unset it."
                )
    if settings.kl_in == "reward":
        for player in parse_teachers(settings):
            if not settings.reward_weight_of(player):
                raise SettingsError(
                    f"HANABI_KL_IN=reward with HANABI_REWARD_WEIGHT={settings.reward_weight}: the "
                    f"KL is part of the reward, so {player} would not learn from it; set "
                    "HANABI_KL_IN=loss."
                )
    if settings.kl_in == "reward" and ESTIMATORS[settings.advantage].needs.is_credit:
        raise SettingsError(
            f"HANABI_KL_IN=reward with HANABI_ADVANTAGE={settings.advantage}: this estimator "
            "divides the reward of the whole team, but the KL is a cost of one player; set "
            "HANABI_KL_IN=loss, or use another estimator."
        )


def _check_entropy(settings: Settings) -> None:
    """Refuse an entropy target that has no effect."""
    if settings.entropy_target is None or settings.entropy_bonus:
        return
    raise SettingsError(
        f"HANABI_ENTROPY_TARGET={settings.entropy_target:g} with HANABI_ENTROPY_BONUS=0: the "
        "target ends a bonus, and there is none, so it has no effect; set HANABI_ENTROPY_BONUS, "
        "e.g. 0.05, or unset the target."
    )


def _check_token_filter(settings: Settings) -> None:
    """Refuse a filter that makes all games of a task the same."""
    if settings.top_k != 1:
        return
    raise SettingsError(
        "TOP_K=1: only the most likely token is sampled, so all games of a task are the same and "
        "nothing could be learned; allowed in training are 0 (all tokens) and 2 or more."
    )


def _check_sequential(settings: Settings) -> None:
    """Refuse settings of sequential updates without sequential updates."""
    if settings.update == "sequential":
        return
    choices = {
        f"HANABI_SEQUENTIAL_FACTOR={settings.sequential_factor}": (
            settings.sequential_factor != "game"
        ),
        f"HANABI_SEQUENTIAL_LIMIT={settings.sequential_limit:g}": settings.sequential_limit != 2,
    }
    for name, is_given in choices.items():
        if is_given:
            raise SettingsError(
                f"{name} with HANABI_UPDATE={settings.update}: players are not updated in turn, "
                "so it would have no effect; set HANABI_UPDATE=sequential, or unset it."
            )


def _check_correction(settings: Settings) -> None:
    """Refuse a limit of importance weights that nothing uses."""
    if settings.sampler_correction != "none":
        return
    if "sampler_correction_limit" in settings.model_fields_set:
        raise SettingsError(
            f"HANABI_SAMPLER_CORRECTION_LIMIT={settings.sampler_correction_limit:g} with "
            "HANABI_SAMPLER_CORRECTION=none: there are no importance weights, so it would have no "
            "effect; unset it, or set HANABI_SAMPLER_CORRECTION."
        )


def _check_critic(settings: Settings) -> None:
    """Refuse settings of critics, or of kinds of critics, that the estimator does not have."""
    needs = ESTIMATORS[settings.advantage].needs
    with_critic = names_needing(Learned.CRITIC, Learned.CENTRAL_CRITIC)
    if "gae_lambda" in settings.model_fields_set and settings.advantage not in with_critic:
        raise SettingsError(
            f"HANABI_GAE_LAMBDA={settings.gae_lambda:g} with HANABI_ADVANTAGE="
            f"{settings.advantage}: this estimator has no critic, so it would have no effect; "
            f"unset it, or set HANABI_ADVANTAGE to one of {', '.join(with_critic)}."
        )
    if "critic_learning_rate" in settings.model_fields_set and needs is Learned.NOTHING:
        learning = names_needing(*(kind for kind in Learned if kind is not Learned.NOTHING))
        raise SettingsError(
            f"HANABI_CRITIC_LEARNING_RATE={settings.critic_learning_rate:g} with HANABI_ADVANTAGE="
            f"{settings.advantage}: this estimator trains no network, so it would have no effect; "
            f"unset it, or set HANABI_ADVANTAGE to one of {', '.join(learning)}."
        )
    with_own_critic = ", ".join(names_needing(Learned.CRITIC))
    if settings.critic == "adapter" and settings.advantage not in names_needing(Learned.CRITIC):
        raise SettingsError(
            f"HANABI_CRITIC=adapter with HANABI_ADVANTAGE={settings.advantage}: this estimator has "
            "no critic that reads one player's conversation; unset it, or set HANABI_ADVANTAGE="
            f"{with_own_critic}."
        )
    if settings.gae_unit == "token" and settings.critic != "adapter":
        raise SettingsError(
            f"HANABI_GAE_UNIT=token with HANABI_CRITIC={settings.critic}: this critic has no "
            "values between the tokens of a reply; set HANABI_CRITIC=adapter (with "
            f"HANABI_ADVANTAGE={with_own_critic}), or unset it."
        )
