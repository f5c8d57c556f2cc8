"""Teachers on the server's side: who may teach whom, and what a taught game brings."""

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from transformers import AutoTokenizer

from fake_engine import CHAT, LAPTOP, SAMPLING, make_scheduler
from hanabi_grpo.agents.scored import have_same_tokens
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.agents.taught import TaughtPlayer, with_lesson_ids, with_teachers
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.training_plan import plan_training
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import (
    MixedScript,
    MixingPolicy,
    Observation,
    Policy,
    Script,
    Setup,
    Task,
    random_policy,
)
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.envs.texts import split_reply
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.report.played import game_texts
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.datasets import training_rows
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.messages import RequestedTask, RolloutRequest, read_tasks
from hanabi_grpo.rollout.sampler import AdapterHandle
from hanabi_grpo.rollout.wire import episode_from_json, episode_to_json
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.server.scheduler import Scheduler, _needs_worker
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import Role
from hanabi_grpo.settings.steps import check_updates
from hanabi_grpo.settings.teachers import (
    SeatTeacher,
    label_kinds,
    parse_teachers,
    seat_teachers,
)
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.partner_seats import PartnerSeats
from hanabi_grpo.types import Episode, Lesson, Reply, ReplyKind, WeightedReply
from server_app import (
    PEFT_CONFIG,
    RunningApp,
    WordEngine,
    adapter_bytes,
    lora_of,
    push_to,
    running_app,
    word_reply,
)

BOARD = Setup(HANABI, LAPTOP)
OWN = ("player_0@1", "player_1@1")
IGGI = SeatTeacher(policy="iggi")


def weights_of(step: int, name: str) -> bytes:
    return adapter_bytes(step + int(name[-1]) / 4)


def save_checkpoint(run: Path, step: int) -> None:
    """Write a checkpoint as a trainer does."""
    run.mkdir(parents=True)

    def fill(folder: Path) -> None:
        for name in ("player_0", "player_1"):
            (folder / name).mkdir()
            (folder / name / "adapter_config.json").write_text(json.dumps(PEFT_CONFIG))
            (folder / name / "adapter_model.safetensors").write_bytes(weights_of(step, name))

    write_checkpoint(run, step, fill, {}, needed_bytes=0)


def settings(**given: Any) -> Settings:
    return Settings(device="cpu", **given)


@pytest.mark.parametrize(
    ("teacher", "other", "expected"),
    [
        ((), {}, {}),
        (("iggi",), {}, {"player_0": "iggi", "player_1": "iggi"}),
        (("player_1=iggi",), {}, {"player_1": "iggi"}),
        (
            ("player_0=iggi", "player_1=focus-bot"),
            {},
            {"player_0": "iggi", "player_1": "focus-bot"},
        ),
        (("player_0=iggi", "focus-bot"), {}, {"player_0": "iggi", "player_1": "focus-bot"}),
        # Who does not learn is left out of "everybody".
        (("iggi",), {"freeze": ("player_0",)}, {"player_1": "iggi"}),
        (
            ("iggi",),
            {"partners": ("player_1=hint-bot",), "partner_share": 1.0},
            {"player_0": "iggi"},
        ),
        (
            # Players who change seats all learn.
            ("iggi",),
            {"partners": ("player_1=hint-bot",), "partner_share": 1.0, "swap_every": 5},
            {"player_0": "iggi", "player_1": "iggi"},
        ),
        (
            ("base", "player_0=outputs/run:player_1"),
            {},
            {"player_0": "outputs/run:player_1", "player_1": "base"},
        ),
        (("iggi",), {"adapters": "shared"}, {"player_0": "iggi", "player_1": "iggi"}),
    ],
)
def test_a_teacher_is_of_everybody_or_of_those_who_are_named(
    teacher: tuple[str, ...], other: dict[str, Any], expected: dict[str, str]
) -> None:
    given = settings(teacher=teacher, **other)
    check_updates(given)
    found = {player: str(teacher) for player, teacher in parse_teachers(given).items()}
    assert found == expected


def test_a_teacher_follows_its_player_to_another_seat() -> None:
    given = settings(teacher=("player_1=iggi",), swap_every=2, teacher_plays="player_1=0.25,0")
    iggi = SeatTeacher(policy="iggi", plays=0.25)
    assert [seat_teachers(given, version) for version in (0, 1, 2, 3, 4)] == [
        (None, iggi),
        (None, iggi),
        (iggi, None),
        (iggi, None),
        (None, iggi),
    ]
    assert seat_teachers(settings(), 0) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"teacher": ("igi",)}, "HANABI_TEACHER: 'igi' is unknown; allowed are .*iggi"),
        (
            {"teacher": ("url:big",)},
            "HANABI_TEACHER=url:big: a model behind a URL does not return logprobs .*allowed are "
            "base, a checkpoint, and the scripts of hanabi: .*iggi",
        ),
        (
            {"teacher": ("base",), "temperature": 0.5},
            "HANABI_TEACHER=base with TEMPERATURE=0.5: base scores replies at temperature 1",
        ),
        (
            {"teacher": ("base",), "teacher_plays": 0.5},
            "HANABI_TEACHER_PLAYS=0.5: base scores what player_0 says but does not reply",
        ),
        (
            {
                "teacher": ("outputs/run",),
                "partners": tuple(f"outputs/p{number}" for number in range(8)),
            },
            "up to 18 adapters of other runs, but a server holds 16",
        ),
        (
            {"teacher": ("player_2=iggi",)},
            "HANABI_TEACHER=player_2=iggi: player_2 is not a player of this game; allowed: "
            "player_0, player_1",
        ),
        ({"teacher": ("player_0=iggi", "player_0=iggi")}, "player_0 is named twice"),
        ({"teacher": ("iggi", "focus-bot")}, "both iggi and focus-bot are for all players"),
        (
            {"teacher": ("player_0=iggi", "player_1=iggi", "focus-bot")},
            "focus-bot applies to no player, since every player is named",
        ),
        (
            {"teacher": ("player_0=iggi",), "freeze": ("player_0",)},
            r"HANABI_TEACHER=player_0=iggi with HANABI_FREEZE=player_0: player_0 does not learn, "
            r"so it needs no teacher; name those that do \(player_1\)",
        ),
        (
            {
                "teacher": ("player_1=iggi",),
                "partners": ("player_1=hint-bot",),
                "partner_share": 1.0,
            },
            "a partner always takes its seat: player_1 does not learn",
        ),
        (
            {"teacher_weight": 0.5},
            "HANABI_TEACHER_WEIGHT=0.5 without HANABI_TEACHER: no player has a teacher",
        ),
        (
            {"teacher": ("iggi",), "teacher_plays": 0.5, "advantage": "ippo"},
            "HANABI_TEACHER_PLAYS=0.5 with HANABI_ADVANTAGE=ippo: .*use one of grpo, ",
        ),
        ({"teacher_plays": 0.5}, "HANABI_TEACHER_PLAYS=0.5 without HANABI_TEACHER"),
        ({"teacher_steps": 5}, "HANABI_TEACHER_STEPS=5 without HANABI_TEACHER"),
        ({"reward_weight": 0.0}, r"HANABI_REWARD_WEIGHT=0.0 without HANABI_TEACHER"),
        (
            {"teacher": ("iggi",), "thinking": True},
            "HANABI_TEACHER=iggi with HANABI_THINKING=1: a script does not think as the model does",
        ),
        (
            {"teacher": ("iggi",), "teacher_weight": 0.0, "reward_weight": 0.0},
            "player_0 would learn from neither; set one of them above 0",
        ),
        (
            {"teacher": ("iggi",), "teacher_steps": 5, "reward_weight": 0.0, "max_steps": 6},
            "player_0 would learn nothing from step 6 on; set HANABI_TEACHER_STEPS=0, or at least ",
        ),
        (
            {"teacher": ("iggi",), "teacher_plays": 1.0, "teacher_weight": 0.0},
            "HANABI_TEACHER_PLAYS=1.0 with HANABI_TEACHER_WEIGHT=0.0: player_0 would learn from",
        ),
        (
            {"teacher": ("iggi",), "teacher_plays": 1.0, "teacher_steps": 5, "max_steps": 6},
            "from step 6 on; .* or at least 6, or HANABI_TEACHER_PLAYS below 1",
        ),
        (
            {"teacher": ("iggi",), "teacher_weight": "player_2=1,2"},
            "HANABI_TEACHER_WEIGHT=player_2=1,2: player_2 is not a player of this game",
        ),
        (
            {"teacher": ("iggi",), "reward_weight": "player_0=0"},
            "HANABI_REWARD_WEIGHT=player_0=0: adapter player_1 has no value; add an entry for it",
        ),
    ],
)
def test_what_cannot_teach_is_refused_with_the_way_out(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_updates(settings(**given))


@pytest.mark.parametrize("variable", ["teacher_weight", "teacher_plays", "reward_weight"])
@pytest.mark.parametrize(
    "taught", [{"teacher": ("player_0=iggi",)}, {"teacher": ("iggi",), "freeze": ("player_1",)}]
)
def test_only_a_player_with_a_teacher_needs_a_value(variable: str, taught: dict[str, Any]) -> None:
    check_updates(settings(**taught, **{variable: "player_0=0.5"}))
    with pytest.raises(SettingsError, match="adapter player_0 has no value"):
        check_updates(settings(**taught, **{variable: "player_1=0.5"}))


def test_a_game_of_the_dataset_without_the_script_is_refused_before_a_session_begins(
    tmp_path: Any,
) -> None:
    rows = tmp_path / "rows.jsonl"
    said = '[{"role": "user", "content": "Play."}]'
    rows.write_text(
        f'{{"messages": {said}, "env": "hanabi", "env_config": {{"preset": "laptop"}}}}\n'
        f'{{"messages": {said}, "env": "kuhn_poker", "env_config": {{"preset": "kuhn_poker"}}}}\n'
    )
    given = settings(teacher=("iggi",), dataset=str(rows))
    link = ServerLink(given, tmp_path)
    with pytest.raises(
        SettingsError, match=r"HANABI_TEACHER=iggi: 'iggi': the environment kuhn_poker has no such"
    ):
        link.connect(0)


# A game


class SeenByTeacher:
    """A script that keeps what it is shown, and says the last legal action."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Any]] = []
        self.seats: list[int] = []
        self.name = "watching"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "SeenByTeacher":
        self.seats.append(player)
        return self

    def act(self, seen: Observation) -> str:
        self.seen.append((seen.player, seen.view()))
        return (seen.legal() or ("",))[-1]


def played(players: list[Any], seed: int = 3) -> Episode:
    return asyncio.run(play_episode(BOARD.task("train", seed), players))


def test_a_teacher_sees_each_of_its_players_turns_by_that_players_view_and_changes_nothing() -> (
    None
):
    script = make_script(BOARD, "hint-bot")
    watching = SeenByTeacher()
    taught = TaughtPlayer(player=script, teacher=replace(script, policy=watching))
    without = played([script, script])
    episode = played([script, taught])
    # One seat a game, which is asked from the first turn on.
    assert watching.seats == [1]
    assert [player for player, _ in watching.seen] == [1] * len(episode.trajectory(1))
    stripped = [replace(turn, lesson=None) for turn in episode.turns]
    assert stripped == list(without.turns)
    assert all(turn.lesson is None for turn in episode.trajectory(0))

    # The views are those of a game that is played again, move by move.
    referee = Referee(BOARD.task("train", 3))
    views = []
    for turn in episode.turns:
        if turn.player == 1:
            views.append(referee.see(1).view())
        referee.step({turn.player: turn.reply})
    assert [view for _, view in watching.seen] == views


def test_a_teacher_cannot_tell_positions_apart_that_its_player_cannot() -> None:
    """The hidden-card rule: other own cards, the same lesson."""
    rng = random.Random(0)
    checked = 0
    for seed in range(8):
        referee = Referee(BOARD.task("train", seed))
        policy = BOARD.environment.policies["iggi"]()
        while referee.status is None:
            [player] = referee.to_act()
            task = BOARD.task("train", seed)
            other = referee.game.resampled(player, rng)
            lessons = []
            for game in (referee.game, other):
                seen = Observation(game, player, None)
                taught = TaughtPlayer(
                    player=make_script(BOARD, "hint-bot"),
                    teacher=replace(make_script(BOARD, "iggi"), policy=policy),
                )
                reply = asyncio.run(taught.seat(player, task=task, game=0).reply(seen))
                lessons.append(reply.lesson)
            assert lessons[0] == lessons[1]
            assert lessons[0] is not None
            checked += 1
            referee.step({player: lessons[0].action})
    assert checked > 40


@pytest.mark.parametrize("other_play", [False, True])
def test_a_teacher_that_plays_itself_agrees_with_every_turn(other_play: bool) -> None:
    """With Other-Play it speaks of the colours in its player's own order."""
    board = Setup(HANABI, LAPTOP.model_copy(update={"other_play": other_play}))
    script = make_script(board, "iggi")
    policy = board.environment.policies["iggi"]()
    for seed in range(4):
        task = board.task("train", seed)
        players = with_teachers([script, script], (IGGI, IGGI), board)
        episode = asyncio.run(play_episode(task, players))
        alone = play_scripts(task, {0: policy, 1: policy})
        assert [turn.action for turn in episode.turns] == [turn.action for turn in alone.turns]
        assert [replace(turn.lesson, replies=()) for turn in episode.turns] == [
            Lesson(action=turn.action) for turn in episode.turns
        ]
        for turn in episode.turns:
            # The rules draw among hints where nothing else is to be done.
            choices = {reply.action for reply in turn.lesson.replies}
            assert not choices or turn.action in choices


def test_what_the_rules_do_not_allow_is_no_lesson() -> None:
    script = make_script(BOARD, "hint-bot")
    for text in ("sing", "Hint player 7 nothing", ""):
        nonsense = Script("nonsense", lambda seen, rng, text=text: text)
        taught = TaughtPlayer(player=script, teacher=replace(script, policy=nonsense))
        episode = played([taught, script])
        assert {turn.lesson for turn in episode.turns} == {None}


def test_a_lesson_has_the_tokens_that_its_player_would_say_and_must_fit_a_reply() -> None:
    script = make_script(BOARD, "iggi")
    episode = played(with_teachers([script, script], (None, IGGI), BOARD))
    taught = with_lesson_ids(episode, [None, CHAT], 4)
    for turn in taught.trajectory(1):
        assert turn.lesson is not None
        ids = list(turn.lesson.reply_ids)
        assert ids[-1] == CHAT.eos_id
        assert CHAT.decode(ids) == turn.lesson.action
    with pytest.raises(
        SettingsError, match=r"MAX_COMPLETION_LENGTH=1: the teacher's reply .* has [23] tokens"
    ):
        with_lesson_ids(episode, [None, CHAT], 1)
    assert with_lesson_ids(played([script, script]), [None, None], 4) == played([script, script])


ALOUD_BOARD = registry.setup(
    "hanabi",
    {"preset": "full", "memory": "turn", "observation": "compact", "deductions": "recalled"},
)


def taught_aloud(plays: float = 0.0) -> Episode:
    """Return a game of save-bot, which save-bot-aloud teaches or plays for."""
    script = make_script(ALOUD_BOARD, "save-bot")
    teacher = make_script(ALOUD_BOARD, "save-bot-aloud")
    taught = TaughtPlayer(player=ScriptWithVoice(script), teacher=teacher, plays=plays)
    return asyncio.run(play_episode(ALOUD_BOARD.task("train", 3), [taught, script]))


@dataclass(frozen=True)
class ScriptWithVoice:
    """A script that can be given its reply, as a served model can."""

    script: Any

    @property
    def name(self) -> str:
        return str(self.script.name)

    def seat(self, player: int, *, task: Task[Any], game: int) -> Any:
        seat = self.script.seat(player, task=task, game=game)
        return SeatWithVoice(seat)


@dataclass(frozen=True)
class SeatWithVoice:
    inner: Any

    async def reply(self, seen: Observation) -> Reply:
        return await self.inner.reply(seen)

    async def say(self, seen: Observation, text: str) -> Reply:
        return Reply(text=text)


def test_the_label_of_a_teacher_that_thinks_aloud_has_its_thought() -> None:
    """Without it, a player that thinks would learn to skip its thoughts."""
    chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained("data/zoo/full/model"))
    turns = with_lesson_ids(taught_aloud(), [chat, None], 48).trajectory(0)
    assert len(turns) > 10
    for turn in turns:
        assert turn.lesson is not None
        assert turn.lesson.action == turn.action
        assert turn.lesson.thought.startswith("<think>")
        written = chat.decode(list(turn.lesson.reply_ids))
        assert split_reply(written) == split_reply(turn.lesson.thought + turn.action)
        assert split_reply(written)[0]


def test_a_teacher_that_thinks_aloud_thinks_where_it_plays() -> None:
    for turn in taught_aloud(plays=1.0).trajectory(0):
        assert turn.lesson is not None
        assert turn.lesson.plays
        assert turn.reply == turn.lesson.thought + turn.action
        assert turn.reply.startswith("<think>")


def test_words_that_a_player_could_not_write_are_no_label() -> None:
    with pytest.raises(
        SettingsError, match=r"the reply '<think>.*does not know, e\.g\. .*tiny-model --teacher"
    ):
        with_lesson_ids(taught_aloud(), [CHAT, None], 99)


def test_a_script_that_draws_among_thoughts_labels_each_with_its_chance() -> None:
    bold = "<think> bold </think> Play 0"
    shy = "<think> shy </think> Play 0"
    teacher = MixedScript(
        "moody",
        lambda seen, rng: bold,
        lambda seen: {bold: 0.25, shy: 0.5, "Play 1": 0.25},
    )
    turn = taught_by(teacher, BOARD).trajectory(0)[0]
    assert turn.lesson is not None
    drawn = [(reply.thought, reply.action, reply.chance) for reply in turn.lesson.replies]
    assert drawn[0] == ("<think> shy </think> ", "Play 0", 0.5)
    assert sorted(drawn[1:]) == [
        ("", "Play 1", 0.25),
        ("<think> bold </think> ", "Play 0", 0.25),
    ]
    assert turn.lesson.action_chances() == {"Play 0": 0.75, "Play 1": 0.25}


def test_a_taught_game_travels_and_is_recorded_and_older_records_are_read() -> None:
    script = make_script(BOARD, "iggi")
    episode = with_lesson_ids(
        played(with_teachers([script, script], (IGGI, None), BOARD)), [CHAT, None], 4
    )
    assert any(turn.lesson is not None for turn in episode.turns)
    assert msgspec.json.decode(msgspec.json.encode(episode), type=Episode) == episode
    assert episode_from_json(msgspec.json.decode(msgspec.json.encode(episode_to_json(episode))))
    row = episode_to_json(episode)
    for turn in row["turns"]:
        del turn["lesson"]
    older = episode_from_json(row)
    assert [turn.lesson for turn in older.turns] == [None] * len(episode.turns)


# Teachers that draw


def positions(
    setup: Setup[Any], num_games: int, policy: Policy
) -> Iterator[tuple[int, Task[Any], Referee]]:
    """Yield whose turn it is in each position of some games by a script, a third of it random."""
    rng = random.Random(5)
    for seed in range(num_games):
        task = setup.task("train", seed)
        referee = Referee(task)
        while referee.status is None:
            players = referee.to_act()
            for player in players:
                yield player, task, referee
            replies = {}
            for player in players:
                seen = referee.see(player)
                replies[player] = policy.seat(player, task=task, game=0).act(seen)
                if rng.random() < 1 / 3:
                    replies[player] = rng.choice(seen.legal() or ("",))
            referee.step(replies)


@pytest.mark.parametrize(
    ("env", "preset", "name", "num_games"),
    [
        ("kuhn_poker", "kuhn_poker", "cfr", 12),
        ("leduc_poker", "leduc_poker", "cfr-10", 3),
        ("kuhn_poker", "kuhn_poker", "random", 4),
        ("tic_tac_toe", "tic_tac_toe", "minimax", 2),
        ("hanabi", "full", "iggi", 6),
        ("hanabi", "full", "outer", 1),
        ("hanabi", "full", "piers", 6),
        ("frozen_lake", "frozen_lake", "random", 2),
        ("sokoban", "sokoban", "bfs", 1),
    ],
)
def test_the_chances_of_a_script_are_those_by_which_it_draws(
    env: str, preset: str, name: str, num_games: int
) -> None:
    setup = registry.setup(env, {"preset": preset})
    policy = setup.environment.policies[name]()
    assert isinstance(policy, MixingPolicy)
    num_mixed = 0
    for player, task, referee in positions(setup, num_games, policy):
        seen = referee.see(player)
        chances = policy.chances(seen)
        num_drawn = 5 if max(chances.values()) == 1 else 300
        assert sum(chances.values()) == pytest.approx(1)
        assert set(chances) <= set(seen.legal() or ())
        counts = Counter(
            policy.seat(player, task=task, game=number).act(seen) for number in range(num_drawn)
        )
        num_mixed += len(counts) > 1
        for reply in set(counts) | set(chances):
            # Five standard errors, so that a right script passes.
            chance = chances.get(reply, 0.0)
            error = math.sqrt(max(chance * (1 - chance), 1e-9) / num_drawn)
            assert abs(counts[reply] / num_drawn - chance) <= 5 * error
    assert num_mixed or name == "bfs"


def test_a_noisy_bot_says_how_likely_its_noise_is() -> None:
    bot = rule_bot("hint-bot", noise=0.3)
    for player, _, referee in positions(BOARD, 2, bot):
        seen = referee.see(player)
        legal = seen.legal() or ()
        sure = rule_bot("hint-bot").chances(seen)
        assert bot.chances(seen) == pytest.approx(
            {reply: 0.7 * sure[reply] + 0.3 / len(legal) for reply in legal}
        )


def taught_by(policy: Any, setup: Setup[Any], seed: int = 3) -> Episode:
    """Return a random game of which a teacher labels each turn."""
    player = make_script(setup, "random")
    teacher = replace(player, policy=policy)
    players = [TaughtPlayer(player=player, teacher=teacher)] * setup.spec.num_players
    return asyncio.run(play_episode(setup.task("train", seed), players))


def test_a_teacher_that_draws_labels_a_turn_with_each_reply_that_it_may_give() -> None:
    setup = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    policy = setup.environment.policies["cfr"]()
    for seed in range(12):
        episode = taught_by(policy, setup, seed)
        referee = Referee(setup.task("train", seed))
        for turn in episode.turns:
            chances = policy.chances(referee.see(turn.player))
            assert turn.lesson is not None
            replies = turn.lesson.replies
            assert [reply.chance for reply in replies] == sorted(
                (reply.chance for reply in replies), reverse=True
            )
            assert {reply.action: reply.chance for reply in replies} == pytest.approx(chances)
            assert turn.lesson.action in chances
            referee.step({turn.player: turn.reply})


def test_a_teacher_that_never_draws_labels_as_it_did_before_it_could_say_so() -> None:
    one = registry.get("hanabi").policies["focus-bot"]()
    silent = Script("focus-bot", one.choose)
    assert isinstance(one, MixingPolicy)
    for seed in range(4):
        labelled = taught_by(one, BOARD, seed)
        assert labelled == taught_by(silent, BOARD, seed)
        assert all(turn.lesson is not None and not turn.lesson.replies for turn in labelled.turns)


def test_illegal_replies_leave_a_distribution_and_chances_that_are_none_end_the_game() -> None:
    def mixing(**chances: float) -> MixedScript:
        by_reply = {text.replace("_", " "): chance for text, chance in chances.items()}
        return MixedScript(
            "mixing", lambda seen, rng: (seen.legal() or ("",))[0], lambda _: by_reply
        )

    episode = taught_by(mixing(sing=0.5, Play_0=0.375, Play_1=0.125), BOARD)
    assert episode.turns[0].lesson is not None
    assert episode.turns[0].lesson.replies == (
        WeightedReply(action="Play 0", chance=0.75),
        WeightedReply(action="Play 1", chance=0.25),
    )
    for chances in ({"Play_0": 0.5}, {"Play_0": 1.5, "Play_1": -0.5}, {"Play_0": math.nan}):
        with pytest.raises(ValueError, match=r"a teacher's chances are .* their sum must be 1"):
            taught_by(mixing(**chances), BOARD)
    # Nothing known, and one legal reply.
    for chances in ({}, {"Play_0": 0.5, "sing": 0.5}):
        first = taught_by(mixing(**chances), BOARD).turns[0]
        assert first.lesson is not None
        assert not first.lesson.replies


def test_of_a_teacher_that_draws_among_too_many_replies_a_turn_has_the_drawn_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(turn.lesson.replies for turn in taught_by(random_policy(), BOARD).turns)
    monkeypatch.setattr("hanabi_grpo.agents.taught.MAX_WEIGHTED_REPLIES", 1)
    for turn in taught_by(random_policy(), BOARD).turns:
        assert turn.lesson is not None
        assert turn.lesson.action
        assert not turn.lesson.replies


def test_each_weighted_reply_has_its_tokens_travels_and_is_checked() -> None:
    episode = with_lesson_ids(taught_by(random_policy(), BOARD), [CHAT, CHAT], 4)
    for turn in episode.turns:
        assert turn.lesson is not None
        for reply in turn.lesson.replies:
            assert reply.reply_ids == (*CHAT.tokenizer.encode(reply.action), CHAT.eos_id)
    row = episode_to_json(episode)
    assert episode_from_json(msgspec.json.decode(msgspec.json.encode(row))) == episode
    with pytest.raises(SettingsError, match="MAX_COMPLETION_LENGTH=1: the teacher's reply"):
        with_lesson_ids(episode, [CHAT, CHAT], 1)
    for chance in (-0.5, 0.0, 1.5):
        row = episode_to_json(episode)
        row["turns"][0]["lesson"]["replies"][0]["chance"] = chance
        with pytest.raises(ServerError, match=r"turns\.0\.lesson\.replies: .* allowed: up to 64"):
            episode_from_json(row)


def test_a_run_says_what_kind_of_labels_each_player_has() -> None:
    given = settings(teacher=("player_0=iggi", "player_1=base"))
    assert label_kinds(given) == {"player_0": "distribution", "player_1": "logprobs"}
    search = settings(teacher=("player_0=search", "player_1=hat-bot"))
    assert label_kinds(search) == {"player_0": "reply", "player_1": "reply"}
    assert label_kinds(settings()) == {}


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"reward_weight": 0.0, "entropy_bonus": 0.1}, ["player_0", "player_1"]),
        ({"reward_weight": "player_0=0,player_1=1", "entropy_bonus": 0.1}, ["player_0"]),
        ({"reward_weight": 0.0}, []),
        ({"entropy_bonus": 0.1}, []),
    ],
)
def test_a_bonus_that_pulls_away_from_the_only_thing_learned_is_said_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], warned: list[str]
) -> None:
    seats = PartnerSeats(settings(teacher=("iggi",), **given), tmp_path, lambda *_: "")
    with caplog.at_level("INFO"):
        seats.load({}, "here")
    assert "player_0 is taught by iggi; labels: distribution" in caplog.messages
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.partition(": ")[2].split()[0] for message in said] == warned
    assert all("set HANABI_ENTROPY_BONUS=0" in message for message in said)


# Requests

Teachers = tuple[SeatTeacher | None, ...]


def requested(seats: tuple[str, ...], teachers: Teachers | None) -> RequestedTask:
    task = {"env_config": LAPTOP.model_dump(mode="json"), "suite": "train", "seed": 1}
    request = {
        "tasks": [task],
        "num_games": 2,
        "max_tokens": 4,
        "temperature": 1.0,
        "seats": seats,
        "teachers": msgspec.to_builtins(teachers),
    }
    [read] = read_tasks(msgspec.convert(request, RolloutRequest))
    return read


@pytest.mark.parametrize(
    ("seats", "teachers", "expected"),
    [
        (OWN, None, ()),
        (OWN, (None, IGGI), (None, IGGI)),
        (OWN, (None, None), ()),
        # Partners are not taught: scripts, the base model, and adapters of other runs.
        (("iggi", "player_1@1"), (IGGI, IGGI), (None, IGGI)),
        (("base", "player_1@1"), (IGGI, None), ()),
        (("frozen_0123456789abcdef@5", "player_1@1"), (IGGI, None), ()),
    ],
)
def test_a_request_says_who_teaches_the_sessions_own_adapters(
    seats: tuple[str, ...], teachers: Teachers | None, expected: Teachers
) -> None:
    assert requested(seats, teachers).teachers == expected


def test_an_unknown_teacher_a_seat_too_few_and_no_share_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"tasks\.0: 'igi': the environment hanabi has no such"):
        requested(OWN, (SeatTeacher(policy="igi"), None))
    with pytest.raises(SettingsError, match="2 players, but teachers has 1 entries; give one"):
        requested(OWN, (IGGI,))
    for policy in ("url:big", "base"):
        with pytest.raises(SettingsError, match="a model teacher can only score replies"):
            requested(OWN, (SeatTeacher(policy=policy, plays=0.5), None))
    with pytest.raises(SettingsError, match=r"plays=1\.5: give a share from 0 to 1"):
        requested(OWN, (SeatTeacher(policy="iggi", plays=1.5), None))


def test_games_with_a_slow_teacher_are_played_in_workers() -> None:
    assert not _needs_worker(requested(OWN, (IGGI, None)))
    assert _needs_worker(requested(OWN, (SeatTeacher(policy="search"), None)))


def with_scheduler(
    play: Callable[[Scheduler], Awaitable[Any]], engine: WordEngine | None = None
) -> Any:
    async def run() -> Any:
        scheduler = make_scheduler(engine or WordEngine())
        try:
            return await play(scheduler)
        finally:
            scheduler.close()
            await asyncio.sleep(0.05)

    result = asyncio.run(asyncio.wait_for(run(), 60))
    psutil.wait_procs(psutil.Process().children(), timeout=5)
    return result


@pytest.mark.rest
@pytest.mark.parametrize("plays", [0.0, 0.5])
def test_a_worker_asks_the_same_teacher_as_the_server_itself(
    monkeypatch: pytest.MonkeyPatch, plays: float
) -> None:
    # A base model has no teacher on the wire; here the scheduler is asked by itself.
    teacher = SeatTeacher(policy="iggi", plays=plays)
    taught = replace(requested(("base", "base"), None), teachers=(None, teacher))

    async def play(scheduler: Scheduler) -> list[list[Any]]:
        return await scheduler.run([taught], SAMPLING)

    here = with_scheduler(play)
    monkeypatch.setattr("hanabi_grpo.server.scheduler._needs_worker", lambda requested: True)
    in_worker = with_scheduler(play)
    assert in_worker == here
    lessons = [turn.lesson for episode in here[0] for turn in episode.trajectory(1)]
    assert {lesson.plays for lesson in lessons} == ({False, True} if plays else {False})
    for lesson in lessons:
        assert lesson.reply_ids == (*CHAT.tokenizer.encode(lesson.action), CHAT.eos_id)


# Over HTTP


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app(max_model_len=20000) as running:
        yield running


def test_a_taught_request_has_the_games_of_one_without_and_lessons_in_them(app: RunningApp) -> None:
    task = {**BOARD.row(), "suite": "train", "seed": 3}
    with RolloutClient(app.url) as client:
        push_to(client, app)

        def play(teachers: Teachers | None) -> list[Episode]:
            result = client.play(
                [task],
                num_games=2,
                max_tokens=4,
                temperature=1.0,
                seats=OWN,
                teachers=teachers,
            )
            [group] = result.groups
            return group

        plain = play(None)
        taught = play((None, IGGI))
        with pytest.raises(ServerError, match="MAX_COMPLETION_LENGTH=1: the teacher's reply"):
            client.play(
                [task],
                num_games=1,
                max_tokens=1,
                temperature=1.0,
                seats=OWN,
                teachers=(None, IGGI),
            )
    for episode, expected in zip(taught, plain, strict=True):
        stripped = [replace(turn, lesson=None) for turn in episode.turns]
        assert stripped == list(expected.turns)
        assert {turn.lesson is None for turn in episode.trajectory(0)} == {True}
        assert {turn.lesson is None for turn in episode.trajectory(1)} == {False}


# The teacher plays


@pytest.mark.parametrize("memory", ["game", "turn", 2])
def test_a_turn_that_the_teacher_plays_is_in_the_conversation_and_nobody_sampled_it(
    app: RunningApp, memory: Any
) -> None:
    board = Setup(HANABI, LAPTOP.model_copy(update={"memory": memory}))
    tasks = [{**board.row(), "suite": "train", "seed": seed} for seed in range(6)]
    teachers = (None, SeatTeacher(policy="iggi", plays=0.5))

    with RolloutClient(app.url) as client:
        bodies = push_to(client, app)

        def play(teachers: Teachers | None) -> list[Episode]:
            result = client.play(
                tasks, num_games=4, max_tokens=4, temperature=1.0, seats=OWN, teachers=teachers
            )
            return [episode for group in result.groups for episode in group]

        episodes = play(teachers)
        assert play(teachers) == episodes

    turns = [turn for episode in episodes for turn in episode.trajectory(1)]
    played = [turn for turn in turns if turn.lesson is not None and turn.lesson.plays]
    assert 0.3 < len(played) / len(turns) < 0.7
    for turn in played:
        assert turn.lesson is not None
        assert turn.action == turn.reply == turn.lesson.action
        assert (turn.kind, turn.reply_ids, turn.logprobs) == (ReplyKind.LEGAL, (), ())
        assert turn.prompt_ids[-len(turn.lesson.reply_ids) :] == turn.lesson.reply_ids
        assert (turn.version, turn.fresh) == (1, memory != "game")
    # The player goes on from what the teacher said, by the tokens of its own replies.
    lora = lora_of(bodies["player_1"])
    for episode in episodes:
        ids: list[int] = []
        for turn in episode.trajectory(1):
            ids = [] if turn.fresh else ids
            ids += turn.prompt_ids
            if turn not in played:
                assert turn.reply_ids == word_reply(lora, ids).ids
            ids += turn.reply_ids
    assert all(turn.reply_ids for episode in episodes for turn in episode.trajectory(0))


def test_a_teacher_that_plays_every_turn_plays_its_own_game() -> None:
    taught = replace(
        requested(("base", "base"), None), teachers=(SeatTeacher(policy="iggi", plays=1.0),) * 2
    )

    async def play(scheduler: Scheduler) -> list[list[Any]]:
        return await scheduler.run([taught], SAMPLING)

    [[first, _]] = with_scheduler(play)
    policy = BOARD.environment.policies["iggi"]()
    alone = play_scripts(taught.task, {0: policy, 1: policy})
    assert [turn.action for turn in first.turns] == [turn.action for turn in alone.turns]
    assert {turn.reply_ids for turn in first.turns} == {()}


# Models that teach


class ScoringEngine(WordEngine):
    """Scores by a function of adapter, conversation and reply, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[tuple[AdapterHandle | None, tuple[int, ...]]] = []

    async def score(
        self, prompt_ids: list[int], reply_ids: list[int], adapter: AdapterHandle | None
    ) -> tuple[float, ...]:
        self.scored.append((adapter, tuple(prompt_ids)))
        return made_scores(adapter, prompt_ids, reply_ids)


def made_scores(
    adapter: AdapterHandle | None, prompt_ids: Sequence[int], reply_ids: Sequence[int]
) -> tuple[float, ...]:
    start = len(str(adapter)) + len(prompt_ids)
    return tuple(-((start + 3 * token) % 8) / 8 for token in reply_ids)


@pytest.mark.parametrize("in_worker", [False, True])
@pytest.mark.parametrize("memory", ["game", "turn"])
def test_a_model_scores_the_tokens_that_its_player_sampled(
    monkeypatch: pytest.MonkeyPatch, memory: Any, in_worker: bool
) -> None:
    board = Setup(HANABI, LAPTOP.model_copy(update={"memory": memory}))
    monkeypatch.setattr("hanabi_grpo.server.scheduler._needs_worker", lambda requested: in_worker)
    engine = ScoringEngine()

    async def play(scheduler: Scheduler) -> list[list[Any]]:
        taught = RequestedTask(
            task=board.task("train", 1),
            refs=(Role.BASE, Role.BASE),
            games=range(2),
            teachers=(None, SeatTeacher(policy="base")),
        )
        return await scheduler.run([taught], SAMPLING)

    [episodes] = with_scheduler(play, engine)
    for episode in episodes:
        ids: list[int] = []
        for turn in episode.trajectory(1):
            ids = [] if turn.fresh else ids
            ids += turn.prompt_ids
            assert turn.lesson == Lesson(logprobs=made_scores(None, ids, turn.reply_ids))
            assert turn.reply_ids == word_reply(None, ids).ids
            ids += turn.reply_ids
        assert all(turn.lesson is None for turn in episode.trajectory(0))
    assert len(engine.scored) == sum(len(episode.trajectory(1)) for episode in episodes)


def test_a_checkpoint_that_teaches_is_uploaded_and_asked_for_as_a_guest(tmp_path: Any) -> None:
    uploaded: list[bytes] = []

    def upload(version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        uploaded.append(weights)
        return f"frozen_{len(uploaded):016x}@{version}"

    save_checkpoint(tmp_path / "teacher", 5)
    given = settings(teacher=(f"player_1={tmp_path / 'teacher'}", "player_0=base"), swap_every=1)
    seats = PartnerSeats(given, tmp_path / "run", upload)
    seats.load({}, "here")
    # The player's own adapter of the checkpoint, which follows it to another seat.
    [weights] = uploaded
    assert weights == weights_of(5, "player_1")
    guest = SeatTeacher(policy="frozen_0000000000000001@5")
    assert seats.teachers(0) == (SeatTeacher(policy="base"), guest)
    assert seats.teachers(1) == (guest, SeatTeacher(policy="base"))
    assert len(uploaded) == 1
    # A new server process holds nothing.
    seats.seat([], OWN, 1, "there")
    assert seats.teachers(2)[1] == SeatTeacher(policy="frozen_0000000000000002@5")

    missing = settings(teacher=(str(tmp_path / "nowhere"),))
    with pytest.raises(SettingsError, match=r"HANABI_TEACHER=.*nowhere: "):
        PartnerSeats(missing, tmp_path / "run", upload).load({}, "here")


def test_a_guest_adapter_scores_over_http_and_is_no_player() -> None:
    engine = ScoringEngine()
    with (
        running_app(max_model_len=20000, engine=engine) as app,
        RolloutClient(app.url) as client,
    ):
        push_to(client, app)
        weights = adapter_bytes(0.5)
        guest = client.upload_guest(5, weights, PEFT_CONFIG)
        result = client.play(
            [{**BOARD.row(), "suite": "train", "seed": 3}],
            num_games=2,
            max_tokens=4,
            temperature=1.0,
            seats=OWN,
            teachers=(None, SeatTeacher(policy=guest)),
        )
        [episodes] = result.groups
        with pytest.raises(ServerError, match="frozen_0123456789abcdef"):
            client.play(
                [{**BOARD.row(), "suite": "train", "seed": 3}],
                num_games=1,
                max_tokens=4,
                temperature=1.0,
                seats=OWN,
                teachers=(None, SeatTeacher(policy="frozen_0123456789abcdef@5")),
            )
    for episode in episodes:
        assert episode.seats == OWN
        ids: list[int] = []
        for turn in episode.trajectory(1):
            ids += turn.prompt_ids
            scores = made_scores(lora_of(weights), ids, turn.reply_ids)
            assert turn.lesson == Lesson(logprobs=scores)
            assert turn.version == 1
            ids += turn.reply_ids


def test_a_teacher_on_another_base_model_needs_the_same_tokens() -> None:
    engine = WordEngine()
    same = ChatFormat.from_tokenizer(build_tokenizer(compact_vocabulary(LAPTOP.spec())))
    larger = LAPTOP.model_copy(update={"preset": "small"})
    other = ChatFormat.from_tokenizer(build_tokenizer(compact_vocabulary(larger.spec())))

    def model(chat: ChatFormat) -> Model:
        return Model(sampler=engine, chat=chat, max_model_len=512)

    assert have_same_tokens(model(CHAT), model(same))
    assert not have_same_tokens(model(CHAT), model(other))


# Replays


def test_a_replay_shows_what_the_teacher_would_have_done_where_it_is_something_else() -> None:
    hint_bot = make_script(BOARD, "hint-bot")
    episode = played(with_teachers([hint_bot, hint_bot], (IGGI, None), BOARD))
    first, *others = episode.turns
    assert first.lesson is not None
    turns = (
        replace(first, lesson=replace(first.lesson, action="Play 2")),
        replace(first, lesson=replace(first.lesson, action=first.action)),
        replace(first, lesson=replace(first.lesson, plays=True)),
        replace(first, lesson=Lesson(logprobs=())),
        *others,
    )
    shown = game_texts(Recording(episode=replace(episode, turns=turns)))
    facts = [move["facts"] for move in shown["moves"]]
    assert "teacher: Play 2" in facts[0]
    assert "played by the teacher" in facts[2]
    assert not any("teacher" in facts[number] for number in (1, 3))


def test_a_replay_shows_among_what_a_teacher_draws() -> None:
    episode = taught_by(random_policy(), BOARD)
    weighted = []
    for number, chance in enumerate((0.5, 0.25, 0.125, 0.0625, 0.0625)):
        weighted.append(WeightedReply(action=f"Play {number}", chance=chance))
    first, *others = episode.turns
    told = replace(first, lesson=Lesson(action=first.action, replies=tuple(weighted)))
    shown = game_texts(Recording(episode=replace(episode, turns=(told, *others))))
    expected = "teacher: Play 0 50 %, Play 1 25 %, Play 2 12 %, Play 3 6 %, 1 more"
    assert expected in shown["moves"][0]["facts"]


def test_a_teacher_that_ends_before_the_epochs_do_is_refused_too() -> None:
    settings = Settings(
        teacher=("iggi",), teacher_steps=5, reward_weight=0.0, num_train_epochs=6, max_steps=None
    )
    with pytest.raises(SettingsError, match=r"in a run of 6 steps: player_0 would learn nothing"):
        plan_training(settings, training_rows(settings), {})
