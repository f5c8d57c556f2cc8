#!/usr/bin/env bash
# Test the real CUDA packages on a machine without a GPU: a nightly test, not part of CI. The exit code tells whether it passed.
#
#   bash tools/gpu/stubs.sh [FOLDER]     # outputs/cuda-env
#
# Copies this checkout to FOLDER/checkout and installs the packages for GPUs there, as tools/setup.sh does on a node with GPUs:
# 10 GB, and half a minute to ten minutes of download and installation the first time. This checkout's environment is unchanged.
# Then stub libraries (tools/gpu/stubs/) replace the driver and NVML. tools/gpu/cuda_packages.py imports what an engine imports on
# a GPU, and compares the configurations for 1, 2, 4 and 8 GPUs and MIG slices with the expected ones.
# Needs gcc, git and the package index.
set -euo pipefail
case "${1:-}" in
-h | --help)
    sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
-*) echo "stubs: '$1': must be a folder, or nothing for outputs/cuda-env." >&2 && exit 2 ;;
esac
folder=${1:-$(dirname "${BASH_SOURCE[0]}")/../../outputs/cuda-env}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
copy=$folder/checkout stubs=$folder/stubs

# Files deleted here are deleted there; the environment stays.
mkdir -p "$copy" "$stubs"
find "$copy" -mindepth 1 -maxdepth 1 ! -name .venv ! -name uv.lock -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -cf - | tar -xf - -C "$copy"

SECONDS=0
(cd "$copy" && SETUP_EXTRA=serve bash tools/setup.sh)
echo "stubs: set-up took $SECONDS s"

for pair in cuda:libcuda.so.1 nvml:libnvidia-ml.so.1; do
    gcc -Wall -Wextra -Werror -shared -fPIC -o "$stubs/${pair#*:}" "tools/gpu/stubs/${pair%%:*}.c"
done

SECONDS=0 status=0
cd "$copy"
env -u VIRTUAL_ENV LD_LIBRARY_PATH="$stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONPATH="$copy/tools" \
    .venv/bin/python -m gpu.cuda_packages "$folder/model" || status=$?
echo "stubs: the checks took $SECONDS s, exit code $status"
exit "$status"
