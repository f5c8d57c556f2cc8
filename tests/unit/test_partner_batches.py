"""What a partner says teaches nobody: batches, gradients, figures and stamps of games with
partners.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings.partners import own_seats, seated
from hanabi_grpo.training import metrics as step_metrics
from hanabi_grpo.training.batching import build_micro_batches, token_rows, usable_groups
from hanabi_grpo.training.estimators import ESTIMATORS, Estimator, make_estimator
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.tasks import check_stamps
from hanabi_grpo.types import Episode, Turn, player_names
from made_batches import made_cut
from made_games import made_episode, made_turn

NAMES = player_names(2)
OWN = own_seats(2, NAMES, 3)
FROZEN = "frozen_0123456789abcdef@50"


def episode_metrics(groups: Sequence[Sequence[Episode]], **other: Any) -> dict[str, float]:
    return step_metrics.episode_metrics(
        groups, {"x": setup("hanabi", {"preset": "laptop"})}, **other
    )


def turn(
    player: int, *ids: int, logprob: float = -0.5, version: int | None = 3, **rewards: float
) -> Turn:
    prompt_ids = (1, 2, 3)[: len(ids)]
    return made_turn(
        player,
        *ids,
        rewards=rewards,
        logprobs=logprob,
        prompt_ids=prompt_ids,
        version=version,
        num_players=3,
    )


def script(player: int, **rewards: float) -> Turn:
    return turn(player, version=None, **rewards)


def game(seats: Sequence[str], *turns: Turn, number: int = 0, **other: Any) -> Episode:
    return made_episode(
        *turns, num_players=len(seats), seats=tuple(seats), game=number, instance_id="here", **other
    )


def with_frozen(token: int = 9, logprob: float = -0.5) -> list[Episode]:
    """Two games of player_0 with a frozen adapter in seat 1, whose turns have tokens, logprobs and
    penalties.
    """
    seats = (OWN[0], FROZEN)
    return [
        game(
            seats,
            turn(0, 4, 5, score=1.0),
            turn(1, token, 6, logprob=logprob, version=50, illegal=-0.5),
            score=1,
        ),
        game(
            seats,
            turn(0, 7, 8),
            turn(1, token, logprob=logprob, version=50),
            turn(0, 5, 5),
            number=1,
        ),
    ]


SELF_PLAY = [
    game(OWN, turn(0, 4, 4, score=1.0), turn(1, 6, 6), seed=1, score=1),
    game(OWN, turn(0, 5, 4), turn(1, 7, 7, illegal=-0.5), seed=1, number=1),
]


def plan(
    groups: Sequence[Sequence[Episode]],
    own: Sequence[str] = OWN,
    *,
    players: Sequence[str] = NAMES,
    estimator: Estimator | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> list[MicroBatch]:
    return build_micro_batches(
        groups,
        trained_seats=own,
        players=players,
        estimator=estimator or make_estimator("grpo"),
        cut=made_cut(rank=rank, world_size=world_size),
        pad_id=0,
        device=torch.device("cpu"),
    )


def moving(groups: Sequence[Sequence[Episode]], own: Sequence[str] = OWN) -> set[str]:
    return {batch.player for batch in plan(groups, own) if batch.has_data}


def flat(batches: Sequence[MicroBatch], player: str) -> list[torch.Tensor]:
    """Return all that a player's micro-batches hold."""
    columns = []
    for batch in batches:
        if batch.player == player:
            columns += [
                batch.ids,
                batch.lengths,
                batch.reply_mask,
                batch.sampler_logprobs,
                batch.advantages,
                torch.tensor(batch.num_reply_tokens),
            ]
    return columns


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(left, right) for left, right in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("estimator", [make_estimator(name) for name in ESTIMATORS])
def test_what_a_frozen_partner_says_is_in_no_batch_and_changes_none(estimator: Any) -> None:
    groups = [with_frozen(), SELF_PLAY]
    batches = plan(groups, estimator=estimator)
    # Player 1 is exactly what it is without the partner's games: rows, advantages, and what the
    # loss is divided by.
    assert same(flat(batches, "player_1"), flat(plan([SELF_PLAY], estimator=estimator), "player_1"))
    assert batches[1].num_reply_tokens == 4
    assert batches[0].num_reply_tokens == 2 + 4 + 2 + 2
    assert token_rows([with_frozen()], 1, estimator, OWN) == []
    assert moving([with_frozen()], OWN) == {"player_0"}
    assert moving(groups, OWN) == {"player_0", "player_1"}
    other = plan([with_frozen(token=11, logprob=-3.0), SELF_PLAY], estimator=estimator)
    for player in ("player_0", "player_1"):
        assert same(flat(batches, player), flat(other, player))
    # The same tokens in the run's own seat do change its batch: the comparison can fail.
    trained = [replace(episode, seats=OWN) for episode in with_frozen(token=11)]
    assert not same(
        flat(batches, "player_1"), flat(plan([trained, SELF_PLAY], estimator=estimator), "player_1")
    )


def test_after_a_swap_each_adapter_learns_from_the_seat_that_it_sat_in() -> None:
    own = own_seats(2, player_names(2), 3, swap_every=2)
    assert own == ("player_1@3", "player_0@3")
    swapped = [replace(episode, seats=own) for episode in SELF_PLAY]
    batches = plan([swapped], own, players=seated(2, 3, 2))
    assert same(flat(batches, "player_1"), flat(plan([SELF_PLAY]), "player_0"))
    assert same(flat(batches, "player_0"), flat(plan([SELF_PLAY]), "player_1"))
    assert seated(3, 4, 2) == ("player_2", "player_0", "player_1") and seated(
        3, 4, 0
    ) == player_names(3)


def test_a_partner_that_always_ends_the_game_first_leaves_a_step_without_data() -> None:
    seats = ("blind", OWN[1])
    group = [game(seats, script(0), number=number) for number in range(4)]
    assert usable_groups([group], ()) == ([group], [])
    assert moving([group], OWN) == set()
    for rank in range(2):
        batches = plan([group], rank=rank, world_size=2)
        assert [int(batch.reply_mask.sum()) for batch in batches] == [0, 0]
        assert {tuple(batch.ids.shape) for batch in batches} == {(1, 2)}
    metrics = episode_metrics([group], own_seats=OWN, partners={"blind": "blind"})
    assert (metrics["player_0/games_without_turn"], metrics["player_1/games_without_turn"]) == (
        0,
        4,
    )
    assert not {"player_0/reward", "player_1/reward", "player_1/entropy_estimate"} & set(metrics)
    # One task of self-play beside it is enough to train.
    assert moving([group, SELF_PLAY], OWN) == {"player_0", "player_1"}


def test_scores_with_each_partner_and_of_self_play_are_told_apart() -> None:
    iggi = [
        game(("iggi", OWN[1]), script(0, score=1.0), turn(1, 3, 3, logprob=-4.0), seed=2, score=3)
    ]
    metrics = episode_metrics(
        [with_frozen(logprob=-9.0), SELF_PLAY, iggi],
        own_seats=OWN,
        partners={FROZEN: "earlier", "iggi": "iggi", "frozen_ffffffffffffffff@1": "checkpoint-1"},
    )
    expected = {
        "games": 5.0,
        "score/mean": 1.0,
        "self_play/games": 2.0,
        "self_play/score": 0.5,
        "partners/earlier/games": 2.0,
        "partners/earlier/score": 0.5,
        "partners/iggi/games": 1.0,
        "partners/iggi/score": 3.0,
        "partners/checkpoint-1/games": 0.0,
        # Player 1's own tokens: four of self-play at -0.5 and two at -4; the frozen partner's -9
        # are nobody's.
        "player_1/entropy_estimate": (4 * 0.5 + 2 * 4.0) / 6,
        "player_0/games_without_turn": 0.0,
        "player_1/games_without_turn": 0.0,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert "partners/checkpoint-1/score" not in metrics
    assert not any(FROZEN in name for name in metrics)
    plain = episode_metrics([SELF_PLAY], own_seats=OWN)
    assert plain == episode_metrics([SELF_PLAY])
    assert not any("self_play" in name or "partners" in name for name in plain)


def test_replies_that_are_all_bad_are_found_beside_a_script_whose_moves_are_legal() -> None:
    bad = [
        game((OWN[0], "iggi"), turn(0, 3, illegal=-0.5), script(1), number=number)
        for number in range(2)
    ]
    assert episode_metrics([bad], own_seats=OWN)["games_all_bad"] == 2
    assert episode_metrics([bad])["games_all_bad"] == 0
    # A partner's penalties are no spread of the players that are trained.
    seats = (OWN[0], FROZEN)
    penalised = [
        game(seats, turn(0, 3)),
        game(seats, turn(0, 3), turn(1, 3, version=50, illegal=-0.5)),
    ]
    other = [game(seats, turn(0, 3), turn(1, 3, version=50)), penalised[1]]
    assert [
        episode_metrics([group], own_seats=OWN)["groups_without_spread"]
        for group in (penalised, other)
    ] == [1, 1]
    assert [episode_metrics([group])["groups_without_spread"] for group in (penalised, other)] == [
        1,
        0,
    ]


def test_stamps_are_those_of_the_seats_that_were_asked_for() -> None:
    for seats, *turns in (
        ((OWN[0], FROZEN), turn(0, 4), turn(1, 4, version=50)),
        (OWN, turn(0, 4), turn(1, 4)),
        ((OWN[0], "iggi"), turn(0, 4), script(1)),
        (("base", OWN[1]), turn(0, 4, version=None), turn(1, 4)),
    ):
        check_stamps([game(seats, *turns)], seats, "here")
        with pytest.raises(ServerError, match=r"of instance here, but .* of instance there"):
            check_stamps([game(seats, *turns)], seats, "there")


def test_turns_and_seats_of_somebody_else_are_refused() -> None:
    for seats, turns, message in (
        (
            (OWN[0], FROZEN),
            (turn(0, 4), turn(1, 4, version=3)),
            r"player_1: a turn is stamped version 3 of instance",
        ),
        (
            (OWN[0], "iggi"),
            (turn(0, 4, version=2), script(1)),
            r"player_0: .* version 2 .* but version 3",
        ),
        (
            (OWN[0], "iggi"),
            (turn(0, 4), turn(1, 4)),
            r"player_1: .* version 3 .* but no version",
        ),
        (
            (OWN[0], "iggi"),
            (turn(0, 4), turn(1, 4, version=None)),
            r"player_1: a turn with tokens, but iggi",
        ),
        (OWN, (turn(0, 4, version=None),), r"player_0: .* no version .* but version 3"),
    ):
        with pytest.raises(ServerError, match=message):
            check_stamps([game(seats, *turns)], seats, "here")
    group = [game(("blind", OWN[1]), script(0))]
    with pytest.raises(ServerError, match=r"the seats blind, player_1@3, but iggi, player_1@3"):
        check_stamps(group, ("iggi", OWN[1]), "here")
    with pytest.raises(ServerError, match=r"the seats \(none\), but player_0@3, player_1@3"):
        check_stamps([replace(SELF_PLAY[0], seats=())], OWN, "here")
