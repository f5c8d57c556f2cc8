"""The process that mirrors a run to W&B; the trainer starts it, see `tracking.mirror`."""

import logging
import sys
from pathlib import Path

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.report import samples
from hanabi_grpo.tracking.senders import mirror_run

if __name__ == "__main__":
    try:
        code = mirror_run(Path(sys.argv[1]), int(sys.argv[2]), samples)
    except HanabiGrpoError as failure:
        logging.getLogger("hanabi_grpo.commands.mirror").error("%s", failure)
        code = 2
    sys.stderr.flush()
    sys.exit(code)
