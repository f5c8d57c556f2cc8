"""The belief loss: what its rows are, its gradient, and who moves by it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.training.batching import build_micro_batches
from hanabi_grpo.training.belief_labels import BeliefLabels, belief_labels
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.types import Episode
from loop_parts import BASE_SETTINGS, NAMES, SPEC_HASH, RunOfATest, same_weights, tiny_policy_model
from made_batches import made_cut

ZOO_MODEL = Path(__file__).parents[2] / "data" / "zoo" / "laptop" / "model"
TOKENIZER = AutoTokenizer.from_pretrained(ZOO_MODEL)
CHAT = ChatFormat.from_tokenizer(TOKENIZER)
OWN = ("player_0@0", "player_1@0")
Games = list[list[Episode]]


COMPACT: dict[str, Any] = {
    "preset": "laptop",
    "observation": "compact",
    "legal_moves": False,
    "deductions": "counted",
}


def laptop(memory: str | int) -> Setup[Any]:
    return registry.setup("hanabi", {**COMPACT, "memory": memory})


TURN = laptop("turn")
TURN_SETTINGS: dict[str, Any] = {**COMPACT, "memory": "turn"}


def as_sampled(setup: Setup[Any], episode: Episode, version: int) -> Episode:
    """Return a game of scripts as if models of the zoo's tokenizer had said the same."""
    memory = setup.config.window
    conversations = {seat: Conversation(CHAT, "", memory) for seat in range(2)}
    game = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
    turns = []
    for turn in episode.turns:
        message = game.state_message(turn.player) if memory else game.message(turn.player)
        conversation = conversations[turn.player]
        prompt_ids = conversation.ask(message)
        reply_ids = CHAT.said(turn.action)
        conversation.answer(list(reply_ids))
        sampled = replace(
            turn,
            prompt=message,
            prompt_ids=tuple(prompt_ids),
            reply_ids=reply_ids,
            logprobs=(-0.5,) * len(reply_ids),
            version=version,
            fresh=memory is not None,
        )
        turns.append(sampled)
        game.step({turn.player: turn.action})
    seats = own_seats(2, NAMES, version)
    return replace(episode, turns=tuple(turns), seats=seats, spec_hash=SPEC_HASH)


def sampled_games(setup: Setup[Any]) -> Callable[[int], Games]:
    """Return random games, two of each of two tasks, by the step."""

    def games(step: int) -> Games:
        groups = []
        for task in range(2):
            group = []
            for number in range(2):
                policies = {seat: setup.environment.policies["random"]() for seat in range(2)}
                episode = play_scripts(
                    setup.task("train", 2 * step + task), policies, number=number
                )
                group.append(as_sampled(setup, episode, step))
            groups.append(group)
        return groups

    return games


def labels(**weights: float) -> BeliefLabels:
    return BeliefLabels(chats=dict.fromkeys(NAMES, CHAT), weights=weights)


def belief_rows(
    beliefs: BeliefLabels,
    groups: Games,
    setups: Sequence[Setup[Any]],
    seat: int = 0,
    trained_seats: Sequence[str] = OWN,
) -> list[TokenRow]:
    return beliefs.rows(
        groups,
        setups,
        seat,
        f"player_{seat}",
        trained_seats,
        has_weights=False,
        trains_all=True,
        with_steps=False,
    )


@pytest.mark.parametrize("memory", ["turn", 2, "game"])
def test_a_row_is_the_conversation_so_far_a_question_and_the_card_that_is_there(
    memory: str | int,
) -> None:
    setup = laptop(memory)
    groups = sampled_games(setup)(0)
    num_rows = 0
    asked = set()
    for seat in range(2):
        rows = belief_rows(labels(player_0=1.0, player_1=1.0), groups, [setup] * 2, seat)
        expected = []
        for episode in [episode for group in groups for episode in group]:
            game = setup.environment.reset(setup.config, split="train", seed=episode.seed)
            conversation = Conversation(CHAT, "", setup.config.window)
            for turn in episode.turns:
                if turn.player == seat:
                    # The same conversation without the turns to come.
                    other = Conversation(CHAT, "", setup.config.window)
                    other.ids = list(conversation.ids)
                    other._past = list(conversation._past)
                    hand = [str(card) for card in game.table.hands[seat]]
                    expected.append((other, turn.prompt, hand))
                    conversation.ask(turn.prompt)
                    conversation.answer(list(turn.reply_ids))
                game.step({turn.player: turn.action})
        assert len(rows) == len(expected)
        for row, (other, message, hand) in zip(rows, expected, strict=True):
            assert row.belief is not None
            num_answer = sum(row.belief)
            answer = TOKENIZER.decode(row.ids[-num_answer:-1])
            assert row.ids[-1] == CHAT.eos_id
            text = TOKENIZER.decode(row.ids[:-num_answer])
            slot = int(text.rpartition(" me slot")[2][0])
            other.ask(f"{message} me slot{slot}")
            assert row.ids[:-num_answer] == other.ids
            assert answer == hand[slot]
            assert not any(row.mask) and not any(row.advantages)
            asked.add(slot)
            num_rows += 1
    assert num_rows > 10
    assert asked == {0, 1, 2}


def test_rows_of_games_that_differ_only_in_what_players_see_have_the_prompts_of_their_own() -> None:
    forgetful, remembering = TURN, laptop("game")
    assert forgetful.spec.hash == remembering.spec.hash
    [first, _] = sampled_games(forgetful)(0)
    [_, second] = sampled_games(remembering)(0)
    beliefs = labels(player_0=1.0)
    rows = belief_rows(beliefs, [first, second], [forgetful, remembering])
    alone = [
        *belief_rows(beliefs, [first], [forgetful]),
        *belief_rows(beliefs, [second], [remembering]),
    ]
    assert [row.ids for row in rows] == [row.ids for row in alone]
    assert [row.game for row in rows][-1] == 3, "games are numbered through all groups"
    swapped = belief_rows(beliefs, [first, second], [remembering, forgetful])
    assert [row.ids for row in swapped] != [row.ids for row in alone]


def test_the_belief_loss_of_a_run_knows_which_row_of_the_dataset_a_game_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful, remembering = TURN, laptop("game")
    dataset = tmp_path / "rows.jsonl"
    lines = []
    for setup in (forgetful, remembering):
        row = {"messages": [{"role": "user", "content": "Play."}], **setup.row()}
        lines.append(json.dumps(row))
    dataset.write_text("\n".join(lines))

    def games(step: int) -> Games:
        [first, _] = sampled_games(forgetful)(step)
        [_, second] = sampled_games(remembering)(step)
        return [first, second]

    asked: list[list[Setup[Any]]] = []
    rows_of = BeliefLabels.rows

    def record(self: BeliefLabels, groups: Games, setups: Any, *others: Any, **more: Any) -> Any:
        asked.append(list(setups))
        return rows_of(self, groups, setups, *others, **more)

    monkeypatch.setattr(BeliefLabels, "rows", record)
    options = {"num_steps": 2, "dataset": str(dataset), "belief_weight": 1.0}
    trained(tmp_path / "run", games, board={}, **options)
    # Two steps, and in each of them both players.
    assert asked == [[forgetful, remembering]] * 4


def batches_of(groups: Games, beliefs: BeliefLabels | None, **options: Any) -> list[MicroBatch]:
    cut = options.pop("cut", made_cut())
    return build_micro_batches(
        groups,
        trained_seats=OWN,
        players=NAMES,
        estimator=make_estimator("grpo"),
        cut=cut,
        pad_id=0,
        device=torch.device("cpu"),
        beliefs=beliefs,
        setups=[TURN] * len(groups),
        **options,
    )


@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_that_of_the_cross_entropy_written_out(shared: bool) -> None:
    groups = [[episode] for [episode, _] in sampled_games(TURN)(0)]
    settings = Settings(**BASE_SETTINGS)
    model = tiny_policy_model(settings, vocab_size=len(TOKENIZER))
    policy = Policy(model, NAMES, temperature=1.0, has_whole_weights=True)
    beliefs = labels(player_0=0.5)
    rows = belief_rows(beliefs, groups, [TURN] * len(groups))
    parameters = [value for name, value in model.named_parameters() if ".player_0." in name]
    policy.use_adapter_of("player_0")
    expected = torch.zeros(())
    num_tokens = 0
    for row in rows:
        assert row.belief is not None
        logits = model(input_ids=torch.tensor([row.ids])).logits[0].float()
        logps = torch.log_softmax(logits, -1)
        for position, (token, is_answer) in enumerate(zip(row.ids, row.belief, strict=True)):
            if is_answer:
                expected = expected - logps[position - 1, token]
                num_tokens += 1
    expected = 0.5 * expected / num_tokens
    gradients = torch.autograd.grad(expected, parameters)

    loss = torch.zeros(())
    for batch in batches_of(groups, beliefs, cut=made_cut(tokens=60, shared=shared)):
        # Groups of one game have no advantages, so nothing else is in the loss.
        batch.advantages.zero_()
        if batch.player == "player_0":
            loss = loss + PolicyLoss(settings)(policy.logprobs(batch), batch)[0]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for found, wanted in zip(torch.autograd.grad(loss, parameters), gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_players_without_a_weight_and_seats_of_partners_have_the_batches_of_before() -> None:
    groups = sampled_games(TURN)(0)
    for before, after in zip(
        batches_of(groups, None), batches_of(groups, labels(player_1=1.0)), strict=True
    ):
        is_asked = before.player == "player_1"
        assert (after.num_belief_tokens > 0) == is_asked
        assert torch.equal(before.ids, after.ids) != is_asked
    partner_first = ("", OWN[1])
    assert belief_rows(labels(player_0=1.0), groups, [TURN] * 2, 0, partner_first) == []


def trained(
    folder: Path,
    games: Callable[[int], Games] | None = None,
    board: Mapping[str, Any] = TURN_SETTINGS,
    **settings: Any,
) -> RunOfATest:
    base = Settings(**BASE_SETTINGS)
    run = RunOfATest(
        folder,
        games=games or sampled_games(TURN),
        policy_model=tiny_policy_model(base, vocab_size=len(TOKENIZER)),
        tokenizer=TOKENIZER,
        setup=TURN,
        **board,
        **settings,
    )
    train(run.run)
    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"updates_per_step": 2, "entropy_bonus": 0.1, "beta": 0.1},
        {"minibatches": 2, "loss_unit": "turn", "tokens_per_micro_batch": 64},
    ],
)
def test_the_belief_loss_of_one_player_moves_the_other_by_nothing_and_falls(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    without = trained(tmp_path / "without", num_steps=6, **options)
    asked = trained(
        tmp_path / "with", num_steps=6, belief_weight="player_0=0,player_1=3", **options
    )
    assert same_weights(without.weights("player_0"), asked.weights("player_0"))
    assert not same_weights(without.weights("player_1"), asked.weights("player_1"))
    losses = [row["player_1/belief_loss"] for row in asked.events.rows]
    assert losses[-1] < losses[0] - 0.5
    assert all("player_0/belief_loss" not in row for row in asked.events.rows)
    assert all("player_1/belief_loss" not in row for row in without.events.rows)


def test_games_without_questions_and_thoughts_are_refused() -> None:
    settings = Settings(**BASE_SETTINGS, belief_weight=1.0)
    game = registry.setup("tic_tac_toe", {"preset": "tic_tac_toe"})
    with pytest.raises(SettingsError, match=r"tic_tac_toe tic_tac_toe has no questions"):
        belief_labels(settings, {"y": game}, dict.fromkeys(NAMES, TOKENIZER))
    assert belief_labels(Settings(**BASE_SETTINGS), {"y": game}, {}) is None
    with pytest.raises(SettingsError, match="right answers have no thoughts"):
        batch_plan(Settings(device="cpu", belief_weight=0.1, thinking=True))
