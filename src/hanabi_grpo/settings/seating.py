"""Who sits in a seat, as one word: in requests, answers and records.

- a script by its name, e.g. "iggi"
- "base": the served model without an adapter
- "player_0@7": an adapter at the version that must be served; any adapter may sit in any seat
- "frozen_0123456789abcdef@50": an adapter that was lent to the server and never changes; the name is a digest of it
"""

import difflib
import re

from hanabi_grpo.envs.hanabi.policies import SCRIPTED
from hanabi_grpo.errors import SettingsError

BASE = "base"
FROZEN_PREFIX = "frozen_"
NOT_HELD = "lend it again"
"""What a server's refusal says when it does not hold, or no longer holds, an adapter that was lent."""
_ADAPTER = re.compile(r"([A-Za-z0-9_]{1,64})@([0-9]{1,12})", re.ASCII)


def seat_adapter(seat: str) -> tuple[str, int] | None:
    """Return adapter and version of a seat's word, None when no adapter sits there.

    Example:
        seat_adapter("player_0@7") == ("player_0", 7); seat_adapter("iggi") is None
    """
    match = _ADAPTER.fullmatch(seat)
    return (match[1], int(match[2])) if match else None


def is_scripted(seat: str) -> bool:
    """Tell whether a script sits there; nothing is sampled for it."""
    return seat in SCRIPTED


def is_frozen(seat: str) -> bool:
    """Tell whether an adapter sits there that is not the session's."""
    return seat.startswith(FROZEN_PREFIX) and seat_adapter(seat) is not None


def check_seat(seat: object) -> str:
    """Return the word of a seat.

    Raises:
        SettingsError: It is none.
    """
    if isinstance(seat, str) and (seat == BASE or is_scripted(seat) or _ADAPTER.fullmatch(seat)):
        return seat
    close = difflib.get_close_matches(str(seat)[:80], (BASE, *SCRIPTED), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingsError(
        f"seat {str(seat)[:80]!r}: allowed are adapter@version (player_0@7), {BASE}, or a script: "
        f"{', '.join(SCRIPTED)}.{hint}"
    )
