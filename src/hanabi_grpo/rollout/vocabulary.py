"""Check whether a tokenizer knows the words of a game.

A tiny model's tokenizer knows only the words of the presets that it was made for.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup, random_policy
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.random_games import play_random_games
from hanabi_grpo.settings.defaults import tiny_model_command, tiny_model_folder

_MAX_SHOWN = 5
"""Unknown words of a game that an error message lists."""
_SHOWN_REPLY = 120
"""Characters of a reply that an error message shows."""
_NUM_GAMES = 20
"""Random games whose words are collected."""


def game_texts(setup: Setup[Any], *, num_games: int = _NUM_GAMES) -> tuple[str, ...]:
    """Return the distinct texts of a game, in order of appearance.

    These are the environment's own list of words, the system messages, and the messages and legal
    actions of random play.

    Args:
        setup: The game.
        num_games: Number of random games played.
    """
    # A dict's keys serve as an ordered set.
    texts = dict.fromkeys(setup.environment.reply_words(setup.config))
    for player in range(setup.spec.num_players):
        texts[setup.environment.system_message(setup.config, player)] = None
    for texts_of_game in play_random_games(
        setup, lambda seed: list(_texts_of_random_game(setup, seed)), num_games
    ):
        texts |= dict.fromkeys(texts_of_game)
    return tuple(texts)


def game_words(setup: Setup[Any], *, num_games: int = _NUM_GAMES) -> tuple[str, ...]:
    """Return the distinct words of `game_texts`, in order of appearance.

    Args:
        setup: The game.
        num_games: Number of random games played.
    """
    words: dict[str, None] = {}
    for text in game_texts(setup, num_games=num_games):
        words |= dict.fromkeys(text.split())
    return tuple(words)


def _texts_of_random_game(setup: Setup[Any], seed: int) -> Iterable[str]:
    """Yield the messages of a random game, and its legal actions at each turn."""
    policy = random_policy()
    task = setup.task("train-words", seed)
    referee = Referee(task, is_rehearsal=True)
    seats = {}
    for player in range(setup.spec.num_players):
        seats[player] = policy.seat(player, task=task, game=0)
    acting = referee.to_act()
    while acting:
        observations = {player: referee.see(player) for player in acting}
        actions = {}
        for player, observation in observations.items():
            yield observation.message()
            yield from observation.legal() or ()
            actions[player] = seats[player].act(observation)
        referee.step(actions)
        acting = referee.to_act()


def unknown_words(words: Sequence[str], tokenizer: Any) -> tuple[str, ...]:
    """Return the words that the tokenizer maps to its unknown token.

    There are none if that token also ends replies, as in GPT-2, which can write any text.
    """
    unknown_id = tokenizer.unk_token_id
    if unknown_id in (None, tokenizer.eos_token_id) or not words:
        return ()
    ids = tokenizer(list(words), add_special_tokens=False)["input_ids"]
    unknown = []
    for word, word_ids in zip(words, ids, strict=True):
        if unknown_id in word_ids:
            unknown.append(word)
    return tuple(unknown)


def check_taught_reply(text: str, ids: Sequence[int], tokenizer: Any) -> None:
    """Reject a reply that a model is to learn and could not write.

    Args:
        text: The reply.
        ids: The reply's ids from the tokenizer.
        tokenizer: The model's tokenizer.

    Raises:
        SettingsError: Words of the reply have no token of their own.
    """
    if tokenizer.unk_token_id not in ids:
        return
    unknown = unknown_words(text.split(), tokenizer)
    if not unknown:
        return
    shown = ", ".join(unknown[:_MAX_SHOWN])
    raise SettingsError(
        f"the reply {text[:_SHOWN_REPLY]!r} has words that the tokenizer of MODEL does not know, "
        f"e.g. {shown}, so a player could not write it. Use a model that knows them (hanabi-grpo "
        "tiny-model --teacher NAME makes one that knows the words of a bot's thoughts), a bot that "
        "thinks in the model's words or not at all, or HANABI_OBSERVATION in which it does."
    )


def check_vocabulary(setups: Sequence[Setup[Any]], tokenizer: Any, model: str) -> None:
    """Reject a model that cannot read every game.

    Args:
        setups: The games of a run.
        tokenizer: The model's tokenizer.
        model: MODEL, for the message.

    Raises:
        SettingsError: Words of a game have no token of their own.
    """
    if tokenizer.unk_token_id is None:
        return
    problems = []
    for setup in setups:
        words = game_words(setup)
        unknown = unknown_words(words, tokenizer)
        if unknown:
            problems.append(_describe_unknown(setup, unknown, len(words)))
    if not problems:
        return
    instructed = [setup for setup in setups if _has_unknown_instruction(setup, tokenizer)]
    if instructed:
        raise SettingsError(
            f"MODEL={model}: its tokenizer does not know {'; '.join(problems)}. HANABI_INSTRUCTION "
            "has words that do not occur in the game's messages, and tiny models know no others. "
            "Use only the game's words, or set MODEL to a language model, e.g. "
            "MODEL=Qwen/Qwen3-0.6B (slow to sample on a CPU), the same in both terminals."
        )
    # Hanabi's tiny model knows the words of the compact style only.
    make = "Make"
    if any(map(_has_full_style, setups)):
        make = "With HANABI_OBSERVATION=compact, make"
    boards = boards_of(setups)
    if Path(model) == Path(tiny_model_folder(*boards)):
        raise SettingsError(
            f"MODEL={model}: its tokenizer does not know {'; '.join(problems)}. It is the tiny "
            "model of this environment, which knows only its own tasks in the compact style. Set "
            "MODEL to a language model that can read these, e.g. MODEL=Qwen/Qwen3-0.6B (slow to "
            "sample on a CPU), the same in both terminals."
        )
    raise SettingsError(
        f"MODEL={model}: its tokenizer does not know {'; '.join(problems)}. Players could not read "
        f"their messages. {make} a model that knows them: {tiny_model_command(*boards)}, and set "
        f"MODEL={tiny_model_folder(*boards)}; or choose another MODEL."
    )


def _has_unknown_instruction(setup: Setup[Any], tokenizer: Any) -> bool:
    """Tell whether the instruction of a game has words that the tokenizer does not know."""
    instruction = setup.config.instruction or ""
    return bool(unknown_words(instruction.split(), tokenizer))


def _has_full_style(setup: Setup[Any]) -> bool:
    """Tell whether a game is Hanabi with observations in the full style."""
    return setup.env == "hanabi" and setup.config.observation == "full"


def _describe_unknown(setup: Setup[Any], unknown: Sequence[str], num_words: int) -> str:
    """Return e.g. "2 of 40 words of laptop (compact): life1, life2"."""
    shown = ", ".join(unknown[:_MAX_SHOWN])
    if len(unknown) > _MAX_SHOWN:
        shown += ", …"
    style = f" ({setup.config.observation})" if setup.env == "hanabi" else ""
    return f"{len(unknown)} of {num_words} words of {setup.spec.preset}{style}: {shown}"


def boards_of(setups: Sequence[Setup[Any]]) -> tuple[tuple[str, ...], int, str]:
    """Return what a tiny model for a run's games must know.

    Returns:
        The distinct presets of the games, the largest number of players, and the environment of the
        first game. A preset of another environment is prefixed with that environment's name, as in
        "kuhn_poker:kuhn_poker".
    """
    env = setups[0].env
    presets: dict[str, None] = {}
    most_players = 0
    for setup in setups:
        preset = setup.spec.preset
        if setup.env != env:
            preset = f"{setup.env}:{preset}"
        presets[preset] = None
        most_players = max(most_players, setup.spec.num_players)
    return tuple(presets), most_players, env
