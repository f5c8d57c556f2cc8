"""The input of the loss: a player's trajectories as token rows, and rows as a micro-batch.

A micro-batch holds trajectories of one player only, so one adapter computes all of it. The factors
of a token in the objective (advantage, loss weight, entropy bonus, game weight) are separate
columns until `loss.PolicyLoss` combines them.

A row may also end with a teacher's reply instead of the player's, see `lessons`, or with the right
answer to a question about hidden cards, see `belief_labels`. Such tokens do not count as reply
tokens: they were not sampled, so they have no sampler logprobs and no advantage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from hanabi_grpo.training.model.prefix_tree import PrefixTree, prefix_tree
from hanabi_grpo.types import Turn

NO_GAME = -1
"""Game number of a row that carries no loss."""
PADDING_ROW_TOKENS = 2
"""Length of the row that stands for an empty share: the shortest row that predicts a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One trajectory of one player as aligned columns, all of the same length."""

    ids: list[int]
    """Token ids, prompts and replies in the order in which the sampler saw them."""
    mask: list[bool]
    """True on reply tokens."""
    logprobs: list[float]
    """The sampler's logprobs in nats on reply tokens, 0 elsewhere."""
    advantages: list[float]
    """The advantage of a reply token, usually that of its turn; 0 elsewhere."""
    weights: list[float] | None = None
    """The reply token's weight in the loss (HANABI_LOSS_UNIT), 0 elsewhere; None: 1 for all."""
    trained: list[bool] | None = None
    """True on reply tokens that carry loss (HANABI_TRAIN_THOUGHTS); None: on all of `mask`."""
    steps: list[int] | None = None
    """The step of the game of each reply token, 0 elsewhere; None: not needed."""
    teacher_gaps: list[float] | None = None
    """The teacher's logprob of a reply token minus the player's, centered, see
    `lessons.teacher_gaps`; 0 elsewhere; None: no model teaches."""
    lesson: list[float] | None = None
    """The weight of a teacher's token in the cross-entropy, 0 elsewhere; None: the row has no
    teacher's tokens."""
    lesson_chance: float = 1.0
    """Probability of the teacher's reply in this row, among the teacher's replies for the turn."""
    belief: list[bool] | None = None
    """True on tokens of the right answer to a question, see `belief_labels`; None: there are none.
    """
    game: int = NO_GAME
    """Number of the game in the step, the same for all its players and on every rank."""

    @classmethod
    def unsampled(
        cls,
        prompt: Sequence[int],
        said: Sequence[int],
        *,
        game: int,
        has_weights: bool,
        trains_all: bool,
        with_steps: bool,
        with_teacher: bool = False,
        lesson: list[float] | None = None,
        lesson_chance: float = 1.0,
        belief: list[bool] | None = None,
    ) -> Self:
        """Return a row that ends with tokens that were not sampled.

        All rows of a micro-batch must have the same columns, so the arguments `has_weights` to
        `with_teacher` are those of the rows of replies.

        Args:
            prompt: Ids before these tokens.
            said: Ids of these tokens.
            game: Number of the game in the step.
            has_weights: Whether rows have weights.
            trains_all: Whether all tokens of a reply carry loss.
            with_steps: Whether rows record the step of the game of each reply token.
            with_teacher: Whether rows have the column of a model that teaches.
            lesson: See the column.
            lesson_chance: See the column.
            belief: See the column.
        """
        num_tokens = len(prompt) + len(said)
        return cls(
            ids=[*prompt, *said],
            mask=[False] * num_tokens,
            logprobs=[0.0] * num_tokens,
            advantages=[0.0] * num_tokens,
            weights=[] if has_weights else None,
            trained=None if trains_all else [],
            steps=[] if with_steps else None,
            teacher_gaps=[] if with_teacher else None,
            lesson=lesson,
            lesson_chance=lesson_chance,
            belief=belief,
            game=game,
        )

    @property
    def num_computed(self) -> int:
        """Number of tokens before the last predicted one; later tokens need not be computed.

        The row must have a token of a reply, of a teacher, or of an answer.
        """
        predicted: Sequence[float] = self.mask if self.lesson is None else self.lesson
        if self.belief is not None:
            predicted = self.belief
        return int(np.flatnonzero(predicted)[-1])

    @property
    def num_trained(self) -> int:
        """Number of tokens that carry loss."""
        return sum(self.mask if self.trained is None else self.trained)

    def append(
        self,
        turn: Turn,
        trained: Sequence[bool] | None = None,
        advantages: Sequence[float] | None = None,
        weight: float = 0.0,
        gaps: Sequence[float] | None = None,
    ) -> None:
        """Add a turn's prompt and reply.

        Args:
            turn: The turn.
            trained: Which tokens of the reply carry loss; None: all.
            advantages: The advantage of each token of the reply; None: 0 for all.
            weight: The weight of each token of the reply in the loss.
            gaps: The teacher's gap of each token of the reply, if a model teaches; None: 0 for all.
        """
        num_prompt = len(turn.prompt_ids)
        num_reply = len(turn.reply_ids)
        self.ids.extend((*turn.prompt_ids, *turn.reply_ids))
        self.mask.extend([False] * num_prompt + [True] * num_reply)
        self.logprobs.extend([0.0] * num_prompt + [*turn.logprobs])
        self.advantages.extend([0.0] * num_prompt)
        self.advantages.extend([0.0] * num_reply if advantages is None else advantages)
        if self.weights is not None:
            self.weights.extend([0.0] * num_prompt + [weight] * num_reply)
        if self.teacher_gaps is not None:
            self.teacher_gaps.extend([0.0] * num_prompt)
            self.teacher_gaps.extend([0.0] * num_reply if gaps is None else gaps)
        if self.steps is not None:
            self.steps.extend([0] * num_prompt + [turn.step] * num_reply)
        if self.trained is not None:
            self.trained.extend([False] * num_prompt)
            self.trained.extend([True] * num_reply if trained is None else trained)


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """Rows of one player, padded on the right to the longest.

    Columns marked [rows, tokens - 1] hold at position t the value of the token at t + 1, because
    the first token of a sequence is never predicted.
    """

    player: str
    """The player whose trajectories these are, e.g. "player_0"."""
    ids: torch.Tensor
    """[rows, tokens] int64 token ids."""
    lengths: torch.Tensor
    """[rows] length of each row without padding."""
    reply_mask: torch.Tensor
    """[rows, tokens - 1] bool, True if the next token belongs to a reply."""
    sampler_logprobs: torch.Tensor
    """[rows, tokens - 1] the sampler's logprobs of the replies, in nats; 0 elsewhere."""
    advantages: torch.Tensor
    """[rows, tokens - 1] advantage of the token's turn; 0 elsewhere."""
    num_reply_tokens: int
    """Number of the player's reply tokens that carry loss in the whole step, or in this part of it,
    over all micro-batches and processes."""
    games: tuple[int, ...]
    """Per row, the number of its game, see `TokenRow`."""
    part: int = 0
    """The part of the step's games that the rows belong to, see `minibatches`."""
    tree: PrefixTree | None = None
    """The rows as a tree in which shared prefixes are computed once; None: separate rows."""
    weight: float = 0.0
    """Weight of the largest rank's part in tokens, see `batching.Share`."""
    loss_mask: torch.Tensor | None = None
    """[rows, tokens - 1] bool, True if the next token carries loss; None: same as `reply_mask`."""
    loss_weights: torch.Tensor | None = None
    """[rows, tokens - 1] weights of HANABI_LOSS_UNIT; None: 1 for every token."""
    entropy_bonus: torch.Tensor | None = None
    """[rows, tokens - 1] term of HANABI_ENTROPY_BONUS, see `loss.entropy_terms`; None: no bonus."""
    steps: torch.Tensor | None = None
    """[rows, tokens - 1] int64 step of the game of each reply token (HANABI_SEQUENTIAL_FACTOR)."""
    game_weights: torch.Tensor | None = None
    """[rows, 1], or with `steps` [rows, tokens - 1], weights of HANABI_UPDATE=sequential, see
    `updates`; None: 1."""
    old_logprobs: torch.Tensor | None = None
    """[rows, tokens - 1] logprobs under the policy before the step's first update. The first pass
    over the micro-batch fills it in, or `TrainingRun.check_logprobs` if other parts of the step are
    trained on first, or an earlier version sampled the games."""
    reference_logprobs: torch.Tensor | None = None
    """[rows, tokens - 1] logprobs under the reference policy; only with BETA in the loss."""
    kl_weight: float | None = None
    """The player's weight of the KL term (HANABI_KL_TARGET); None: BETA."""
    lesson_weights: torch.Tensor | None = None
    """[rows, tokens - 1] weight of a teacher's tokens in the cross-entropy, above 0 on these tokens
    and 0 elsewhere; None: no row of this rank has any."""
    lesson_chances: torch.Tensor | None = None
    """[rows, 1] probability of the teacher's reply in each row, among its replies for the turn, a
    factor of `lesson_weights`; None: no teacher of this rank's rows samples."""
    num_lesson_tokens: float = 0
    """Number of the teacher's tokens for the player in the whole step, or in this part of it, over
    all micro-batches and processes; the expected number if the teacher samples its replies."""
    teacher_weight: float = 0.0
    """Weight of the teacher's term in this step (HANABI_TEACHER_WEIGHT)."""
    teacher_gaps: torch.Tensor | None = None
    """[rows, tokens - 1] the teacher's logprob of a reply token minus the player's, centered, in
    nats, see `lessons.teacher_gaps`; None: no model teaches."""
    reward_weight: float = 1.0
    """Weight of the advantages (HANABI_REWARD_WEIGHT)."""
    belief_mask: torch.Tensor | None = None
    """[rows, tokens - 1] bool, True on tokens of right answers, see `belief_labels`; None: no row
    of this rank has any."""
    num_belief_tokens: int = 0
    """Number of the player's tokens of right answers in the whole step, or in this part of it, over
    all micro-batches and processes."""
    belief_weight: float = 0.0
    """Weight of the answers' cross-entropy (HANABI_BELIEF_WEIGHT)."""

    @property
    def predicted_mask(self) -> torch.Tensor:
        """[rows, tokens - 1] bool, True if the logprob of the next token is computed."""
        predicted = self.reply_mask
        if self.lesson_weights is not None:
            predicted = predicted | (self.lesson_weights > 0)
        if self.belief_mask is not None:
            predicted = predicted | self.belief_mask
        return predicted

    @property
    def trained_mask(self) -> torch.Tensor:
        """[rows, tokens - 1] bool, True if the next token carries loss."""
        return self.reply_mask if self.loss_mask is None else self.loss_mask

    @property
    def has_data(self) -> bool:
        """Whether the player has a token in the loss on any rank."""
        return max(self.num_reply_tokens, self.num_lesson_tokens, self.num_belief_tokens) > 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all rows without padding, prompts included."""
        return int(self.lengths.sum())

    @property
    def num_computed_tokens(self) -> int:
        """Number of tokens in a forward pass: padding counts, and shared prefixes count once."""
        return self.ids.numel() if self.tree is None else self.tree.ids.numel()


def collate(
    rows: Sequence[TokenRow],
    player: str,
    num_reply_tokens: int,
    pad_id: int,
    device: torch.device,
    shares_prefixes: bool = False,
    part: int = 0,
) -> MicroBatch:
    """Return a player's rows as one micro-batch.

    Args:
        rows: Trajectories of one player. Without rows, the micro-batch has a single row without
            loss, so that this rank still takes part in the collective operations.
        player: Its name.
        num_reply_tokens: Number of the player's reply tokens in the whole step, or in one part of
            it, over all ranks. The loss is divided by it, so neither the split into micro-batches
            nor another player's data changes the player's gradient.
        pad_id: Token id of the padding.
        device: Where the tensors go.
        shares_prefixes: Whether to build the tree of shared prefixes.
        part: The part of the step's games that the rows belong to.
    """
    rows = rows or [_padding_row(pad_id)]
    width = max(len(row.ids) for row in rows)

    def column(
        values: Iterable[Sequence[float]], fill: float, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        padded = []
        for row in values:
            padding = [fill] * (width - len(row))
            padded.append([*row, *padding])
        return torch.tensor(padded, dtype=dtype, device=device)

    ids = column((row.ids for row in rows), pad_id, torch.long)
    # The first token of a row is never predicted.
    reply_mask = column((row.mask for row in rows), False, torch.bool)[:, 1:]
    sampler_logprobs = column((row.logprobs for row in rows), 0.0)[:, 1:]
    advantages = column((row.advantages for row in rows), 0.0)[:, 1:]
    loss_mask = None
    if rows[0].trained is not None:
        loss_mask = column((row.trained or [] for row in rows), False, torch.bool)[:, 1:]
    loss_weights = None
    if rows[0].weights is not None:
        loss_weights = column((row.weights or [] for row in rows), 0.0)[:, 1:]
    steps = None
    if rows[0].steps is not None:
        steps = column((row.steps or [] for row in rows), 0, torch.long)[:, 1:]
    teacher_gaps = None
    if rows[0].teacher_gaps is not None:
        teacher_gaps = column((row.teacher_gaps or [] for row in rows), 0.0)[:, 1:]
    lesson_weights = None
    if any(row.lesson is not None for row in rows):
        lesson_weights = column((row.lesson or [] for row in rows), 0.0)[:, 1:]
    lesson_chances = None
    if any(row.lesson_chance != 1 for row in rows):
        lesson_chances = torch.tensor([[row.lesson_chance] for row in rows], device=device)
    belief_mask = None
    if any(row.belief is not None for row in rows):
        belief_mask = column((row.belief or [] for row in rows), False, torch.bool)[:, 1:]
    batch = MicroBatch(
        player=player,
        ids=ids,
        lengths=torch.tensor([len(row.ids) for row in rows], device=device),
        reply_mask=reply_mask,
        sampler_logprobs=sampler_logprobs,
        advantages=advantages,
        num_reply_tokens=num_reply_tokens,
        games=tuple(row.game for row in rows),
        part=part,
        loss_mask=loss_mask,
        loss_weights=loss_weights,
        steps=steps,
        teacher_gaps=teacher_gaps,
        lesson_weights=lesson_weights,
        lesson_chances=lesson_chances,
        belief_mask=belief_mask,
    )
    if shares_prefixes:
        batch.tree = prefix_tree(ids, batch.predicted_mask)
    return batch


def useful_share(batches: Sequence[MicroBatch]) -> float:
    """Return the number of trajectory tokens divided by the number of computed tokens.

    Padding decreases it, and prefixes that are computed once for several rows increase it.
    """
    num_computed = sum(batch.num_computed_tokens for batch in batches)
    num_useful = sum(batch.num_tokens for batch in batches)
    return num_useful / max(num_computed, 1)


def _padding_row(pad_id: int) -> TokenRow:
    return TokenRow(
        ids=[pad_id] * PADDING_ROW_TOKENS,
        mask=[False] * PADDING_ROW_TOKENS,
        logprobs=[0.0] * PADDING_ROW_TOKENS,
        advantages=[0.0] * PADDING_ROW_TOKENS,
    )
