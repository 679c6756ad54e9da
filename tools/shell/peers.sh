#!/bin/sh
# Make build/peers an environment that holds the engines of tools/shell/peers.txt and llama.cpp's server, once:
# `make peers`. Done before means: it holds a stamp with the checksum of that list and of this script.
#
#   PYTHON     the Python that it is made with; empty: python3
#   PIP_ARGS   further arguments of pip
set -eu
cd -P "$(dirname "$0")/../.."

env="build/peers"
stamp="$env/.peers-stamp"
wanted="$PWD $(cat tools/shell/peers.txt tools/shell/peers.sh | cksum)"

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

# llama.cpp's server is not part of the wheel, but its source comes with that of llama-cpp-python.
say "compiling llama.cpp's server (about five minutes on two cores)"
source="$env/llama-server"
rm -rf "$source"
mkdir -p "$source/build"
llama=$(sed -n 's/^\(llama-cpp-python==[^ ]*\).*/\1/p' tools/shell/peers.txt)
# shellcheck disable=SC2086
"$env/bin/python" -m pip download $quiet --no-deps --no-binary llama-cpp-python -d "$source" "$llama" ${PIP_ARGS:-} ||
    fail "pip did not finish (its reason is above): run this again"
tar -xzf "$source"/llama_cpp_python-*.tar.gz -C "$source" --strip-components 1
command -v cmake >/dev/null || "$env/bin/python" -m pip install $quiet cmake ${PIP_ARGS:-} ||
    fail "pip did not finish (its reason is above): run this again"
# Without the pages for a browser, whose parts the build would fetch, and without TLS and CURL.
PATH="$PWD/$env/bin:$PATH" && export PATH
{
    nice cmake -S "$source/vendor/llama.cpp" -B "$source/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF &&
        nice cmake --build "$source/build" --target llama-server --parallel "$(getconf _NPROCESSORS_ONLN)"
} >"$source/log" 2>&1 || fail "llama.cpp's server was not compiled, and $source/log says why: run this again"
cp "$source/build/bin/llama-server" "$env/bin/llama-server"
rm -rf "$source"
echo "$wanted" >"$stamp"
say "done: 'roseinfer bench offline' races them, and 'roseinfer bench serve --contenders engine,llama-server' the servers"
