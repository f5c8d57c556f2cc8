#!/usr/bin/env bash
# Set up .venv for this machine. Safe to run at any time: if there is nothing to do, it prints one line.
#
#   SETUP_EXTRA=serve|cpu   engine to install; unset: serve (CUDA vLLM) if nvidia-smi lists a GPU, else cpu
#   SETUP_EXTRA=none        install nothing: python and hanabi-grpo on PATH have all packages, e.g. in a container
#   UV_PYTHON=3.12          Python of .venv, 3.11 or 3.12; unset: the one that uv finds
#   UV_FIND_LINKS / PIP_FIND_LINKS   folders with wheels, tried before the public index
set -euo pipefail
case "${1:-}" in
    "") ;;
    -h | --help)
        sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *) echo "set-up: '$1': this script takes no options; set SETUP_EXTRA or UV_PYTHON instead, see -h." >&2 && exit 2 ;;
esac
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The whole output is read first: in a pipe, grep would close it after the first match, and nvidia-smi would fail as if there
# were no GPU.
has_gpu() {
    local listed
    listed=$(nvidia-smi -L 2>/dev/null) && grep -q '^GPU ' <<<"$listed"
}

choose_engine() {
    if [ -n "${SETUP_EXTRA:-}" ]; then
        extra=$SETUP_EXTRA reason="SETUP_EXTRA is set"
        case $extra in
            serve | cpu | none) ;;
            *) echo "set-up: SETUP_EXTRA='$extra': must be serve, cpu or none." >&2 && exit 2 ;;
        esac
    elif ! command -v nvidia-smi >/dev/null; then
        extra=cpu reason="no GPU: nvidia-smi is not installed"
    elif has_gpu; then
        extra=serve reason="nvidia-smi lists a GPU"
    else
        extra=cpu reason="no usable GPU: nvidia-smi lists none"
    fi
}

# A cluster's login node has no GPU, but the environment created there is used on nodes with GPUs.
name_login_node() {
    local submit
    for submit in sbatch qsub bsub; do
        if command -v "$submit" >/dev/null; then
            echo "set-up: $submit is on PATH, so this may be a login node: for nodes with GPUs run SETUP_EXTRA=serve bash tools/setup.sh"
            return 0
        fi
    done
}

# Checked before gigabytes are downloaded. Setting SETUP_EXTRA skips this check.
check_driver() {
    local driver
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed 1q || true)
    if [[ $driver =~ ^[0-9]+ ]] && [ "${BASH_REMATCH[0]}" -lt 580 ]; then
        echo "set-up: NVIDIA driver $driver: the packages are built for CUDA 13, which needs 580 or newer. Update the" \
            "driver. On data center GPUs you can instead install cuda-compat-13-0, put its folder on LD_LIBRARY_PATH in both" \
            "terminals, and run again with SETUP_EXTRA=serve. To use only the CPU: SETUP_EXTRA=cpu." >&2
        exit 2
    fi
}

# torch itself is asked, because the driver's version does not tell whether cuda-compat is installed and found. With SETUP_EXTRA,
# a failure is only reported: the packages may be for another machine.
check_cuda() {
    local answer
    if ! has_gpu; then
        return 0
    fi
    if answer=$(.venv/bin/python -c "import torch; torch.cuda.init()" 2>&1); then
        echo "set-up: torch can use the GPUs"
        return 0
    fi
    echo "set-up: torch is installed but cannot use the GPUs of this machine. It says: $(sed -n '$p' <<<"$answer")" >&2
    echo "set-up: if this is about the driver, update it to 580 or newer. On data center GPUs you can instead install" \
        "cuda-compat-13-0 and put its folder on LD_LIBRARY_PATH in both terminals. Then run this script again." >&2
    [ -n "${SETUP_EXTRA:-}" ]
}

# Reported at once, before uv looks for it on the network. Paths and other names are left to uv.
check_python() {
    if [[ ${UV_PYTHON:-} =~ ^(cpython[-@]?|python)?3\.([0-9]+) ]]; then
        case ${BASH_REMATCH[2]} in
            11 | 12) ;;
            *) echo "set-up: UV_PYTHON='$UV_PYTHON': the packages need Python 3.11 or 3.12; unset it or set UV_PYTHON=3.12." >&2 && exit 2 ;;
        esac
    fi
}

digest() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }

find_uv() {
    # `uv --version` also tells a real uv from a version manager's stub.
    local candidate
    for candidate in uv "$HOME/.local/bin/uv" "$uv_home/bin/uv"; do
        if "$candidate" --version >/dev/null 2>&1; then
            uv=$candidate
            return 0
        fi
    done
    return 1
}

bootstrap_uv() {
    # Into a separate folder: pip allows that even if the system's Python refuses packages (PEP 668).
    local python
    echo "set-up: uv is not installed; installing it with pip into $uv_home"
    for python in python3 python3.11 python3.12; do
        if "$python" -m pip --version >/dev/null 2>&1; then
            "$python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$uv_home" uv && return 0
        fi
    done
    # Some distributions omit pip from python3 but not from its virtual environments.
    python3 -m venv "$uv_home" 2>/dev/null && "$uv_home/bin/pip" install --quiet uv && return 0
    echo "set-up: could not install uv. Install it (https://docs.astral.sh/uv/) and run this script again." >&2
    exit 1
}

find_wheels() {
    # uv reads neither pip's variable nor its configuration; pip separates by spaces, uv by commas.
    links=${UV_FIND_LINKS:-}
    if [ -z "$links" ]; then
        links=${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}
        links=$(echo "$links" | tr -s ' \n\t' ',' | sed 's/^,//; s/,$//')
    fi
}

list_cpu_torch() { # folder -> names of the pinned torch's CPU wheels for this machine
    local version
    version=$(sed -n 's/^ *"torch==\([^"]*\)".*/\1/p' pyproject.toml | sed 1q)
    find "${1#file://}" -maxdepth 1 -name "torch-$version+cpu-*_$(uname -m).whl" 2>/dev/null || true
}

choose_wheels() {
    local folder kept="" found=""
    IFS=',' read -ra folders <<<"$links"
    for folder in ${folders[@]+"${folders[@]}"}; do
        if [ -n "$(list_cpu_torch "$folder")" ] && [ "$extra" = serve ]; then
            # Its torch would be preferred to the CUDA build, because "+cpu" counts as the newer version.
            echo "set-up: skipping $folder: its torch is a CPU build"
            continue
        fi
        found+=$(list_cpu_torch "$folder")
        kept+=${kept:+,}$folder
    done
    links=$kept
    # A requested Python (UV_PYTHON, .python-version) wins; otherwise the one that the wheel is built for.
    python_args=()
    if [ "$extra" = cpu ] && [ "$(uname -s)" = Linux ]; then
        if [ -z "$found" ]; then
            # The public index has CUDA builds only. PyTorch's page of CPU wheels is passed as a list of links, not as an
            # index: an index without upload dates would be empty under `exclude-newer`.
            links+=${links:+,}https://download.pytorch.org/whl/cpu/torch/
        elif [ -z "${UV_PYTHON:-}" ] && [ ! -f .python-version ]; then
            case $found in
                *-cp311-*) python_args=(--python 3.11) ;;
                *-cp312-*) python_args=(--python 3.12) ;;
            esac
        fi
    fi
}

# A link to another checkout's .venv: installing into it would make that checkout run this one's code.
refuse_borrowed_venv() {
    local pointer owner
    [ -L .venv ] || return 0
    for pointer in .venv/lib/python*/site-packages/*hanabi_grpo*.pth; do
        [ -f "$pointer" ] || continue
        owner=$(cat "$pointer")
        owner=${owner%/src}
        if [ -d "$owner/src" ] && [ "$(cd "$owner" && pwd -P)" != "$(pwd -P)" ]; then
            echo "set-up: .venv is a link to the environment of $owner, which would then run the code of this folder. Remove the" \
                "link and run this script again, or keep it: put .venv/bin first on PATH and this folder's src on PYTHONPATH, and" \
                "set SETUP_EXTRA=none." >&2
            exit 2
        fi
    done
}

# With SETUP_EXTRA=none: check that the programs this checkout needs are on PATH.
check_installed() {
    local program
    for program in python hanabi-grpo; do
        if ! command -v "$program" >/dev/null; then
            echo "set-up: SETUP_EXTRA=none, but there is no '$program' on PATH: put the environment that has the packages on" \
                "PATH, or unset SETUP_EXTRA to let this script create one." >&2
            exit 2
        fi
    done
    echo "set-up: installing nothing (SETUP_EXTRA=none); using $(command -v python) and $(command -v hanabi-grpo)"
}

choose_engine
if [ "$extra" = none ]; then
    check_installed
    exit 0
fi
uv_home=${XDG_CACHE_HOME:-$HOME/.cache}/hanabi-grpo/uv
stamp=.venv/.setup-stamp
# The stamp includes the folder: a copied checkout must not keep running the original's code. A symbolic link is not a copy.
wanted=$( (cat pyproject.toml && echo "$extra $(pwd -P)") | digest | cut -d' ' -f1)
if [ "$(cat $stamp 2>/dev/null || true)" = "$wanted" ] && [ -x .venv/bin/python ]; then
    echo "set-up: up to date, engine extra '$extra' ($reason)"
    exit 0
fi

# Two terminals may start at once; the second waits here and finds the work done.
if command -v flock >/dev/null; then
    exec 9<.
    flock 9
    if [ "$(cat $stamp 2>/dev/null || true)" = "$wanted" ]; then
        echo "set-up: up to date, engine extra '$extra' ($reason)"
        exit 0
    fi
fi
refuse_borrowed_venv
echo "set-up: engine extra '$extra' ($reason)"
if [ "$extra" = cpu ] && [ -z "${SETUP_EXTRA:-}" ]; then name_login_node; fi
[ "$extra" = cpu ] || [ -n "${SETUP_EXTRA:-}" ] || check_driver
check_python
find_uv || { bootstrap_uv && find_uv; } || { echo "set-up: uv was installed but does not run: $uv_home" >&2 && exit 1; }
find_wheels
choose_wheels
[ -n "$links" ] && echo "set-up: wheels also from $links"
rm -f "$stamp"
# The lock records where this machine got its wheels, so another engine or folder needs a new lock. pyproject.toml's pins and
# `exclude-newer` keep the versions the same.
rm -f uv.lock
# Bytecode is compiled now: each server is three processes that import the same packages, and some environments never keep
# what Python compiles (on 2 cores a server then plays after 58 s instead of 38 s).
echo "set-up: installing the packages; the last part, compiling their bytecode, takes a minute or more without output"
# uv's line for every package is dropped.
if ! env -u VIRTUAL_ENV UV_COMPILE_BYTECODE=1 UV_FIND_LINKS="$links" "$uv" sync --extra "$extra" \
    ${python_args[@]+"${python_args[@]}"} 9<&- 2> >(grep -v '^ [-+~] ' >&2); then
    echo "set-up: uv could not install the packages (see above). Without network access, put the missing wheels into a" \
        "folder and run again with UV_FIND_LINKS=that/folder. If Python 3.11 or 3.12 is missing, set UV_PYTHON to an installed" \
        "one, or UV_PYTHON_INSTALL_MIRROR to a site to download it from." >&2
    exit 1
fi
if [ "$extra" = cpu ] && [ "$(uname -s)" = Linux ] &&
    ! compgen -G ".venv/lib/python*/site-packages/torch-*+cpu.dist-info" >/dev/null; then
    echo "set-up: torch is a CUDA build, because no folder has a CPU wheel for this Python; its CUDA libraries take gigabytes" \
        "and are not used. To try another Python: rm -rf .venv && UV_PYTHON=3.11 bash tools/setup.sh" >&2
fi
if [ "$extra" = serve ]; then check_cuda; fi
echo "$wanted" >"$stamp"
echo "set-up: done"
