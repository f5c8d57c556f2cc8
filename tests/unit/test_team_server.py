"""A server with several base models: whose engine loads, samples and is compared."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save

from fake_engine import (
    CHAT,
    MAX_MODEL_LEN,
    SAMPLING,
    TOKENIZER,
    StubSampler,
    sample,
    task,
)
from hanabi_grpo.agents.served_model import Model, TeamModels
from hanabi_grpo.errors import AdapterError, ServerGoneError, SettingsError
from hanabi_grpo.rollout.handshake import SessionRequest
from hanabi_grpo.rollout.messages import ReplyRequest, RolloutRequest, read_tasks
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, SamplingConfig
from hanabi_grpo.server.adapter_loader import AdapterBase, Upload
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engines import health_of
from hanabi_grpo.server.identity import BaseIdentity, check_fit
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.types import Episode
from server_app import make_identity, session_body
from store_parts import Loads

pytestmark = pytest.mark.anyio

MODULE = "model.layers.0.self_attn.q_proj"
NARROW = {MODULE: (4, 4)}
WIDE = {MODULE: (6, 6)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
BASE_OF = {"player_0": "A", "player_1": "B"}


class Talker(Loads):
    """An engine that says one thing, and notes which adapters it was asked for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.asked: list[AdapterHandle | None] = []

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        self.asked.append(adapter)
        return sample(self.text)


class Team:
    """A store and a scheduler over two engines, one for each player."""

    def __init__(self, home: Path, wide_shapes: dict[str, tuple[int, int]] | None = None) -> None:
        self.first = Talker("Play 0")
        self.second = Talker("Discard 1")
        other = AdapterBase(
            name="B", engine=self.second, shapes=wide_shapes or WIDE, fingerprint="of B"
        )
        self.store = AdapterStore(
            self.first,
            max_rank=16,
            shapes=NARROW,
            home=home,
            name="A",
            fingerprint="of A",
            others=[other],
            base_of=BASE_OF,
        )
        models = {}
        for name, engine in (("A", self.first), ("B", self.second)):
            models[name] = Model(
                sampler=engine, chat=CHAT, max_model_len=MAX_MODEL_LEN, vocab_size=len(TOKENIZER)
            )
        self.scheduler = Scheduler(
            TeamModels(models=models, base_of=BASE_OF),
            self.store,
            games_at_once=8,
            instance_id="here",
            game_timeout=60.0,
            workers=WorkerPool(call_timeout=60.0, session_workers=1),
        )

    async def play(self, *seats: str) -> Episode:
        request = msgspec.convert(
            {
                "tasks": [task(0)],
                "num_games": 1,
                "max_tokens": 4,
                "temperature": 1.0,
                "seats": seats,
            },
            RolloutRequest,
        )
        [[episode]] = await self.scheduler.run(read_tasks(request), SAMPLING)
        assert isinstance(episode, Episode)
        return episode


def adapter_of(width: int, value: float = 0.0) -> Upload:
    """An upload for a base model of this width."""
    prefix = f"base_model.model.{MODULE}"
    body = save(
        {
            f"{prefix}.lora_A.weight": torch.full((2, width), value),
            f"{prefix}.lora_B.weight": torch.full((width, 2), value),
        }
    )
    digest = hashlib.sha256(body).hexdigest()
    return Upload(adapter="", version=1, body=body, sha256=digest, config=CONFIG)


def sent(name: str, width: int) -> Upload:
    upload = adapter_of(width)
    return Upload(
        adapter=name, version=1, body=upload.body, sha256=upload.sha256, config=upload.config
    )


def session(**other: Any) -> SessionRequest:
    fields = {"adapters": ["player_0", "player_1"], "lora_rank": 2, **other}
    return msgspec.convert(session_body(make_identity(), **fields), SessionRequest)


async def test_each_players_adapter_is_checked_and_loaded_on_its_own_base_model(
    tmp_path: Path,
) -> None:
    team = Team(tmp_path)
    await team.store.open_session(session())
    with pytest.raises(AdapterError, match=r"shape \(2, 4\), this model needs \(2, 6\)"):
        await team.store.stage(sent("player_1", 4))
    await team.store.stage(sent("player_0", 4))
    await team.store.stage(sent("player_1", 6))
    await team.store.commit(1)
    assert team.first.names == ["player_0@1"]
    assert team.second.names == ["player_1@1"]
    episode = await team.play("player_0@1", "player_1@1")
    replies = {turn.player: turn.reply for turn in episode.turns}
    assert replies == {0: "Play 0", 1: "Discard 1"}
    assert set(team.first.asked) == {"handle of player_0@1"}
    assert set(team.second.asked) == {"handle of player_1@1"}
    team.store.close()


async def test_in_another_seat_an_adapter_stays_on_its_base_model(tmp_path: Path) -> None:
    team = Team(tmp_path)
    await team.store.open_session(session())
    await team.store.stage(sent("player_0", 4))
    await team.store.stage(sent("player_1", 6))
    await team.store.commit(1)
    episode = await team.play("player_1@1", "player_0@1")
    assert {turn.player: turn.reply for turn in episode.turns} == {0: "Discard 1", 1: "Play 0"}
    team.store.close()


async def test_a_seat_without_an_adapter_is_of_the_base_model_of_its_player(
    tmp_path: Path,
) -> None:
    team = Team(tmp_path)
    episode = await team.play("base", "base")
    assert {turn.player: turn.reply for turn in episode.turns} == {0: "Play 0", 1: "Discard 1"}
    request = ReplyRequest(
        seat="base", system="", turns=(), fresh=True, prompt="deck2", max_tokens=4, temperature=1.0
    )
    with pytest.raises(SettingsError, match=r"base: this server has several base models \(A, B\)"):
        await team.scheduler.reply(request)
    assert (await team.scheduler.reply(request, "player_1")).text == "Discard 1"
    team.store.close()


async def test_a_guest_is_found_by_its_shapes_or_by_the_fingerprint_it_names(
    tmp_path: Path,
) -> None:
    team = Team(tmp_path)
    narrow = await team.store.frozen.add(adapter_of(4))
    wide = await team.store.frozen.add(adapter_of(6))
    assert (narrow.base, wide.base) == ("A", "B")
    episode = await team.play(wide.name, narrow.name)
    assert {turn.player: turn.reply for turn in episode.turns} == {0: "Discard 1", 1: "Play 0"}
    assert (await team.store.frozen.add(adapter_of(6, 1.0), fingerprint="of B")).base == "B"
    with pytest.raises(AdapterError, match=r"of base model of C; this server has A \(of A\), B"):
        await team.store.frozen.add(adapter_of(6, 2.0), fingerprint="of C")
    with pytest.raises(AdapterError, match="fits none of this server's base models"):
        await team.store.frozen.add(adapter_of(5))
    with pytest.raises(AdapterError, match=r"shape \(2, 6\), this model needs \(2, 4\)"):
        await team.store.frozen.add(adapter_of(6, 3.0), fingerprint="of A")
    team.store.close()


async def test_a_guest_that_fits_two_base_models_must_say_of_which_it_is(tmp_path: Path) -> None:
    team = Team(tmp_path, wide_shapes=NARROW)
    with pytest.raises(
        AdapterError, match="fit each of A and B; name the base model's fingerprint"
    ):
        await team.store.frozen.add(adapter_of(4))
    held = await team.store.frozen.add(adapter_of(4), fingerprint="of B")
    assert held.base == "B"
    assert team.first.names == []
    assert team.second.names == [held.name]
    team.store.close()


async def test_a_server_without_one_of_its_engines_is_dead(tmp_path: Path) -> None:
    team = Team(tmp_path)
    health = health_of({"A": team.first, "B": team.second})
    assert not health.is_dead
    assert health.state == "ok"
    team.second.silence = 7.0
    assert health.silence == 7.0
    team.second.is_dead = True
    assert health.is_dead
    assert health.state == "B: engine dead"

    async def fail(*_: Any, **__: Any) -> Sample:
        raise RuntimeError("gone")

    team.second.generate = fail  # type: ignore[method-assign]
    with pytest.raises(ServerGoneError, match="the engine is dead"):
        await team.play("base", "base")
    team.store.close()
    one = StubSampler()
    assert health_of({"A": one}) is one


def described(model: str) -> dict[str, str]:
    return {
        "model_fingerprint": f"weights {model}",
        "tokenizer_hash": f"tokens {model}",
        "chat_hash": f"chat {model}",
    }


def team_identity() -> Any:
    bases = {}
    for player, model in BASE_OF.items():
        bases[player] = BaseIdentity(model=model, **described(model))
    return make_identity(model="player_0=A,player_1=B", bases=bases, **described("A"))


def claimed(**bases: str) -> SessionRequest:
    """The request of a trainer with these models, by player."""
    identity = make_identity(**described(bases["player_0"]))
    fields: dict[str, Any] = {"adapters": ["player_0", "player_1"], "lora_rank": 2}
    if len(set(bases.values())) > 1:
        fields["bases"] = {player: described(model) for player, model in bases.items()}
    return msgspec.convert(session_body(identity, **fields), SessionRequest)


def test_a_handshake_compares_the_base_model_of_each_player() -> None:
    check_fit(team_identity(), claimed(player_0="A", player_1="B"))
    for models, message in (
        (("A", "C"), "base model of player_1 differs: server weights B (B), trainer weights C"),
        (("B", "A"), "base model of player_0 differs: server weights A (A), trainer weights B"),
        (("A", "A"), "base model of player_1 differs: server weights B (B), trainer weights A"),
    ):
        with pytest.raises(SettingsError) as caught:
            check_fit(team_identity(), claimed(player_0=models[0], player_1=models[1]))
        assert message in str(caught.value)
    alone = make_identity(model="A", **described("A"))
    with pytest.raises(SettingsError, match="base model of player_1 differs: server weights A"):
        check_fit(alone, claimed(player_0="A", player_1="B"))
    with pytest.raises(SettingsError, match="base model differs: server weights A"):
        check_fit(alone, claimed(player_0="B", player_1="B"))
