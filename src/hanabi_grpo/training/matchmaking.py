"""HANABI_PARTNER_DRAW=worst: partners with whom the run scores worst are drawn more often.

Prioritized fictitious self-play (Vinyals et al., "Grandmaster level in StarCraft II", Nature 575,
2019) draws an opponent with a probability proportional to (1 - win rate)^p. Here the win rate is
replaced by the mean score with the partner in a seat, from 0 (lowest) to 1 (greatest possible score
of the game), over the last `RECENT_TASKS` tasks with it. A new partner counts as 0, so that it is
drawn soon. Differences: the weights of HANABI_PARTNERS multiply the probabilities, partner and seat
are drawn as a pair, and the scores are those of the run's own training games.

A step's draws use only games of earlier steps. With HANABI_OVERLAP=K they ignore the last K of
those, because a step's games are requested K steps ahead. So a resumed run draws the same partners
as an uninterrupted one.
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
"""Number of most recent tasks with a partner in a seat whose mean score counts."""
_NUM_KEPT_STEPS = MAX_OVERLAP + 1
"""Number of newest steps of which all results are kept, because draws with HANABI_OVERLAP ignore
the newest steps."""

Result = tuple[int, float]
"""Step of a task's games, and their mean score from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerRecord:
    """A run's record of its games with partners.

    Example:
        PartnerRecord(recent={"iggi player_1": ((7, 0.25), (8, 0.5))}, games={"iggi": 16})
    """

    recent: Mapping[str, Sequence[Result]] = field(default_factory=dict)
    """The newest results by partner and seat, oldest first."""
    games: Mapping[str, int] = field(default_factory=dict)
    """Number of games since the start, by partner as HANABI_PARTNERS names it."""

    def with_games(
        self,
        groups: Sequence[Sequence[Episode]],
        setups: Mapping[str, Setup[Any]],
        *,
        step: int,
        own_seats: Sequence[str],
        names: Mapping[str, str],
        specs: Mapping[str, str],
        further: Sequence[Sequence[Episode]] = (),
    ) -> "PartnerRecord":
        """Return the record including a step's games.

        Args:
            groups: Per task of the step, its games.
            setups: The environments that are played, by the hash of their rules.
            step: Number of steps before this one.
            own_seats: Per seat, the run's own adapter, e.g. "player_0@7".
            names: The name of each partner by its seat reference.
            specs: The partner as HANABI_PARTNERS names it, by the partner's name.
            further: The games of tasks that replaced others. They count as games with their
                partners, but not as results: they were played because others had been flat.
        """
        recent = {key: list(results) for key, results in self.recent.items()}
        games = dict(self.games)
        for number, group in enumerate([*groups, *further]):
            if not group:
                continue
            scores = [_share(episode, setups, own_seats) for episode in group]
            for seat, reference in enumerate(group[0].seats):
                name = names.get(reference)
                if name is None or is_trained(group[0], seat, own_seats):
                    continue
                if number < len(groups):
                    recent.setdefault(_key(name, seat), []).append((step, fmean(scores)))
                spec = specs.get(name, name)
                games[spec] = games.get(spec, 0) + len(group)
        kept = {key: _newest(results, step) for key, results in recent.items()}
        return PartnerRecord(recent=kept, games=games)

    def before(self, step: int) -> "PartnerRecord":
        """Return the record that the draws of a step may use: `RECENT_TASKS` of earlier steps."""
        recent = {}
        for key, results in self.recent.items():
            recent[key] = [result for result in results if result[0] < step][-RECENT_TASKS:]
        return PartnerRecord(recent=recent, games=self.games)

    def chances(self, pool: Sequence[Partner], num_players: int, power: float) -> list[float]:
        """Return the probability of each pair of partner and seat, see `settings.partners.pairs`.

        The probabilities sum to 1. If the score with every partner is perfect, or the power is 0,
        they depend only on the weights.

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
        """Return `partners/NAME/chance`: the share of tasks with a partner that have this one."""
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
    """Drop the results that no draw after a step will use."""
    first_kept = step + 1 - _NUM_KEPT_STEPS
    older = [result for result in results if result[0] < first_kept]
    newer = [result for result in results if result[0] >= first_kept]
    return older[-RECENT_TASKS:] + newer


def _share(episode: Episode, setups: Mapping[str, Setup[Any]], own_seats: Sequence[str]) -> float:
    """Return a game's score, scaled from 0 (lowest) to 1 (greatest)."""
    least, greatest = setups[episode.spec_hash].spec.score_range
    score = score_of(episode, setups, own_seats)
    if greatest <= least:
        return 1.0
    return min(1.0, max(0.0, (score - least) / (greatest - least)))
