#!/bin/sh
# Make build/peers an environment that holds the engines of tools/shell/peers.txt, once: `make peers`.
# Done before means: it holds a stamp with the checksum of that list.
#
#   PYTHON     the Python that it is made with; empty: python3
#   PIP_ARGS   further arguments of `pip install`
set -eu
cd -P "$(dirname "$0")/../.."

env="build/peers"
stamp="$env/.peers-stamp"
wanted="$PWD $(cksum tools/shell/peers.txt)"

say() { echo "peers: $*" >&2; }
fail() { say "$*"; exit 1; }

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

command -v "${CXX:-c++}" >/dev/null ||
    fail "llama.cpp is compiled here and '${CXX:-c++}' is not installed: on Debian and Ubuntu run 'sudo apt install g++', then this again"
"${PYTHON:-python3}" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "'${PYTHON:-python3}' does not run, or comes without venv: on Debian and Ubuntu run 'sudo apt install python3-venv', then this again"

rm -f "$stamp"
[ -x "$env/bin/python" ] || "${PYTHON:-python3}" -m venv "$env" || { rm -rf "$env"; fail "'python -m venv $env' failed, see above"; }
# Someone who watches gets pip's own progress; a log gets warnings and errors only.
if [ -t 1 ]; then quiet=""; else quiet="-q"; fi
say "compiling llama.cpp for this CPU into $env (about ten minutes on two cores); pip brings cmake where there is none"
# GGML_NATIVE: all instructions that this CPU has. LLAVA_BUILD: images are of no use here.
# PIP_ARGS is a list of arguments, so it is split.
# shellcheck disable=SC2086
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF ${CMAKE_ARGS:-}" \
    nice "$env/bin/python" -m pip install $quiet -r tools/shell/peers.txt ${PIP_ARGS:-} ||
    fail "pip did not finish (its reason is above): run this again"
echo "$wanted" >"$stamp"
say "done: 'roseinfer bench offline' races them"
