"""The sample of a step's tokens that the mismatch check computes again.

The check sums how surprising tokens were (`evidence`). This sum has a mean of 0 only if nothing
about a token decides whether it is counted. So the sample is chosen without looking at the tokens:

- Games are taken as they were drawn, before zero-variance groups are replaced
  (HANABI_RESAMPLE_FLAT) and before rows are sorted by length.
- Games come in the order of their numbers, with a different first game in each step.
- A player's tokens come in the order in which they were sampled, and the sample ends at a fixed
  number of tokens, if need be in the middle of a reply. Only tokens that are already counted decide
  whether, and where, the next game begins.

Games that failed or timed out are missing; `evidence` allows for that.
"""

from collections.abc import Sequence

from hanabi_grpo.training.micro_batch import TokenRow
from hanabi_grpo.types import Episode, is_trained

TOKENS = 3072
"""Number of a player's reply tokens per step, over all processes, that are computed again."""
ALL_TOKENS = 8192
"""Most tokens that one process computes for them, prompts included, except that the first turn is
always taken."""


def check_rows(
    episodes: Sequence[Episode],
    player: int,
    trained_seats: Sequence[str],
    *,
    first: int,
    rank: int,
    world_size: int,
) -> list[TokenRow]:
    """Return the rows of one seat that a process computes again.

    Args:
        episodes: The step's games as they were drawn.
        player: Number of the seat.
        trained_seats: Per seat, the adapter that is trained there, see `seats.SeatAssignment`.
        first: Number of the first game to take.
        rank: Number of the process.
        world_size: How many processes share the games.
    """
    taken = [episode for episode in episodes if is_trained(episode, player, trained_seats)]
    if not taken:
        return []
    start = first % len(taken)
    mine = [*taken[start:], *taken[:start]][rank::world_size]
    rows = _Rows(max(1, TOKENS // world_size))
    for episode in mine:
        for number, turn in enumerate(episode.trajectory(player)):
            rows.begin_turn(turn.prompt_ids, begins_row=turn.fresh or not number)
            rows.add_reply(turn.reply_ids, turn.logprobs)
            if rows.are_full:
                return rows.with_replies()
    return rows.with_replies()


class _Rows:
    """Rows under construction, and how many tokens are left for them."""

    def __init__(self, num_replies: int) -> None:
        self.are_full = False
        self._rows: list[TokenRow] = []
        self._num_replies_left = num_replies
        self._num_tokens_left = ALL_TOKENS
        self._first_prompts: set[tuple[int, ...]] = set()

    def begin_turn(self, prompt_ids: tuple[int, ...], *, begins_row: bool) -> None:
        """Add a prompt; a prompt that several rows begin with counts once."""
        if self.are_full:
            return
        is_known = begins_row and prompt_ids in self._first_prompts
        cost = 0 if is_known else len(prompt_ids)
        is_first = not self._rows
        if cost >= self._num_tokens_left and not is_first:
            self.are_full = True
            return
        if begins_row:
            self._first_prompts.add(prompt_ids)
            self._rows.append(TokenRow(ids=[], mask=[], logprobs=[], advantages=[]))
        self._num_tokens_left -= cost
        self._append(prompt_ids, [0.0] * len(prompt_ids), is_reply=False)

    def add_reply(self, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
        """Add a reply, cut to the tokens that are left."""
        if self.are_full:
            return
        is_first = len(self._rows) == 1 and not any(self._rows[0].mask)
        num = min(len(ids), self._num_replies_left)
        if not is_first:
            num = min(num, self._num_tokens_left)
        self._num_replies_left -= num
        self._num_tokens_left -= num
        self._append(ids[:num], logprobs[:num], is_reply=True)
        self.are_full = num < len(ids) or not self._num_replies_left

    def with_replies(self) -> list[TokenRow]:
        """Return the rows that have a reply token."""
        return [row for row in self._rows if any(row.mask)]

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], *, is_reply: bool) -> None:
        row = self._rows[-1]
        row.ids.extend(ids)
        row.mask.extend([is_reply] * len(ids))
        row.logprobs.extend(logprobs)
        row.advantages.extend([0.0] * len(ids))
