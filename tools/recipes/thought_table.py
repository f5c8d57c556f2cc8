"""Print whether the moves of the served model follow its thoughts.

python tools/recipes/thought_table.py iggi-aloud 300 corrupted.json

The positions are from games that a bot that thinks aloud plays with itself, on deals of the suite
`test`. In one line of the thought, an own card that can be played for sure becomes one that can
never be played, or the other way around. Nothing is sampled: the server returns the probability of
every legal move after the original thought and after the corrupted one.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.messages import ScoredPrompt
from hanabi_grpo.settings import load_settings

SURE = "can be played for sure."
NEVER = "can never be played."
PROMPTS_PER_REQUEST = 256
"""Maximum number of prompts in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A turn, its thought, and the thought with one line corrupted."""

    kind: str
    player: int
    message: str
    legal: tuple[str, ...]
    slot: int
    """Slot of the card whose line is corrupted."""
    thought: str
    corrupted: str


@dataclass(slots=True, kw_only=True)
class Counts:
    """What the model does in the cases of one kind."""

    cases: int = 0
    plays_before: int = 0
    """Its likeliest move after the original thought plays the card."""
    plays_after: int = 0
    """Its likeliest move after the corrupted thought plays the card."""
    changed: int = 0
    """Its likeliest move changes."""


def cases(setup: Setup, bot: str, num_deals: int) -> Iterator[Case]:
    """Yield the turns in which a line can be corrupted.

    Args:
        setup: The game.
        bot: Name of the bot that thinks aloud.
        num_deals: Deals of the suite `test`.
    """
    policy = setup.environment.policies[bot]()
    for number in range(num_deals):
        task = setup.task("test", number)
        referee = Referee(task)
        seats = [policy.seat(player, task=task, game=0) for player in range(setup.spec.num_players)]
        while referee.to_act():
            [player] = referee.to_act()
            seen = referee.see(player)
            reply = seats[player].act(seen)
            thought, _, move = reply.rpartition("\n")
            for line in thought.splitlines():
                slot = line.removeprefix("My slot ").partition(" ")[0]
                for kind, old, new in (
                    ("sure to never", SURE, NEVER),
                    ("never to sure", NEVER, SURE),
                ):
                    is_played = move == f"Play {slot}"
                    is_case = line.endswith(old) and is_played == (kind == "sure to never")
                    if line.startswith("My slot ") and is_case:
                        yield Case(
                            kind=kind,
                            player=player,
                            message=seen.message(),
                            legal=tuple(seen.legal() or ()),
                            slot=int(slot),
                            thought=thought,
                            corrupted=thought.replace(line, line.replace(old, new)),
                        )
            referee.step({player: reply})


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
        row.plays_before += old == f"Play {case.slot}"
        row.plays_after += new == f"Play {case.slot}"
        row.changed += old != new
    out.write_text(json.dumps({kind: asdict(row) for kind, row in counts.items()}, indent=1) + "\n")
    print("| a line of the thought | turns | plays the card before | after | another move |")
    print("|---|---|---|---|---|")
    for kind, row in counts.items():
        shares = [f"{n / row.cases:.2f}" for n in (row.plays_before, row.plays_after, row.changed)]
        print(f"| {kind} | {row.cases} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
