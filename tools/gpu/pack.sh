#!/usr/bin/env bash
# Pack the packages that a GPU machine without network access lacks into parts of at most 56 MB.
#
#   there:  python3 tools/gpu/look.py > look.json                    # then copy it here
#   here:   bash tools/gpu/pack.sh look.json outputs/parts           # downloads wheels, writes part-01.tar, ...
#   there:  python3 tools/gpu/pack.py unpack FOLDER part-*.tar       # some or all
#           export PATH=FOLDER/bin:$PATH PYTHONPATH=src:tools:FOLDER SETUP_EXTRA=none
#
#   PACK_PYTHON      Python version there (that of look.json)
#   PACK_MEGABYTES   size of a part (56)
#   PACK_WHEELS      folder for the wheels (OUT/wheels); existing ones are not downloaded again
#
# Kernels that a dense model on Hopper does not need are omitted (LEFT_OUT and ARCHITECTURE in tools/gpu/pack.py). Parts made this
# way, with fewer packages, ran on an H100 machine (2026-11-26). Packages without a wheel are built here, so they must be pure Python.
set -euo pipefail
look=${1:?bash tools/gpu/pack.sh look.json OUT} out=${2:?bash tools/gpu/pack.sh look.json OUT}
look=$(realpath "$look") out=$(realpath -m "$out")
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
wheels=${PACK_WHEELS:-$out/wheels}
mkdir -p "$wheels"
export PYTHONPATH="$PWD/tools${PYTHONPATH:+:$PYTHONPATH}" PATH="$PWD/.venv/bin:$PATH"
version=${PACK_PYTHON:-$(sed -nE 's/^ "python": "([0-9]+\.[0-9]+).*/\1/p' "$look")}
platforms=()
for number in 17 24 26 27 28 31 34 35; do platforms+=(--platform "manylinux_2_${number}_x86_64"); done
for wanted in $(python -m gpu.pack missing "$look"); do
    stem=${wanted%%==*}
    if ! compgen -G "$wheels/${stem//-/_}-${wanted##*==}-*.whl" >/dev/null; then
        python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$version" \
            "${platforms[@]}" --platform manylinux2014_x86_64 --dest "$wheels" "$wanted" 2>/dev/null ||
            DS_BUILD_OPS=0 python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$wanted" ||
            echo "pack: $wanted: found no wheel for Python $version; put one into $wheels" >&2
    fi
done
compgen -G "$wheels/*.whl" >/dev/null || { echo "pack: $look already has all packages of this environment" && exit; }
python -m gpu.pack pack "$out" "${PACK_MEGABYTES:-56}" "$wheels"/*.whl
