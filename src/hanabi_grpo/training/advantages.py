"""Advantages: how much better a turn was than its alternatives, for one player at a time.

`HANABI_ADVANTAGE` names an estimator, a pure function from games that are compared with each other:

| name | credit | compared with |
|---|---|---|
| `grpo` | the whole game's return | its group: mean, standard deviation |
| `turn` | the game's return, and of penalties the turn's own | its group: mean of the others, standard deviation |
| `rloo` | the whole game's return | its group: mean of the others |
| `state_baseline` | what came from the turn on | its group: mean of the others that met the same history |
| `return_to_go` | what came from the turn on | all turns of the step: mean |
| `reinforce_pp` | the whole game's return | all turns of the step: mean, standard deviation |
| `baseline` | the whole game's return | earlier steps: moving mean |
| `ippo`, `mappo` | what came from the turn on, fading | what a critic expected; all turns of the step |
| `vdn`, `qmix` | the player's learned share of the team's return | its group: mean |

R_i is the player's undiscounted return of game i. Games in which it had no turn enter no mean and
no deviation.

The critics of `ippo` and `mappo` (`critic`) are a bias while they are wrong and λ < 1, the heads of
`vdn` and `qmix` (`credit`) always. `mappo`, `vdn` and `qmix` are experimental: none has beaten
`turn` (docs/results.md)."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import hypot
from types import MappingProxyType
from typing import Any, Literal

from hanabi_grpo.training.comparing import (
    EPSILON,
    Values,
    centred,
    deviation,
    divisor,
    lambda_advantages,
    mean,
    mean_of_others,
    over_games,
    over_turns,
    own_turns,
    returns_to_go,
)
from hanabi_grpo.types import TURN_PARTS, Episode, Turn, player_name

LossUnit = Literal["token", "turn", "sequence"]
DECAY = 0.9
"""What is kept of a moving baseline in each step: its memory is about ten steps."""
Formula = Callable[..., Values]
"""(games, player, whether to divide by the standard deviation) -> Values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """One estimator as it is set up for a run: `grpo(games_of_one_task, 0) == [[0.93, 0.93],
    [-1.06], [0.13]]`.
    """

    name: str
    """Of HANABI_ADVANTAGE."""
    formula: Formula
    pool: Literal["group", "step"]
    """Which games are compared: those of one group, or all games of the step that are on the same
    board.
    """
    scaled: bool
    """Whether to divide by the standard deviation; what the source does, unless the run says
    otherwise.
    """

    def __call__(self, episodes: Sequence[Episode], player: int) -> Values:
        """Return the advantages of a player's turns in games of one pool in which its seat is
        trained.
        """
        return self.formula(episodes, player, self.scaled)


def group_relative(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return (R_i − mean R) / (std R + ε) for every turn of game i; unscaled R_i − mean R.

    Source: DeepSeekMath (arXiv 2402.03300), outcome supervision, section 4.1.2; without the
    division it is the
    advantage of Dr. GRPO (arXiv 2503.20783).
    """
    return over_games(episodes, player, partial(centred, scaled=scaled))


def turn_credit(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return S_i − mean S + p_it − mean p for turn t of game i, both means over the other games;
    scaled, divided by σ.

    S_i is the player's return of game i without the parts of single turns (`TURN_PARTS`), and p_it
    the sum of those for turn t. A penalty reaches the reply that earned it and no other, and
    likewise a debate's `later_rounds`, in which what follows a reply is counted already. A game
    without others gets 0.

    Unscaled, the expectation is ∇E[S] + E[Σ_t ∇E[p_t | h_t]], h_t being what the player knows
    before its turn t: the gradient of the game's return and of what a reply costs where it is made,
    with these histories as often as they come. The baselines are of other games, so they add
    nothing to it. The gradient of E[S + Σ_t p_t] has the further term E[Σ_t ∇log π(a_t | h_t)
    Σ_{u>t} p_u]: a reply is not credited with the penalties of its player's later replies, which it
    may provoke, or spare by ending the game. Where these do not depend on it, as with no bad
    replies at all, the term is 0. `rloo` has it, and its noise.

    σ = sqrt(var S + var p) + ε, over games and over turns, divides both, so a point weighs against
    a penalty as HANABI_REWARD_SCORE and its like say. A task of little spread weighs more by it, as
    in GRPO.

    Source: this project; S alone is RLOO's estimator.
    """

    def paid(one: Turn, *, for_reply: bool) -> float:
        return sum(
            value
            for part, value in one.rewards[player].items()
            if (part in TURN_PARTS) == for_reply
        )

    penalties = [
        [paid(one, for_reply=True) for one in episode.trajectory(player)] for episode in episodes
    ]
    games = [
        [sum(paid(one, for_reply=False) for one in episode.turns)] if own else []
        for episode, own in zip(episodes, penalties, strict=True)
    ]
    deviations = (
        deviation([value for game in values for value in game]) for values in (games, penalties)
    )
    scale = hypot(*deviations) + EPSILON if scaled else 1.0
    found: Values = []
    for place, own in enumerate(penalties):
        score, penalty = mean_of_others(games, place), mean_of_others(penalties, place)
        if score is None or penalty is None:
            found.append([0.0] * len(own))
        else:
            found.append([(games[place][0] - score + value - penalty) / scale for value in own])
    return found


def leave_one_out(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return R_i − 1/(K − 1) Σ_{j≠i} R_j for every turn of game i of K; scaled, divided by (std R +
    ε).

    It is unbiased while nothing is divided, and K/(K − 1) times R_i − mean R. A game without others
    gets 0.

    Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; for language
    models Ahmadian et al.
    (arXiv 2402.14740), the RLOO estimator.
    """

    def compare(returns: Sequence[float]) -> list[float]:
        others, scale = len(returns) - 1, divisor(returns, scaled)
        return [
            (value - (sum(returns[:place]) + sum(returns[place + 1 :])) / others) / scale
            if others
            else 0.0
            for place, value in enumerate(returns)
        ]

    return over_games(episodes, player, compare)


def above_baseline(
    episodes: Sequence[Episode],
    player: int,
    scaled: bool,
    baselines: Mapping[str, float] = MappingProxyType({}),
) -> Values:
    """Return R_i − b for every turn of game i; scaled, divided by (std R + ε).

    b is the player's baseline on this board before the step (`moved`), or without one the mean of
    these games. It holds no game that it judges, so the gradient is unbiased while nothing is
    divided.

    Source: REINFORCE with a reinforcement baseline, Williams 1992; one baseline for each player is
    SPIRAL's
    role-conditioned advantage (arXiv 2506.24119), which moves it with every game instead of every
    step."""

    def compare(returns: Sequence[float]) -> list[float]:
        centre = (
            baselines.get(baseline_key(player, episodes[0].spec_hash), mean(returns))
            if returns
            else 0.0
        )
        scale = divisor(returns, scaled)
        return [(value - centre) / scale for value in returns]

    return over_games(episodes, player, compare)


def batch_normalised(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return (R_i − μ) / (σ + ε) for every turn of game i; unscaled R_i − μ.

    μ and σ are over all turns of this player in the step, each with the return of its game. The
    source counts tokens instead, and has a KL term in the reward.

    Source: REINFORCE++ (arXiv 2501.03262v9), global advantage normalisation.
    """
    return over_turns(
        [[one.reward(player)] * len(one.trajectory(player)) for one in episodes], scaled
    )


def to_go(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return G_it − mean G for turn t of game i; scaled (G_it − mean G) / (std G + ε).

    G_it is what the player receives from its turn t on, that turn included, without discount,
    whoever moved. Mean and deviation are over all turns of this player in the step: GAE with γ = λ
    = 1 and that mean in the place of a value function.

    Source: MARSHAL (arXiv 2510.15414), turn-level estimator, normalised over the batch for each
    agent; not divided.
    """
    return over_turns(returns_to_go(episodes, player), scaled)


def above_state(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return G_it − mean G for turn t of game i, the mean over turns of the same state; scaled,
    divided by (std G + ε).

    G_it is what the player receives from its turn t on, without discount. A state is what the
    player has seen and said before the turn, token by token: the conversation of the whole game so
    far, or of HANABI_MEMORY. The mean is over the turns of *other* games of the group that met the
    state; where none did, over those with the same number among their game's turns, then over all.
    So the gradient is unbiased while nothing is divided. The game's own turns stay out: with
    HANABI_MEMORY=turn it may meet a state twice, and what came after the one depends on the other.

    Source: GiGPO (arXiv 2505.10978), which adds this to the game's advantage, discounts, and has
    the game in the mean.
    """
    gains, known = returns_to_go(episodes, player), dict[tuple[int, object], int]()
    levels = [
        [
            ((0, state), (1, number), (2, 0))
            for number, state in enumerate(states_of(episode, player, known))
        ]
        for episode in episodes
    ]
    met: dict[tuple[int, int], Values] = defaultdict(lambda: [[] for _ in episodes])
    for game, (values, keys) in enumerate(zip(gains, levels, strict=True)):
        for value, turn in zip(values, keys, strict=True):
            for key in turn:
                met[key][game].append(value)
    scale = divisor([value for game in gains for value in game], scaled)
    found: Values = [[] for _ in episodes]
    for game, (values, keys) in enumerate(zip(gains, levels, strict=True)):
        for value, turn in zip(values, keys, strict=True):
            means = (mean_of_others(met[key], game) for key in turn)
            found[game].append(
                (value - next((one for one in means if one is not None), value)) / scale
            )
    return found


def states_of(episode: Episode, player: int, known: dict[tuple[int, object], int]) -> list[int]:
    """Return per own turn a number of its state, equal where the conversations before the reply are
    equal.

    `known` grows: (number of what was before, tokens or for a script the text) -> number. It is the
    tree of all conversations, so that none is kept or compared as a whole."""
    found, place = [], 0
    for turn in episode.trajectory(player):
        place = known.setdefault(
            (0 if turn.fresh else place, turn.prompt_ids or turn.prompt), len(known) + 1
        )
        found.append(place)
        place = known.setdefault((place, turn.reply_ids or turn.reply), len(known) + 1)
    return found


Chain = Callable[[Episode, int], Mapping[int, float]]
"""(episode, player) -> values of states by the number of the turn that was made in each."""


def above_critic(
    episodes: Sequence[Episode],
    player: int,
    scaled: bool,
    chain: Chain = own_turns,
    decay: float = 1.0,
) -> Values:
    """Return A_it − mean A for turn t of game i, see `lambda_advantages`; scaled, divided by (std A
    + ε).

    Mean and deviation are over all turns of this player in the step.
    """
    found = []
    for episode in episodes:
        above = lambda_advantages(episode, player, chain(episode, player), decay)
        found.append([above.get(number, 0.0) for number in own_turns(episode, player)])
    return over_turns(found, scaled)


Worth = Callable[[Episode, int], float]
"""(episode, player) -> its part in the episode's return."""


def learned_credit(
    episodes: Sequence[Episode], player: int, scaled: bool, worth: Worth = Episode.reward
) -> Values:
    """Return q_i − mean q for every turn of game i, q being the player's learned part; scaled,
    divided by (std q + ε).

    Source: this project; the parts are those of VDN and QMIX, see `credit`.
    """
    return over_games(episodes, player, partial(centred, scaled=scaled), worth)


ESTIMATORS = {
    one.name: one
    for one in (
        Estimator(name="grpo", formula=group_relative, pool="group", scaled=True),
        Estimator(name="turn", formula=turn_credit, pool="group", scaled=True),
        Estimator(name="rloo", formula=leave_one_out, pool="group", scaled=False),
        Estimator(name="state_baseline", formula=above_state, pool="group", scaled=False),
        Estimator(name="return_to_go", formula=to_go, pool="step", scaled=False),
        Estimator(name="reinforce_pp", formula=batch_normalised, pool="step", scaled=True),
        Estimator(name="baseline", formula=above_baseline, pool="step", scaled=False),
        *(
            Estimator(name=name, formula=above_critic, pool="step", scaled=True)
            for name in ("ippo", "mappo")
        ),
        *(
            Estimator(name=name, formula=learned_credit, pool="group", scaled=False)
            for name in ("vdn", "qmix")
        ),
    )
}
"""By name; `baseline` without any earlier step, those that learn without having learned."""


def choose_estimator(
    name: str,
    scale: Literal["std", "none"] | None = None,
    baselines: Mapping[str, float] | None = None,
    **learned: Any,
) -> Estimator:
    """Return the estimator of a run, scaled as its source does unless `scale` says.

    `baselines` are of `moved`, for `baseline`; `learned` are `chain` and `decay` for `ippo` and
    `mappo`, `worth` for `vdn` and `qmix`."""
    found = ESTIMATORS[name]
    given = {"baselines": baselines or {}} if name == "baseline" else learned
    formula = partial(found.formula, **given) if given else found.formula
    return replace(found, formula=formula, scaled=found.scaled if scale is None else scale == "std")


def moved(
    baselines: Mapping[str, float], episodes: Sequence[Episode], player: int
) -> dict[str, float]:
    """Return the baselines after a step: b ← 0.9·b + 0.1·mean R for each board of its games, mean R
    at the first time.

    `baselines` are by player and board, {"player_0 9f3c…": 1.75}; `episodes` those in which the
    seat is trained."""
    after = dict(baselines)
    for board in dict.fromkeys(episode.spec_hash for episode in episodes):
        here = [
            one.reward(player)
            for one in episodes
            if one.spec_hash == board and one.trajectory(player)
        ]
        if here:
            key = baseline_key(player, board)
            after[key] = (
                DECAY * baselines[key] + (1 - DECAY) * mean(here)
                if key in baselines
                else mean(here)
            )
    return after


def baseline_key(player: int, board: str) -> str:
    """Return the name of a baseline in a checkpoint."""
    return f"{player_name(player)} {board}"


def step_advantages(
    groups: Sequence[Sequence[Episode]], player: int, estimator: Estimator
) -> list[Values]:
    """Return per group, per game, per own turn of a player its advantage.

    `groups` are the games in which the player's seat is trained. Games of different boards are
    never compared: their returns have other ranges."""
    pools: dict[tuple[int | None, str], list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for game, episode in enumerate(group):
            key = (number if estimator.pool == "group" else None, episode.spec_hash)
            pools.setdefault(key, []).append((number, game))
    found: list[Values] = [[[] for _ in group] for group in groups]
    for places in pools.values():
        compared = estimator([groups[number][game] for number, game in places], player)
        for (number, game), values in zip(places, compared, strict=True):
            found[number][game] = values
    return found


def token_weights(turns: Sequence[Sequence[int]], unit: LossUnit) -> list[list[float]]:
    """Return per sequence and turn the weight of each of that turn's tokens, from `turns`, their
    numbers of tokens.

    A player's loss is 1/N Σ_t ℓ_t over its N reply tokens of the step, with ℓ_t linear in A_t under
    positive factors. A_t w_t in the place of A_t gives the wanted mean:

    - token: w = 1, the mean over tokens
    - turn: w = N / (T n), with T turns that have tokens and n tokens in this turn: 1/T Σ_turns (1/n
      Σ_t ℓ_t)
    - sequence: w = N / (S n), with S sequences that have tokens and n reply tokens in this one:
      1/S Σ_sequences (1/n Σ_t ℓ_t), GRPO's own mean (arXiv 2402.03300, equation 3)

    Σ_t w_t = N for each. A KL term in the loss is no part of ℓ and stays a mean over tokens.
    """
    total = sum(map(sum, turns))
    if unit == "turn":
        count = sum(length > 0 for lengths in turns for length in lengths)
        return [
            [total / (count * length) if length else 0.0 for length in lengths] for lengths in turns
        ]
    if unit == "sequence":
        count = sum(sum(lengths) > 0 for lengths in turns)
        return [
            [total / (count * sum(lengths)) if length else 0.0 for length in lengths]
            for lengths in turns
        ]
    return [[1.0] * len(lengths) for lengths in turns]
