from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hanabi_grpo.client import RolloutResult
from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation import (
    evaluate_scripted,
    evaluate_served,
    paired_difference,
    served_adapters,
    summarise,
)
from hanabi_grpo.evaluation_result import read_result, write_result
from hanabi_grpo.games import make_spec
from hanabi_grpo.policies import make_policy
from hanabi_grpo.rollouts import play_episodes_sync
from hanabi_grpo.types import DroppedGame, Episode, EpisodeStatus, ReplyKind, Turn

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
SPEC = make_spec("laptop")


def turn(action: str, kind: ReplyKind = ReplyKind.LEGAL) -> Turn:
    return Turn(player=0, prompt="", reply=action, action=action, kind=kind, rewards={})


def game(seed: int, score: int, kept: int | None = None, *turns: Turn, suite: str = "eval") -> Episode:
    kept = score if kept is None else kept
    return Episode(
        preset="laptop",
        spec_hash=SPEC.hash,
        num_players=2,
        suite=suite,
        seed=seed,
        status=EpisodeStatus.BOMBED if kept > score else EpisodeStatus.FINISHED,
        score=score,
        score_kept=kept,
        turns=turns,
    )


class ScriptBehindAServer:
    """Plays like a rollout server, with the hint bot for a model."""

    def __init__(self, drops: Sequence[int] = ()) -> None:
        self.requests: list[tuple[list[int], dict[str, str | None]]] = []
        self.drops = drops

    def play(
        self,
        deals: Sequence[Mapping[str, object]],
        *,
        num_games: int,
        max_tokens: int,
        temperature: float,
        adapters: Mapping[str, str | None],
    ) -> RolloutResult:
        assert num_games == 1
        seeds = [int(str(deal["seed"])) for deal in deals]
        self.requests.append((seeds, dict(adapters)))
        config = EnvConfig.model_validate(deals[0]["env_config"])
        episodes = play_episodes_sync(config, [make_policy("hint-bot")] * 2, "eval", seeds)
        return RolloutResult(
            groups=[[] if played.seed in self.drops else [played] for played in episodes],
            dropped=tuple(
                DroppedGame(suite="eval", seed=seed, game=0, reason=f"NonFiniteError: {seed}")
                for seed in seeds
                if seed in self.drops
            ),
        )


def test_a_summary_counts_what_the_games_hold() -> None:
    games = [
        game(1, 4, 4, turn("Hint R"), turn("Play 0", ReplyKind.ILLEGAL)),
        game(0, 0, 2, turn("Discard 0", ReplyKind.UNPARSABLE), turn("Hint 1"), turn("Hint 2"), turn("Play 1")),
    ]
    result = summarise("two", games, SPEC, temperature=0.0)
    assert (result.seeds, result.scores, result.scores_kept) == ((0, 1), (0, 4), (2, 4))
    assert (result.mean, result.standard_error, result.mean_kept) == (2.0, 2.0, 3.0)
    assert (result.bomb_share, result.truncated_share, result.perfect_share) == (0.5, 0.0, 0.5)
    assert (result.illegal_per_game, result.unparsable_per_game) == (0.5, 0.5)
    assert (result.hints_per_game, result.turns_per_game) == (1.5, 3.0)
    assert (result.preset, result.num_players, result.reachable_max, result.temperature) == ("laptop", 2, 4, 0.0)


@pytest.mark.parametrize(
    ("games", "message"),
    [
        ([game(0, 1)], "at least 2 deals"),
        ([game(0, 1), game(0, 2)], "more than once"),
        ([game(0, 1), game(1, 2, suite="eval-b")], "one board and suite at a time"),
    ],
)
def test_a_summary_of_unfit_games_is_refused(games: list[Episode], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        summarise("x", games, SPEC)


def test_a_paired_difference_is_taken_deal_by_deal() -> None:
    before = summarise("before", [game(0, 1), game(1, 3), game(2, 0)], SPEC)
    after = summarise("after", [game(2, 2), game(1, 3), game(0, 2)], SPEC)
    difference = paired_difference(before, after)
    assert difference.mean == pytest.approx(1.0)
    assert difference.standard_error == pytest.approx(1 / 3**0.5)
    assert difference.num_deals == 3
    assert difference.sigmas == pytest.approx(3**0.5)


def test_the_paired_error_is_smaller_than_the_unpaired_when_deals_decide() -> None:
    before = summarise("before", [game(seed, seed % 4) for seed in range(40)], SPEC)
    after = summarise("after", [game(seed, seed % 4 + (seed % 8 > 0)) for seed in range(40)], SPEC)
    unpaired = (before.standard_error**2 + after.standard_error**2) ** 0.5
    assert paired_difference(before, after).standard_error < unpaired / 3


def test_other_deals_are_not_compared() -> None:
    one = summarise("one", [game(0, 1), game(1, 3)], SPEC)
    other = summarise("other", [game(0, 1), game(2, 3)], SPEC)
    with pytest.raises(SettingsError, match="one and other played different deals"):
        paired_difference(one, other)


def test_other_suites_are_not_compared() -> None:
    one = summarise("one", [game(0, 1), game(1, 3)], SPEC)
    other = summarise("other", [game(0, 1, suite="test"), game(1, 3, suite="test")], SPEC)
    with pytest.raises(SettingsError, match="different suites"):
        paired_difference(one, other)


def test_a_result_comes_back_from_its_file(tmp_path: Path) -> None:
    result = evaluate_scripted("random", LAPTOP, 20)
    write_result(tmp_path / "new" / "random.json", result)
    assert read_result(tmp_path / "new" / "random.json") == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an evaluation"),
        ('{"label": "x"}', "preset"),
        ("[]", "not an evaluation"),
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_result(path)


def test_a_missing_result_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.json: cannot be read"):
        read_result(Path("nowhere.json"))


def test_lists_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(path, evaluate_scripted("blind", LAPTOP, 3))
    path.write_text(path.read_text().replace('"seeds": [', '"seeds": [99,'))
    with pytest.raises(SettingsError, match="4, 3 and 3 entries"):
        read_result(path)


def test_scripts_have_their_known_strength_on_the_laptop_board() -> None:
    means = {name: evaluate_scripted(name, LAPTOP, 1500).mean for name in ("blind", "random", "hint-bot")}
    assert means["blind"] == pytest.approx(0.133, abs=0.1)
    assert means["random"] == pytest.approx(0.639, abs=0.15)
    assert means["hint-bot"] == pytest.approx(2.65, abs=0.2)


def test_an_evaluation_on_training_deals_is_refused() -> None:
    with pytest.raises(SettingsError, match="training may have seen"):
        evaluate_scripted("random", LAPTOP, 10, suite="train")


def test_served_deals_go_out_in_chunks_and_each_once() -> None:
    server = ScriptBehindAServer()
    done: list[int] = []
    adapters = {"player_0": "player_0@7", "player_1": "player_1@7"}
    result = evaluate_served(server, LAPTOP, adapters, 250, 4, 1.0, done.append)
    assert [len(seeds) for seeds, _ in server.requests] == [100, 100, 50]
    assert [seed for seeds, _ in server.requests for seed in seeds] == list(range(250))
    assert {tuple(sent.items()) for _, sent in server.requests} == {tuple(adapters.items())}
    assert done == [100, 200, 250]
    assert result.scores == evaluate_scripted("hint-bot", LAPTOP, 250).scores
    assert (result.label, result.temperature) == ("served", 1.0)


def test_an_evaluation_with_a_dropped_game_is_an_error_with_the_reasons() -> None:
    server = ScriptBehindAServer(drops=[101, 103, 110, 111])
    with pytest.raises(ServerError) as caught:
        evaluate_served(server, LAPTOP, {}, 250, 4, 1.0, lambda done: None, label="mine")
    assert str(caught.value).startswith(
        "mine: 4 of 100 games were not played (deal eval/101: NonFiniteError: 101; deal eval/103: NonFiniteError: 103; "
        "deal eval/110: NonFiniteError: 110; …); an evaluation needs every deal."
    )
    assert len(server.requests) == 2, "it stops at the request that lost games"


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"player_0": 7, "player_1": 7}, {"player_0": "player_0@7", "player_1": "player_1@7"}),
        ({"shared": 3}, {"player_0": "shared@3", "player_1": "shared@3"}),
    ],
)
def test_players_use_their_own_adapter_or_the_shared_one(versions: dict[str, int], expected: dict[str, str]) -> None:
    assert served_adapters(versions, 2) == expected


@pytest.mark.parametrize("versions", [{}, {"player_0": 7}])
def test_a_player_without_an_adapter_is_an_error_and_never_the_base_model(versions: dict[str, int]) -> None:
    with pytest.raises(ServerError, match="serves no adapter for it"):
        served_adapters(versions, 2)
