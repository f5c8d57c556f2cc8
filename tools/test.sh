#!/usr/bin/env bash
# Lint, types and tests. Options go to pytest: bash tools/test.sh -k settings
#
# Two processes: one begins with the tests that start engines, in turn, the other with those of trainers alone; they share
# the rest. One for all: bash tools/test.sh -n 0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh

ruff check
ruff format --check
mypy
# Last, and not through a pipe: its summary is the last line, its exit status this script's.
# A test process that dies fails the run at once: xdist starts another, loses the rest of its file and waits for it for ever.
exec pytest -n 2 --max-worker-restart 0 "$@"
