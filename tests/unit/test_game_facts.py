import pytest

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import make_policy
from hanabi_grpo.envs.hanabi.rules import Game, make_spec, parse_action, shuffled_deck
from hanabi_grpo.evaluation.game_facts import GameFacts, game_facts, totals
from hanabi_grpo.evaluation.matches import PlayedGame, play_line_up, replay
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind
from made_games import made_episode, made_turn

MINI = EnvConfig(preset="marshal-mini", observation="compact", legal_moves=False)


def played(game: Game, episode: Episode | None = None) -> PlayedGame:
    return PlayedGame(seed=0, order=0, game=game, episode=episode)


def test_every_move_is_counted_once_as_what_it_was() -> None:
    """Deal eval/0 of marshal-mini; the expected plays follow from the deck, written out here by its cards."""
    spec = make_spec("marshal-mini")
    game = Game(spec, shuffled_deck(spec, "eval", 0))
    expected_misplays = 0
    fireworks = [0, 0]
    for text in ("Hint 1", "Play 0", "Play 0", "Hint 1"):
        action = parse_action(text, num_players=2, player=game.current_player)
        assert action is not None
        if text.startswith("Play"):
            card = game.hands[game.current_player][0]
            fits = fireworks[card.color] == card.rank
            fireworks[card.color] += fits
            expected_misplays += not fits
        game.apply(action)
    assert game_facts(played(game)) == GameFacts(
        score=sum(fireworks),
        kept=sum(fireworks),
        perfect=0,
        bombed=0,
        truncated=1,
        illegal=0,
        unparsable=0,
        turns=4,
        hints=2,
        misplays=expected_misplays,
    )


def test_three_misplays_are_a_bomb() -> None:
    config = EnvConfig(preset="full")
    for chunk in play_line_up(parse_line_up("blind", 2), config, range(20), suite="eval"):
        for one in chunk:
            facts = game_facts(one)
            assert (facts.misplays, facts.bombed, facts.score, facts.truncated) == (3, 1, 0, 0)
            assert facts.kept == facts.turns - 3


@pytest.mark.parametrize("name", ["random", "iggi", "hint-bot"])
def test_an_episode_and_a_game_without_text_have_the_same_facts(name: str) -> None:
    episodes = play_episodes_sync(MINI, [make_policy(name)] * 2, "eval", range(30))
    with_text = [game_facts(played(replay(one), one)) for one in episodes]
    without = [
        game_facts(one)
        for chunk in play_line_up(parse_line_up(name, 2), MINI, range(30), suite="eval")
        for one in chunk
    ]
    assert with_text == without


def test_replies_that_were_no_legal_move_are_counted_from_what_was_said() -> None:
    spec = make_spec("laptop")
    game = Game(spec, shuffled_deck(spec, "eval", 0))
    kinds = [ReplyKind.ILLEGAL, ReplyKind.UNPARSABLE, ReplyKind.UNPARSABLE, ReplyKind.LEGAL]
    turns = (made_turn(kind=kind) for kind in kinds)
    episode = made_episode(*turns, spec_hash=spec.hash, suite="eval", status=EpisodeStatus.TRUNCATED_TOKENS)
    facts = game_facts(played(game, episode))
    assert (facts.illegal, facts.unparsable, facts.truncated, facts.turns) == (1, 2, 1, 0)


def test_totals_are_sums_fact_by_fact() -> None:
    one = GameFacts(*range(10))
    assert totals([one, one, one]) == GameFacts(*range(0, 30, 3))
