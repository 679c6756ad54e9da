#!/bin/sh
# Check the kernels, stages and the engine on this machine's GPU, then record the benchmarks where lessons find them:
# data/runs/GPU/*.json and data/traces/GPU/. Without a network, under 8 minutes on one H200; what matters most comes
# first, and each command has a limit of its own. `make gpu-report`.
# It needs torch, Triton, transformers, numba and pytest, and uses all cores for the tests where pytest-xdist is there.
#
#   PY                   the Python to run
#   GPU_REPORT_SECONDS   for all of it, 470 when not given; what has not begun by then is left out
#   GPU_REPORT_DATA      the folder to write to, data when not given
set -u
cd -P "$(dirname "$0")/../.."

gpu=$("$PY" -c '
import re, torch
if not torch.cuda.is_available():
    raise SystemExit(f"error: make gpu-report needs an NVIDIA GPU, and torch {torch.__version__} sees none: try make doctor")
print(re.sub("[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-"))') || exit 1
runs="${GPU_REPORT_DATA:-data}/runs/$gpu" traces="${GPU_REPORT_DATA:-data}/traces/$gpu"
until=$(($(date +%s) + ${GPU_REPORT_SECONDS:-470})) failed=
mkdir -p "$runs" "$traces"

# try SECONDS COMMAND...: what fails, or has no time left, or runs longer, is named at the end; the others run.
try() {
    limit=$1 left=$((until - $(date +%s)))
    shift
    if [ "$left" -le 0 ]; then
        name_failed "no time left" "$@"
        return
    fi
    [ "$left" -lt "$limit" ] || left=$limit
    echo "gpu-report: $*" >&2
    timeout --foreground -k 10 "$left" "$@"
    case $? in
        0) ;;
        124 | 137) name_failed "longer than $left s" "$@" ;;
        *) name_failed "exit status not 0" "$@" ;;
    esac
}
name_failed() { why=$1; shift; failed="$failed
    $why: $*"; }
roseinfer() { seconds=$1; shift; try "$seconds" "$PY" -m roseinfer "$@" --device cuda; }
record() { seconds=$1 name=$2; shift 2; roseinfer "$seconds" "$@" --output "$runs/$name.json"; }
variants() { try "$1" "$PY" -m tools.gpu_variants --device cuda --model "$3" --output "$runs/$2.json"; }
race() {
    name=$1; shift
    record 90 "ladder-$name" ladder --model random:gpt2 --prompt-len 64 --repeats 2 "$@"
}
# The posts' own command, with their arguments; random:gpt2 has the shape of their model.
post() {
    name=$1; shift
    try 90 "$PY" -m roseinfer.benchmark_scheduler --hf-model-id random:gpt2 --device cuda --prompt Hello \
        --mode online "$@" --output "$runs/$name.json"
}
post_004() {
    name=$1; shift
    post "$name" --num-requests 64 --max-new-tokens 512 --max-batch-size 64 --no-stop-on-eos --no-prefix-cache \
        --pretok --warmup-runs 1 "$@"
}

# 1. Are the answers right?
workers=
if "$PY" -c 'import xdist' 2>/dev/null; then workers="-n auto --maxprocesses 14 --dist worksteal"; fi
# --confcutdir: the conftest.py of the root runs notebooks, and needs packages of the course. The words of `workers` and
# the files of `find` are arguments each.
# shellcheck disable=SC2046,SC2086
try 150 "$PY" -m pytest -q -m gpu --confcutdir=tests $workers $(find tests -name 'test_*_on_devices.py' | sort)

# 2. What decides how the engine's steps are computed.
record 90 step-gpt2 bench step --model random:gpt2 --dtype bfloat16
variants 100 variants random:gpt2
record 60 kernels bench kernels
post_004 post-004-engine --repeat-runs 3 --paged-attn
record 40 executors bench executors --model random:gpt2 --dtype bfloat16
record 40 eager bench eager --model random:gpt2 --dtype bfloat16
record 30 drafts bench drafts --model random:gpt2 --dtype bfloat16
record 60 offline-bfloat16 bench offline --model random:gpt2 --contenders hf,engine --dtype bfloat16
record 80 step-qwen2.5-7b bench step --model random:qwen2.5-7b --dtype bfloat16 --batch-sizes 1,8
variants 100 variants-qwen2.5-7b random:qwen2.5-7b

# 3. Does a kernel touch memory that is not its own?
if command -v compute-sanitizer >/dev/null; then
    roseinfer_small="-m roseinfer bench executors --model random:tiny-llama --dtype bfloat16 --batch-sizes 2 --max-tokens 4 --repeats 1"
    # shellcheck disable=SC2086
    try 90 compute-sanitizer --error-exitcode 1 "$PY" $roseinfer_small --device cuda
else
    echo "gpu-report: no compute-sanitizer on the PATH, so no run checks the kernels' memory accesses" >&2
fi

# 4. What lessons and `make reproduce` show as well, as far as the time goes.
post_004 post-004-s07 --repeat-runs 1 --stage s07
post post-000 --num-requests 16 --max-new-tokens 16 --do-sample --top-k 40 --top-p 0.9 --stage s03
stages=s01,s02,s03,s04,s06,s07,s10,s11,s13,s16,engine
race bfloat16 --dtype bfloat16 --stages "$stages"
record 60 online bench online --model random:gpt2 --dtype bfloat16 --repeats 1
record 40 host bench host --model random:gpt2 --batch-sizes 1,8,64
roseinfer 60 tensorboard --stages s07,engine --model random:gpt2 --no-serve --logdir "$traces"
race bfloat16-batch-64 --dtype bfloat16 --batch-size 64 --stages "$stages"
race static-cache --dtype bfloat16 --stages s13 --hf-static
record 90 ladder-tiny ladder --batch-size 16 --prompt-len 32 --max-new-tokens 64
race float32 --stages "$stages"

# 5. Do the notebooks give the same facts here as where they were recorded?
if "$PY" -c 'import nbval, xdist, nbclient, altair, vl_convert' 2>/dev/null; then
    # As `make test` does, with the cells of a notebook in one process.
    try 150 env OMP_NUM_THREADS=1 "$PY" -m pytest -q --nbval -m "not nightly" -n auto --maxprocesses 14 \
        --dist loadscope notebooks
else
    echo "gpu-report: not the packages of the course (nbval, nbclient, altair, ...), so no notebook is compared" >&2
fi

[ -z "$failed" ] || { echo "gpu-report: not done:$failed" >&2; exit 1; }
