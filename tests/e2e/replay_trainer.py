"""A real trainer whose games are those that another run recorded at its first step; no server takes part.

Version 0 of every adapter is the base policy (B is zero), so recorded games of step 0 pass the parity gate of any
run on the same base model. `REPLAY_EPISODES` names the file.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.runs.wire import episode_from_json
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.main import main


def _play(link: ServerLink, deals: Sequence[dict[str, Any]], names: tuple[str, ...], version: int) -> RolloutResult:
    lines = Path(os.environ["REPLAY_EPISODES"]).read_text().splitlines()
    episodes = [episode_from_json(json.loads(line)) for line in lines]
    assert version == 0, "recorded games fit the untrained adapters only"
    return RolloutResult(groups=[[one for one in episodes if one.seed == deal["seed"]] for deal in deals])


def _nothing(*_: Any) -> None:
    return None


if __name__ == "__main__":
    ServerLink.play = _play
    ServerLink.connect = ServerLink.push = ServerLink.copy_log = ServerLink.disconnect = _nothing
    sys.exit(main(sys.argv[1:]))
