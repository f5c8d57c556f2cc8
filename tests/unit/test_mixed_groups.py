"""Groups of different deals: which deals they are, and their way through the link and a real server."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import deals, load_rows
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import draw, own_seats, parse_pool
from hanabi_grpo.training.batching import usable_groups
from hanabi_grpo.training.deals import gather_groups, spread_deals
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.types import DroppedGame
from made_games import made_episode
from server_app import PLAYERS, RunningApp, push_to, running_app

OWN = own_seats(2, PLAYERS, 7)
FRESH = '{"messages": [{"role": "user", "content": "x"}], "env_config": {"preset": "laptop", "suite": "train"}}'
LISTED = (
    '{"messages": [{"role": "user", "content": "x"}], '
    '"env_config": {"preset": "marshal-mini", "suite": "train", "seeds": [5, 9, 2, 70, 41, 8]}}'
)


def rows_of(tmp_path: Path, *lines: str) -> list[dict[str, Any]]:
    path = tmp_path / "deals.jsonl"
    path.write_text("\n".join(lines))
    return load_rows(path, Settings())


def test_fresh_deals_of_a_group_differ_and_no_two_groups_share_one(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, FRESH)
    found = spread_deals(deals(rows, 0, 3), rows, 4)
    first = rows[0]["first_seed"]
    assert [one["seed"] - first for one in found] == list(range(12))
    assert [one["deal"] for one in found] == [0] * 4 + [1] * 4 + [2] * 4
    assert {one["env_config"]["preset"] for one in found} == {"laptop"}
    # The next step goes on where this one ended.
    assert spread_deals(deals(rows, 3, 1), rows, 4)[0]["seed"] - first == 12


@pytest.mark.parametrize("num_games", [2, 5, 7, 16])
def test_listed_deals_come_up_equally_often_and_no_others(tmp_path: Path, num_games: int) -> None:
    rows = rows_of(tmp_path, LISTED)
    found = spread_deals(deals(rows, 0, 6), rows, num_games)
    counts = Counter(one["seed"] for one in found)
    assert counts == dict.fromkeys((5, 9, 2, 70, 41, 8), num_games)
    for start in range(0, len(found), num_games):
        assert len({one["seed"] for one in found[start : start + num_games]}) == min(num_games, 6)


def test_every_group_stays_on_the_board_of_its_deal(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, FRESH, LISTED)
    asked = deals(rows, 0, 4)
    found = spread_deals(asked, rows, 3)
    boards = [one["env_config"]["preset"] for one in asked]
    assert sorted(boards) == ["laptop"] * 2 + ["marshal-mini"] * 2
    assert [one["env_config"]["preset"] for one in found] == [board for board in boards for _ in range(3)]
    listed = [one["seed"] for one in found if one["env_config"]["preset"] == "marshal-mini"]
    assert listed == [5, 9, 2, 70, 41, 8]


def test_a_deal_of_no_row_is_refused(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, LISTED)
    for other in ({"seed": 77}, {"suite": "other"}, {"env": "kuhn"}):
        with pytest.raises(SettingsError, match="is of no row of the dataset"):
            spread_deals([{**deals(rows, 0, 1)[0], **other}], rows, 2)


def test_games_are_put_together_in_groups_as_they_were_asked_for() -> None:
    assert gather_groups([["a"], [], ["b"], ["c"], [], []], 3) == [["a", "b"], ["c"]]
    assert gather_groups([], 3) == []


@pytest.fixture
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


def linked(app: RunningApp, folder: Path, **other: Any) -> ServerLink:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deals.jsonl").write_text(FRESH)
    given = {"num_generations": 3, "dataset": str(folder / "deals.jsonl"), "vllm_server_port": app.port}
    link = ServerLink(Settings(**{**given, **other}), folder)
    link.instance_id = app.identity.instance_id
    push_to(link.client, app, version=7)
    link.partners.load({}, link.client.lend, link.instance_id)
    return link


def played(link: ServerLink, count: int) -> list[list[Any]]:
    rows = load_rows(Path(link.settings.dataset), link.settings)
    return link.play(deals(rows, 0, count), PLAYERS, 7).groups


def seeds_of(groups: list[list[Any]], link: ServerLink) -> list[list[int]]:
    first = load_rows(Path(link.settings.dataset), link.settings)[0]["first_seed"]
    return [[episode.seed - first for episode in group] for group in groups]


def test_a_mixed_group_is_of_as_many_deals_as_it_has_games(app: RunningApp, tmp_path: Path) -> None:
    link = linked(app, tmp_path / "mixed", group="mixed")
    groups = played(link, 4)
    assert seeds_of(groups, link) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert {episode.game for group in groups for episode in group} == {0}
    # A list that is shorter than a group repeats within it; a deal that comes twice is played twice.
    short = tmp_path / "short.jsonl"
    short.write_text(LISTED.replace("5, 9, 2, 70, 41, 8", "5, 9"))
    link.settings = link.settings.model_copy(update={"dataset": str(short)})
    names = [(episode.seed, episode.game) for group in played(link, 2) for episode in group]
    assert names == [(5, 0), (9, 0), (5, 1), (9, 1), (5, 2), (9, 2)]
    link.client.close()


def test_all_games_of_a_mixed_group_have_the_seats_that_were_drawn_for_its_deal(
    app: RunningApp, tmp_path: Path
) -> None:
    link = linked(app, tmp_path / "run", group="mixed", partners=("iggi",), partner_share=0.5)
    groups = played(link, 16)
    pool = parse_pool(("iggi",), 2)
    expected = []
    for number in range(16):
        drawn = draw(pool, number, share=0.5, seed=42, num_players=2)
        expected.append({tuple("iggi" if drawn and drawn.seat == seat else OWN[seat] for seat in range(2))})
    assert [{episode.seats for episode in group} for group in groups] == expected
    assert sum(seats == {OWN} for seats in expected) == 8
    assert all(len({episode.seed for episode in group}) == 3 for group in groups)
    link.client.close()


def test_a_lost_game_of_a_mixed_group_is_told_without_blaming_its_deal() -> None:
    first, second = ([made_episode(seed=10 * group + game) for game in range(3)] for group in (1, 2))
    dropped = [DroppedGame(suite="train", seed=seed, game=0, reason="RuntimeError: x") for seed in (12, 21, 22)]
    kept, sentences = usable_groups([first[:2], second[:1]], dropped, mixed=True)
    assert kept == [first[:2]]
    assert sentences == [
        *(f"deal train/{seed}: 1 of 1 games dropped (game 0: RuntimeError: x)." for seed in (12, 21, 22)),
        "1 group(s) of mixed deals kept fewer than 2 games and are left out.",
    ]
    assert usable_groups([first, second], (), mixed=True) == ([first, second], [])


def test_long_replies_cost_their_mover_on_the_way_to_the_trainer(app: RunningApp, tmp_path: Path) -> None:
    link = linked(app, tmp_path / "run", length_penalty=0.25, length_free=1)
    turns = [turn for group in played(link, 2) for episode in group for turn in episode.turns]
    assert any(len(turn.reply_ids) > 1 for turn in turns)
    for turn in turns:
        beyond = len(turn.reply_ids) - 1
        assert turn.rewards[turn.player].get("length") == (-0.25 * beyond if beyond > 0 else None)
    link.client.close()
