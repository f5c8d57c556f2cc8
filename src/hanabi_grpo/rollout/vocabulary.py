"""Whether a tokenizer knows the words of a game: a tiny model's knows those of the boards that it was made for."""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle, compact_vocabulary, system_prompt, turn_prompt
from hanabi_grpo.envs.hanabi.rules import Game, shuffled_deck
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.board import tiny_model_command, tiny_model_folder

_SHOWN = 5
_MANY = 0.1
"""Share of unknown words from which on readable text cannot be read."""


def game_words(config: EnvConfig) -> tuple[str, ...]:
    """Return the different words of a game's prompts.

    In the compact style these are all that there can be, replies included; in the full style those of the rules and of
    a game's first turn.
    """
    spec = config.spec()
    if ObservationStyle(config.observation) is ObservationStyle.COMPACT:
        return compact_vocabulary(spec)
    first_turn = Game(spec, shuffled_deck(spec, "doctor", 0)).view(0)
    texts = (
        system_prompt(spec, config.observation, 0, bomb_rule=config.bomb_rule),
        turn_prompt(first_turn, style=config.observation, legal_moves=True),
    )
    return tuple(dict.fromkeys(word for text in texts for word in text.split()))


def unknown_words(config: EnvConfig, tokenizer: Any) -> tuple[str, ...]:
    """Return the words of a game that the tokenizer cannot tell from other unknown ones.

    Args:
        config: The game.
        tokenizer: Of transformers; one without an unknown token knows every word.
    """
    unknown = tokenizer.unk_token_id
    words = game_words(config)
    if unknown is None:
        return ()
    ids = tokenizer(list(words), add_special_tokens=False)["input_ids"]
    return tuple(word for word, pieces in zip(words, ids, strict=True) if unknown in pieces)


def check_vocabulary(configs: Sequence[EnvConfig], tokenizer: Any, model: str) -> None:
    """Return if the model can read every game.

    Args:
        configs: The different games of a dataset.
        tokenizer: The model's.
        model: MODEL, for the message.

    Raises:
        SettingsError: A word of the compact style, or many words of the full style, have no token.
    """
    problems = []
    for config in configs:
        missing = unknown_words(config, tokenizer)
        compact = ObservationStyle(config.observation) is ObservationStyle.COMPACT
        if not missing or (not compact and len(missing) < _MANY * len(game_words(config))):
            continue
        shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
        problems.append(
            f"{len(missing)} of {len(game_words(config))} words of {config.preset} ({config.observation}): {shown}"
        )
    if problems:
        raise SettingsError(
            f"MODEL={model}: its tokenizer does not know {'; '.join(problems)}. Players could not tell what they see. "
            f"{_next_step(configs)}"
        )


def boards_of(configs: Sequence[EnvConfig]) -> tuple[tuple[str, ...], int]:
    """Return the different boards of games, and the number of players, which all games of a run share."""
    return tuple(dict.fromkeys(config.preset for config in configs)), configs[0].players


def _next_step(configs: Sequence[EnvConfig]) -> str:
    # The tiny model's tokenizer lists the words of the compact style only.
    presets, players = boards_of(configs)
    folder = tiny_model_folder(presets, players)
    full = any(config.observation == "full" for config in configs)
    style = "With HANABI_OBSERVATION=compact, make" if full else "Make"
    make = f"{tiny_model_command(presets, players)}, and set MODEL={folder}"
    return f"{style} a model that knows them: {make}; or choose another MODEL."
