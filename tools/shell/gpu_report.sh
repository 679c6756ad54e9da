#!/bin/sh
# Check the kernels, stages and the engine on this machine's GPU, then record the ordinary benchmarks where lessons find
# them: data/runs/GPU/*.json and data/traces/GPU/. Under 8 minutes on one H200, without a network. `make gpu-report`.
# The tests need only torch, Triton, transformers, numba and pytest, and use all cores where pytest-xdist is there too.
#
#   PY   the Python to run
set -u
cd -P "$(dirname "$0")/../.."

gpu=$("$PY" -c '
import re, torch
if not torch.cuda.is_available():
    raise SystemExit(f"error: make gpu-report needs an NVIDIA GPU, and torch {torch.__version__} sees none: try make doctor")
print(re.sub("[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-"))') || exit 1
runs="data/runs/$gpu" until=$(($(date +%s) + 470)) failed=
mkdir -p "$runs"

# A command that fails, that has no time left, or that runs longer than `limit` seconds is named at the end; the others run.
limit=470
try() {
    echo "gpu-report: $*" >&2
    left=$((until - $(date +%s)))
    [ "$left" -lt "$limit" ] || left=$limit
    [ "$left" -gt 0 ] && timeout --foreground -k 10 "$left" "$@" || failed="$failed
    $*"
}
roseinfer() { try "$PY" -m roseinfer "$@" --device cuda; }
record() { name=$1; shift; roseinfer "$@" --output "$runs/$name.json"; }
race() { name=$1; shift; record "ladder-$name" ladder --model random:gpt2 --prompt-len 64 "$@"; }

workers=
if "$PY" -c 'import xdist' 2>/dev/null; then workers="-n auto --maxprocesses 8 --dist worksteal"; fi
limit=240
# --confcutdir: the conftest.py of the root runs notebooks, and needs packages of the course. The words of `workers` and
# the files of `find` are arguments each.
# shellcheck disable=SC2046,SC2086
try "$PY" -m pytest -q -m gpu --confcutdir=tests $workers $(find tests -name 'test_*_on_devices.py' | sort)
limit=470
record kernels bench kernels
roseinfer tensorboard --stages s07,engine --model random:gpt2 --no-serve --logdir "data/traces/$gpu"
for dtype in float32 float16 bfloat16; do race "$dtype" --dtype "$dtype"; done
for size in 1 64; do race "bfloat16-batch-$size" --dtype bfloat16 --batch-size "$size"; done
race static-cache --dtype bfloat16 --stages s13 --hf-static
record climb ladder --batch-size 16 --prompt-len 32 --max-new-tokens 64
record offline bench offline --model random:gpt2 --contenders hf,engine --dtype float32,bfloat16
record online bench online --model random:gpt2 --dtype bfloat16 --repeats 1
record host bench host --model random:gpt2 --batch-sizes 1,8,64
record executors bench executors --model random:gpt2 --dtype bfloat16

[ -z "$failed" ] || { echo "gpu-report: failed:$failed" >&2; exit 1; }
