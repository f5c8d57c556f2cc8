"""The process that mirrors a run to W&B; the trainer starts it, see `tracking.mirror`."""

import logging
import sys

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.report import samples
from hanabi_grpo.tracking import sidecar

if __name__ == "__main__":
    try:
        code = sidecar.main(sys.argv[1:], samples)
    except HanabiGrpoError as failure:
        logging.getLogger("hanabi_grpo.tracking.sidecar").error("%s", failure)
        code = 2
    sys.stderr.flush()
    sys.exit(code)
