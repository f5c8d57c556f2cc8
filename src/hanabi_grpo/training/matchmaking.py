"""HANABI_PARTNER_DRAW=worst: partners with whom the run scores least are drawn more often.

Prioritised fictitious self-play (Vinyals et al., "Grandmaster level in StarCraft II", Nature 575,
2019) draws an opponent with a chance proportional to (1 - chance to win)^p. Here that chance is the
mean score with the partner in a seat, from 0 (least) to 1 (greatest possible score of the game), of
the last `RECENT_TASKS` tasks with it; a partner with whom nothing was played yet counts as 0, so
that it comes up soon. Departures: weights of HANABI_PARTNERS multiply the chances, partner and seat
are drawn as a pair, and the scores are of the run's own training games.

A step's draws look at games of earlier steps alone, and with HANABI_OVERLAP at as many steps fewer,
because its games are asked for while those of the step before are learned from. So a resumed run
draws what the whole run would have drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.settings.defaults import MAX_OVERLAP
from hanabi_grpo.settings.partners import Partner, pairs
from hanabi_grpo.training.metrics import score_of
from hanabi_grpo.types import Episode, is_trained, player_name

RECENT_TASKS = 32
"""Tasks with a partner in a seat whose mean score counts."""
_NUM_KEPT_STEPS = MAX_OVERLAP + 1
"""Newest steps of which everything is kept, for draws that look at HANABI_OVERLAP steps fewer."""

Result = tuple[int, float]
"""Step of a task's games, and their mean score from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerRecord:
    """What a run remembers of its games with partners.

    Example:
        PartnerRecord(recent={"iggi player_1": ((7, 0.25), (8, 0.5))}, games={"iggi": 16})
    """

    recent: Mapping[str, Sequence[Result]] = field(default_factory=dict)
    """By partner and seat the newest results, oldest first."""
    games: Mapping[str, int] = field(default_factory=dict)
    """By partner, as it stands in HANABI_PARTNERS, the number of games with it since the start."""

    def with_games(
        self,
        groups: Sequence[Sequence[Episode]],
        setups: Mapping[str, Setup[Any]],
        *,
        step: int,
        own_seats: Sequence[str],
        names: Mapping[str, str],
        specs: Mapping[str, str],
    ) -> "PartnerRecord":
        """Return the record with a step's games.

        Args:
            groups: Per task its games.
            setups: What is played, by the hash of its rules.
            step: Number of steps before this one.
            own_seats: Per seat the run's own adapter, e.g. "player_0@7".
            names: The name of each partner by its seat reference.
            specs: By a partner's name, how HANABI_PARTNERS names it.
        """
        recent = {key: list(results) for key, results in self.recent.items()}
        games = dict(self.games)
        for group in groups:
            if not group:
                continue
            scores = [_share(episode, setups, own_seats) for episode in group]
            for seat, reference in enumerate(group[0].seats):
                name = names.get(reference)
                if name is None or is_trained(group[0], seat, own_seats):
                    continue
                recent.setdefault(_key(name, seat), []).append((step, fmean(scores)))
                spec = specs.get(name, name)
                games[spec] = games.get(spec, 0) + len(group)
        kept = {key: _newest(results, step) for key, results in recent.items()}
        return PartnerRecord(recent=kept, games=games)

    def before(self, step: int) -> "PartnerRecord":
        """Return the record as the draws of a step may see it: `RECENT_TASKS` of earlier steps."""
        recent = {}
        for key, results in self.recent.items():
            recent[key] = [result for result in results if result[0] < step][-RECENT_TASKS:]
        return PartnerRecord(recent=recent, games=self.games)

    def chances(self, pool: Sequence[Partner], num_players: int, power: float) -> list[float]:
        """Return how likely each pair of partner and seat is drawn, see `settings.partners.pairs`.

        They sum to 1. Where every partner is played perfectly, or the power is 0, the weights alone
        decide.

        Args:
            pool: The partners.
            num_players: Seats of the game.
            power: The p of (1 - normalised mean score)^p.
        """
        weights = []
        urgent = []
        for partner, seat in pairs(pool, num_players):
            results = self.recent.get(_key(partner.name, seat), ())
            mean = fmean(share for _, share in results) if results else 0.0
            weights.append(float(partner.weight))
            urgent.append(float(partner.weight) * (1.0 - mean) ** power)
        chosen = urgent if sum(urgent) > 0 else weights
        total = sum(chosen)
        return [chance / total for chance in chosen]

    def figures(self, pool: Sequence[Partner], num_players: int, power: float) -> dict[str, float]:
        """Return `partners/NAME/chance`: how likely a task with a partner is with this one."""
        figures: dict[str, float] = {}
        chances = self.chances(pool, num_players, power)
        for (partner, _), chance in zip(pairs(pool, num_players), chances, strict=True):
            name = f"partners/{partner.name}/chance"
            figures[name] = figures.get(name, 0.0) + chance
        return figures

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        recent = {key: [list(result) for result in results] for key, results in self.recent.items()}
        return {"recent": recent, "games": dict(self.games)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "PartnerRecord":
        """Read what `to_json` returned; an empty object is an empty record."""
        recent = {}
        for key, results in content.get("recent", {}).items():
            recent[key] = [(int(step), float(share)) for step, share in results]
        return cls(recent=recent, games=dict(content.get("games", {})))


def _key(name: str, seat: int) -> str:
    return f"{name} {player_name(seat)}"


def _newest(results: Sequence[Result], step: int) -> list[Result]:
    """Leave out what no draw looks at any more, behind the games of a step."""
    first_kept = step + 1 - _NUM_KEPT_STEPS
    older = [result for result in results if result[0] < first_kept]
    newer = [result for result in results if result[0] >= first_kept]
    return older[-RECENT_TASKS:] + newer


def _share(episode: Episode, setups: Mapping[str, Setup[Any]], own_seats: Sequence[str]) -> float:
    """Return a game's score from 0, the least, to 1, the greatest."""
    least, greatest = setups[episode.spec_hash].spec.score_range
    score = score_of(episode, setups, own_seats)
    if greatest <= least:
        return 1.0
    return min(1.0, max(0.0, (score - least) / (greatest - least)))
