"""Print whether the moves of the served model follow its thoughts.

python tools/recipes/thought_table.py iggi-aloud 300 corrupted.json
python tools/recipes/thought_table.py hat-bot-aloud 2 corrupted.json
python tools/recipes/thought_table.py save-bot-aloud 5 corrupted.json

The positions are from games that a bot that thinks aloud plays with itself, on deals of the suite
`test`. One statement of the thought is corrupted:

- an own card that can be played for sure becomes one that can never be played, or the other way
  around;
- of a hat bot in the compact style, the last remainder, the player's own advice, where the bot
  would then play another card and none has scored since the hint; or the number of the hint that
  it gives, together with the cards behind it, so that another hint follows;
- of the save bot in the compact style, the card that the last hint says to play, where the thought
  ends with it; or what a hint offers to the next player.

Nothing is sampled: the server returns the probability of every legal move after the original
thought and after the corrupted one.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.hanabi.policies import save_aloud
from hanabi_grpo.envs.hanabi.policies.aloud import SUFFIX
from hanabi_grpo.envs.hanabi.policies.hat import (
    NAME,
    PLAIN_NAME,
    Convention,
    Encoded,
    decide,
    decide_by,
    scored_since,
)
from hanabi_grpo.envs.hanabi.policies.hat_aloud import hint_words, thought_words
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move
from hanabi_grpo.envs.hanabi.policies.save import offers
from hanabi_grpo.envs.hanabi.prompts.compact import advice_word, kind_word, own_card_words
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.rules.actions import play
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.messages import ScoredPrompt
from hanabi_grpo.settings import load_settings

SURE = "can be played for sure."
NEVER = "can never be played."
PROMPTS_PER_REQUEST = 256
"""Maximum number of prompts in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A turn, its thought, and the thought with one statement corrupted."""

    kind: str
    player: int
    message: str
    legal: tuple[str, ...]
    thought: str
    corrupted: str
    follows: frozenset[str]
    """Legal moves that follow from the thought."""
    follows_corrupted: frozenset[str]
    """Legal moves that follow from the corrupted thought."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What the model does in the cases of one kind."""

    cases: int = 0
    follows: int = 0
    """Its likeliest move after the original thought follows from it."""
    follows_corrupted: int = 0
    """Its likeliest move after the corrupted thought follows from that one."""
    changed: int = 0
    """Its likeliest move changes."""


def cases(setup: Setup, bot: str, num_deals: int) -> Iterator[Case]:
    """Yield the turns in which a statement can be corrupted.

    Args:
        setup: The game.
        bot: Name of the bot that thinks aloud.
        num_deals: Deals of the suite `test`.
    """
    policy = setup.environment.policies[bot]()
    convention = hat_convention(setup, bot)
    for number in range(num_deals):
        task = setup.task("test", number)
        referee = Referee(task)
        seats = [policy.seat(player, task=task, game=0) for player in range(setup.spec.num_players)]
        while referee.to_act():
            [player] = referee.to_act()
            seen = referee.see(player)
            reply = seats[player].act(seen)
            if convention is not None:
                corruptions = hat_corruptions(convention, seen, setup.config.deductions)
            elif bot == save_aloud.SaveAloud.name and setup.config.observation == "compact":
                corruptions = save_corruptions(seen, setup.config.deductions)
            else:
                corruptions = line_corruptions(seen, reply)
            thought = reply.rpartition("\n")[0]
            for corruption in corruptions:
                yield Case(
                    kind=corruption.kind,
                    player=player,
                    message=seen.message(),
                    legal=tuple(seen.legal() or ()),
                    thought=thought,
                    corrupted=thought.replace(corruption.old, corruption.new),
                    follows=corruption.follows,
                    follows_corrupted=corruption.follows_corrupted,
                )
            referee.step({player: reply})


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """A part of a thought, what replaces it, and the moves that follow from either."""

    kind: str
    old: str
    new: str
    follows: frozenset[str]
    follows_corrupted: frozenset[str]


def line_corruptions(seen: Observation, reply: str) -> Iterator[Corruption]:
    """Yield a corruption of each line that decides whether an own card is played."""
    thought, _, move = reply.rpartition("\n")
    legal = frozenset(seen.legal() or ())
    for line in thought.splitlines():
        if not line.startswith("My slot "):
            continue
        plays = frozenset({f"Play {line.removeprefix('My slot ').partition(' ')[0]}"})
        if line.endswith(SURE) and move in plays:
            yield Corruption(
                kind="sure to never",
                old=line,
                new=line.replace(SURE, NEVER),
                follows=plays,
                follows_corrupted=legal - plays,
            )
        elif line.endswith(NEVER) and move not in plays:
            yield Corruption(
                kind="never to sure",
                old=line,
                new=line.replace(NEVER, SURE),
                follows=legal - plays,
                follows_corrupted=plays,
            )


def hat_convention(setup: Setup, bot: str) -> Convention | None:
    """Return the convention of a hat bot that thinks aloud; None for other bots."""
    if bot == NAME + SUFFIX:
        return Convention(setup.config.spec())
    if bot == PLAIN_NAME + SUFFIX:
        return Convention(setup.config.spec(), is_plain=True)
    return None


def hat_corruptions(
    convention: Convention, seen: Observation, deductions: Deductions
) -> Iterator[Corruption]:
    """Yield the corruptions of a turn of a hat bot: other own advices, and other hints."""
    view = seen.view()
    rng = random.Random(0)
    decision = decide(convention, view, rng)
    words = thought_words(decision, view, deductions)
    decoded = decision.decoded
    if (
        decoded is not None
        and decision.encoded is None
        and decision.move == decoded.move
        # Otherwise the thought goes on with that card, and another advice would change the rest.
        and not scored_since(decoded, view)
    ):
        before_advice = words.rpartition(" ")[0]
        for advice in range(decoded.code.num_plays):
            shift = advice - decoded.advice
            other = replace(decoded, number=(decoded.number + shift) % decoded.code.modulus)
            if shift and decide_by(other, convention, view, rng).move == other.move:
                yield Corruption(
                    kind="own advice",
                    old=words,
                    new=f"{before_advice} {advice_word(other.move)}",
                    follows=frozenset({move_text(seen, decision.move)}),
                    follows_corrupted=frozenset({move_text(seen, other.move)}),
                )
    encoded = decision.encoded
    if encoded is not None and encoded.is_needed:
        num_last_words = 1 + len(hint_words(decision.move, view))
        before_number = words.split()[:-num_last_words]
        for number in range(encoded.code.modulus):
            if number == encoded.number:
                continue
            last_words = hint_words(encoded.code.hint(number, view), view)
            number_word = advice_word(encoded.code.advised(number))
            yield Corruption(
                kind="own hint",
                old=words,
                new=" ".join([*before_number, number_word, *last_words]),
                follows=_hints(seen, encoded, encoded.number),
                follows_corrupted=_hints(seen, encoded, number),
            )


def _hints(seen: Observation, encoded: Encoded, number: int) -> frozenset[str]:
    """Return the legal hints that stand for a number."""
    hints = encoded.code.hints(number, seen.view())
    return frozenset(move_text(seen, hint) for hint in hints)


def save_corruptions(seen: Observation, deductions: Deductions) -> Iterator[Corruption]:
    """Yield the corruptions of a turn of the save bot: other cards to play, and other offers."""
    view = seen.view()
    move = rule_move(save_aloud.NAME, view, random.Random(0))
    words = save_aloud.thought_words(move, view, deductions)

    def told(slot: int) -> str:
        return " ".join([*own_card_words(view, slot, deductions), kind_word("play")])

    if move.kind == "play" and words.endswith(told(move.slot)):
        for slot in range(len(view.own_hand)):
            if slot != move.slot:
                yield Corruption(
                    kind="card to play",
                    old=words,
                    new=words.removesuffix(told(move.slot)) + told(slot),
                    follows=frozenset({move_text(seen, move)}),
                    follows_corrupted=frozenset({move_text(seen, play(slot))}),
                )
    hints_by_offer: dict[str, set[str]] = {}
    own_offer = None
    for offer in offers(view):
        offered = " ".join(save_aloud.offer_words(offer, view, deductions))
        hints_by_offer.setdefault(offered, set()).add(move_text(seen, offer.action))
        if offer.action == move:
            own_offer = offered
    if own_offer is None:
        return
    for offered, hints in hints_by_offer.items():
        if offered != own_offer:
            yield Corruption(
                kind="offer",
                old=words,
                new=words.removesuffix(own_offer) + offered,
                follows=frozenset(hints_by_offer[own_offer]),
                follows_corrupted=frozenset(hints),
            )


def best_moves(client: RolloutClient, setup: Setup, asked: list[tuple[Case, str]]) -> list[str]:
    """Return the base model's likeliest legal move after each thought."""
    moves: list[str] = []
    for start in range(0, len(asked), PROMPTS_PER_REQUEST):
        part = asked[start : start + PROMPTS_PER_REQUEST]
        prompts = []
        for case, thought in part:
            system = setup.environment.system_message(setup.config, case.player)
            replies = tuple(f"{thought}\n{move}" for move in case.legal)
            prompts.append(ScoredPrompt(system=system, prompt=case.message, replies=replies))
        for (case, _), logprobs in zip(part, client.score("base", prompts), strict=True):
            moves.append(case.legal[logprobs.index(max(logprobs))])
    return moves


def main(bot: str, num_deals: int, out: Path) -> None:
    """Measure and print a row per kind.

    Args:
        bot: Name of the bot that thinks aloud.
        num_deals: Deals of the suite `test`.
        out: File for the counts, as JSON.
    """
    settings = load_settings().settings
    setup = settings.setup()
    found = list(cases(setup, bot, num_deals))
    with RolloutClient.from_settings(settings) as client:
        before = best_moves(client, setup, [(case, case.thought) for case in found])
        after = best_moves(client, setup, [(case, case.corrupted) for case in found])
    counts: dict[str, Counts] = {}
    for case, old, new in zip(found, before, after, strict=True):
        row = counts.setdefault(case.kind, Counts())
        row.cases += 1
        row.follows += old in case.follows
        row.follows_corrupted += new in case.follows_corrupted
        row.changed += old != new
    out.write_text(json.dumps({kind: asdict(row) for kind, row in counts.items()}, indent=1) + "\n")
    print("| corrupted | thoughts | the move follows the thought | the corrupted one | changes |")
    print("|---|---|---|---|---|")
    for kind, row in counts.items():
        numbers = (row.follows, row.follows_corrupted, row.changed)
        shares = " | ".join(f"{number / row.cases:.2f}" for number in numbers)
        print(f"| {kind} | {row.cases} | {shares} |")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
