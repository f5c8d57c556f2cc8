"""Whether a tokenizer knows the words of a game: a tiny model's knows those of the presets that it
was made for.
"""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.base import Setup, random_policy
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.defaults import tiny_model_command, tiny_model_folder

_SHOWN = 5
_GAMES = 20


def game_words(setup: Setup[Any], *, num_games: int = _GAMES) -> tuple[str, ...]:
    """Return the different words of the environment's own list, the system messages, and random
    play, in order.
    """
    players = range(setup.spec.num_players)
    texts = dict.fromkeys(setup.environment.reply_words(setup.config))
    texts |= dict.fromkeys(setup.environment.system(setup.config, player) for player in players)
    policy = random_policy()
    for seed in range(num_games):
        referee = Referee(task := setup.task("train-words", seed))
        seats = {player: policy.seat(player, task=task, game=0) for player in players}
        while acting := referee.to_act():
            seen = {player: referee.see(player) for player in acting}
            for one in seen.values():
                texts |= dict.fromkeys((one.message(), *(one.legal() or ())))
            referee.step({player: seats[player].act(one) for player, one in seen.items()})
    return tuple(dict.fromkeys(word for text in texts for word in text.split()))


def unknown_words(words: Sequence[str], tokenizer: Any) -> tuple[str, ...]:
    """Return the words that the tokenizer cannot tell from other unknown ones."""
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return ()
    ids = tokenizer(list(words), add_special_tokens=False)["input_ids"]
    return tuple(word for word, pieces in zip(words, ids, strict=True) if unknown in pieces)


def check_vocabulary(setups: Sequence[Setup[Any]], tokenizer: Any, model: str) -> None:
    """Return if the model can read every game; SettingsError where words of one have no token."""
    if tokenizer.unk_token_id is None:
        return
    problems = []
    for setup in setups:
        words = game_words(setup)
        if missing := unknown_words(words, tokenizer):
            shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
            style = f" ({setup.config.observation})" if setup.env == "hanabi" else ""
            problems.append(
                f"{len(missing)} of {len(words)} words of {setup.spec.preset}{style}: {shown}"
            )
    if problems:
        # Hanabi's tiny model knows the words of the compact style only.
        full = any(setup.env == "hanabi" and setup.config.observation == "full" for setup in setups)
        boards = boards_of(setups)
        raise SettingsError(
            f"MODEL={model}: its tokenizer does not know {'; '.join(problems)}. Players could not "
            "tell what they see. "
            f"{'With HANABI_OBSERVATION=compact, make' if full else 'Make'} a model that knows "
            "them: "
            f"{tiny_model_command(*boards)}, and set MODEL={tiny_model_folder(*boards)}; or "
            "choose another MODEL."
        )


def boards_of(setups: Sequence[Setup[Any]]) -> tuple[tuple[str, ...], int, str]:
    """Return the different presets of a run's games, their greatest number of players, and the
    first's environment.

    A preset of another environment has its name before it, as in "kuhn_poker:kuhn_poker".
    """
    env = setups[0].env
    names = (
        setup.spec.preset if setup.env == env else f"{setup.env}:{setup.spec.preset}"
        for setup in setups
    )
    return tuple(dict.fromkeys(names)), max(setup.spec.num_players for setup in setups), env
