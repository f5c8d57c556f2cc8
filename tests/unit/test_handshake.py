"""What both sides compute and compare before the first game."""

import json
from typing import Any

import httpx
import msgspec
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from fake_engine import LAPTOP, TOKENIZER
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi import environment
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import SessionRequest, game_claims, prompt_hash, tokenizer_hash
from hanabi_grpo.runs.adapter_config import config_digest
from hanabi_grpo.server.identity import check_fit, read_session_request
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from server_app import JSON, make_identity, running_app, session_body

IDENTITY = make_identity()
FULL = EnvConfig(preset="full", players=2, observation="full", legal_moves=True)


def new_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer(compact_vocabulary(LAPTOP.spec()))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def test_the_tokenizer_hash_depends_on_words_and_not_on_the_folder_or_on_earlier_calls(
    tmp_path: Any,
) -> None:
    expected = tokenizer_hash(TOKENIZER)
    other = new_tokenizer()
    other.padding_side = "left"
    other(["Play 0", "Hint R Play"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(other) == expected
    other.save_pretrained(tmp_path / "elsewhere")
    assert (
        tokenizer_hash(PreTrainedTokenizerFast.from_pretrained(tmp_path / "elsewhere")) == expected
    )


def _with_pipeline(**changed: Any) -> PreTrainedTokenizerFast:
    tokenizer = new_tokenizer()
    pipeline = {**json.loads(tokenizer.backend_tokenizer.to_str()), **changed}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(pipeline)))
    for name, token in tokenizer.special_tokens_map.items():
        setattr(other, name, token)
    return other


def test_the_tokenizer_hash_sees_words_order_added_and_special_tokens_and_normalisation() -> None:
    words = compact_vocabulary(LAPTOP.spec())
    added, special = new_tokenizer(), new_tokenizer()
    added.add_tokens(["<new>"])
    special.eos_token = "<|im_start|>"
    hashes = [
        tokenizer_hash(new_tokenizer()),
        tokenizer_hash(build_tokenizer((*words, "more"))),
        tokenizer_hash(build_tokenizer((words[1], words[0], *words[2:]))),
        tokenizer_hash(added),
        tokenizer_hash(special),
        tokenizer_hash(_with_pipeline(normalizer={"type": "Lowercase"})),
    ]
    assert len(set(hashes)) == len(hashes)
    assert tokenizer_hash(_with_pipeline()) == hashes[0]


def test_the_chat_hash_sees_what_surrounds_messages_and_not_the_vocabulary() -> None:
    chat = ChatFormat.from_tokenizer(new_tokenizer())
    larger = ChatFormat.from_tokenizer(
        build_tokenizer((*compact_vocabulary(LAPTOP.spec()), "more"))
    )
    assert larger.hash == chat.hash
    headed = new_tokenizer()
    headed.chat_template = "Be brief.\n" + str(headed.chat_template)
    assert ChatFormat.from_tokenizer(headed).hash != chat.hash
    strict = new_tokenizer()
    strict.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + str(strict.chat_template)
    )
    assert ChatFormat.from_tokenizer(strict).hash not in (
        chat.hash,
        ChatFormat.from_tokenizer(headed).hash,
    )


def test_the_prompt_hash_differs_wherever_players_are_told_something_else() -> None:
    setups = [
        Setup(HANABI, config)
        for config in (
            LAPTOP,
            FULL,
            FULL.model_copy(update={"legal_moves": False}),
            FULL.model_copy(update={"bomb_rule": "keep"}),
            EnvConfig(preset="full", players=3),
            LAPTOP.model_copy(update={"observation": "full"}),
        )
    ]
    assert len({prompt_hash(setup) for setup in setups}) == len(setups)
    laptop = prompt_hash(setups[0])
    assert laptop == prompt_hash(Setup(HANABI, LAPTOP.model_copy(update={"reward_illegal": -3.0})))
    assert laptop == "9a55b1278ea0d230", (
        "the wording changed: say so in the changelog, raise PROTOCOL"
    )


@pytest.mark.parametrize(
    ("module", "name"), [(environment, "system_prompt"), (environment, "turn_prompt")]
)
def test_the_prompt_hash_changes_with_one_word_of_the_prompt_code(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prompt_hash.__wrapped__(Setup(HANABI, FULL))
    worded = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **other: worded(*args, **other) + ".")
    assert prompt_hash.__wrapped__(Setup(HANABI, FULL)) != before


def test_the_config_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert config_digest({"r": 8, "lora_alpha": 16}) == config_digest({"lora_alpha": 16, "r": 8})
    assert config_digest({"r": 8, "lora_alpha": 16}) != config_digest({"r": 8, "lora_alpha": 32})


def test_equal_games_are_claimed_once() -> None:
    claims = game_claims([Setup(HANABI, LAPTOP), Setup(HANABI, FULL), Setup(HANABI, LAPTOP)])
    assert [claim["env_config"]["preset"] for claim in claims] == ["laptop", "full"]
    assert claims[0]["spec_hash"] == LAPTOP.spec().hash


def _wanted(**other: Any) -> SessionRequest:
    return msgspec.convert(session_body(IDENTITY, **other), SessionRequest)


def _claim(config: EnvConfig = LAPTOP, **other: Any) -> dict[str, Any]:
    return {**game_claims([Setup(HANABI, config)])[0], **other}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"protocol": 1},
            "protocol differs: server 8, trainer 1; install the same hanabi_grpo version on both "
            "sides",
        ),
        (
            {"model_fingerprint": "0000"},
            "base model differs: server ffffffffffffffff (test-model), trainer 0000; start both "
            "sides with the same",
        ),
        (
            {"tokenizer_hash": "0000"},
            f"tokenizer differs: server {IDENTITY.tokenizer_hash} (test-model), trainer 0000; "
            "copy the tokenizer files",
        ),
        (
            {"dtype": "bfloat16"},
            "number format differs: server float32 (test-model), trainer bfloat16; use the same",
        ),
        (
            {"lora_rank": 64},
            "LORA_RANK=64: this server was started with LORA_RANK=8. Restart it with LORA_RANK=64",
        ),
        (
            {"lora_ranks": {"player_1": 9}},
            "lora_ranks: {'player_1': 9} with lora_rank 8, which must be the largest",
        ),
        (
            {"adapters": ["player_0", "player_1", "player_2"]},
            "3 adapters: this server was started for 2 players; restart it with HANABI_PLAYERS=3.",
        ),
        (
            {"adapters": ["player_1", "player_0"]},
            "adapters player_1, player_0: allowed are shared alone, or player_0",
        ),
        (
            {"adapters": ["player_0"]},
            "games of 2 players, but 1 adapters (player_0): give each player one",
        ),
        (
            {"games": [_claim(EnvConfig(preset="full", players=3))]},
            "games of 3 players: this server was started for 2 players; restart it with "
            "HANABI_PLAYERS=3.",
        ),
        (
            {"games": [_claim(version="0.0.1")]},
            "package of the environment hanabi differs: server hanabi-grpo ",
        ),
        (
            {"games": [_claim(spec_hash="0000")]},
            f"rules (hanabi laptop, 2 players) differs: server {LAPTOP.spec().hash}, trainer "
            "0000; install the same",
        ),
        (
            {"games": [_claim(), _claim(FULL, prompt_hash="0000")]},
            "prompts (hanabi full, 2 players) differs: server "
            f"{prompt_hash(Setup(HANABI, FULL))}, trainer 0000",
        ),
        (
            {"games": [_claim(env_config={"preset": "no such"})]},
            "the server cannot play a game of this trainer: env_c",
        ),
        ({"games": [_claim(env_config={"preset": "laptop", "new": 1})]}, "unknown key 'new'"),
    ],
)
def test_what_differs_is_refused_with_both_values_and_the_remedy(
    other: dict[str, Any], message: str
) -> None:
    check_fit(IDENTITY, _wanted())
    check_fit(IDENTITY, _wanted(adapters=["shared"], games=[_claim(), _claim(FULL)]))
    with pytest.raises(SettingsError) as caught:
        check_fit(IDENTITY, _wanted(**other))
    assert message in str(caught.value)


def _raw(**other: Any) -> bytes:
    return json.dumps({**session_body(IDENTITY), **other}).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 5000, "session request: all of it: Expected `object`, got `array`"),
        (_raw(protocol=9, new_field=1), "protocol differs: server 8, trainer 9"),
        (_raw(new_field=1), "session request: new_field=1: no such field"),
        (_raw(games=[]), "session request: games=[]"),
        (_raw(games=[_claim(env_config={})]), "session request: games.0.env_config={}"),
        (_raw(run_id="a\nb"), "session request: run_id='a\\nb'"),
        (
            _raw(run_id="a\x9b2Jb"),
            "run_id 'a[U+009B]2Jb' contains a control character, or one that",
        ),
        (_raw(run_id="a\u202eb"), "run_id 'a[U+202E]b' contains a control character, or one that"),
        (_raw(run_id="a\u2028b"), "run_id 'a[U+2028]b' contains a control character, or one that"),
        (_raw(trainer_id="X" * 32), "session request: trainer_id='XXX"),
        (_raw(lora_rank="8"), "session request: lora_rank='8': Expected `int`, got `str`"),
        (
            _raw(replaces={"player_0": -1}),
            "session request: replaces={'player_0': -1}: Expected `int` >= 0",
        ),
    ],
)
def test_a_malformed_request_names_the_field_and_another_protocol_comes_first(
    body: bytes, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_session_request(IDENTITY, body)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_secret_is_shown_neither_by_an_error_nor_by_a_log_line() -> None:
    secret = "0" * 63 + "X"
    with pytest.raises(SettingsError, match="session request: secret: Expected `str`") as caught:
        read_session_request(IDENTITY, _raw(secret=secret))
    assert secret not in str(caught.value)
    assert secret not in repr(_wanted(secret="a" * 64))
    assert "a" * 64 not in repr(_wanted(secret="a" * 64))


def test_the_route_answers_422_with_the_reason_and_opens_nothing() -> None:
    with running_app() as app:
        for body, message in (
            (_raw(model_fingerprint="0000"), "base model differs"),
            (b"{", "session request"),
        ):
            answer = httpx.post(f"{app.url}/session/", content=body, headers=JSON, trust_env=False)
            assert answer.status_code == 422
            assert message in answer.json()["detail"]
        assert app.store.ownership.session is None
        for body, status in ((b" " * (25 << 20), 413), (_raw(), 200)):
            answer = httpx.post(f"{app.url}/session/", content=body, headers=JSON, trust_env=False)
            assert answer.status_code == status
