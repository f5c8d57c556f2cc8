"""What vLLM makes of the settings that the engine is started with."""

import pytest
from vllm.config import VllmConfig
from vllm.lora.utils import is_in_target_modules
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.server.adapter_files import linear_shapes
from hanabi_grpo.server.engine import engine_args, engine_options
from hanabi_grpo.settings import Settings
from small_models import small_model

_ADAPTED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def made_of_settings(tmp_path_factory: pytest.TempPathFactory) -> VllmConfig:
    folder = tmp_path_factory.mktemp("model")
    small_model(tie_word_embeddings=False).save_pretrained(folder)
    settings = Settings(model=str(folder), max_model_len=64)
    options = engine_options(settings, str(folder), linear_shapes(folder))
    with pytest.MonkeyPatch.context() as patch:
        # As `prepare_environment` has it: no plugin of other packages.
        patch.setenv("VLLM_PLUGINS", "")
        return engine_args(
            options, ["--max-num-batched-tokens", "777", "--skip-tokenizer-init"]
        ).create_engine_config()


def test_vllm_adapts_the_linear_layers_and_nothing_else(made_of_settings: VllmConfig) -> None:
    targets, packed = (
        made_of_settings.lora_config.target_modules,
        Qwen3ForCausalLM.packed_modules_mapping,
    )
    assert all(is_in_target_modules(f"model.layers.0.{name}", targets, packed) for name in _ADAPTED)
    assert not any(
        is_in_target_modules(name, targets, packed) for name in ("model.embed_tokens", "lm_head")
    )


def test_logprobs_are_those_of_the_sampled_distribution(made_of_settings: VllmConfig) -> None:
    assert made_of_settings.model_config.logprobs_mode == "processed_logprobs"
    assert made_of_settings.cache_config.enable_prefix_caching


def test_vllms_own_options_win(made_of_settings: VllmConfig) -> None:
    assert made_of_settings.scheduler_config.max_num_batched_tokens == 777


def test_an_option_that_breaks_a_guarantee_does_not_reach_vllm() -> None:
    options = engine_options(Settings(), "no/model")
    with pytest.raises(SettingsError, match=r"--no-enable-lora is not handed on to vLLM"):
        engine_args(options, ["--no-enable-lora"])
