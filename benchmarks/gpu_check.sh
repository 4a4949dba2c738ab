#!/usr/bin/env bash
# What a machine with a graphics card should run, in three calls of under nine minutes each: are the kernels right, how
# fast are single operations, how fast are training steps, against PyTorch on the same card where it is installed. Or in
# one of under five minutes, `judge`: what is far from its goal, and steps in float32 and bfloat16.
#
#   benchmarks/gpu_check.sh kernels|operations|steps|judge [DEVICE [TORCH_DEVICE]]
#
# DEVICE is the first card if none is named; without a card this ends at once with status 3 and the Vulkan loader's own
# words. `make gpu-kit` packs all that a machine without network, compiler and git needs, and calls this. Python is what
# PYTHON names (default: python3); PyTorch is optional. Every row is written as soon as it is known, to the folder
# RESULTS/DEVICE (default of RESULTS: benchmarks/results): NAME.jsonl, and log.txt with what was printed. Each call ends
# with the verdict on all rows so far (verdict.py). QUICK=1 takes the smallest sizes. The status is 0 if all went well.
set -uo pipefail
cd "$(dirname "$0")/.."

call=${1:-}
case $call in kernels | operations | steps | judge) ;; *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
python=${PYTHON:-python3}
results=${RESULTS:-benchmarks/results}
quick=${QUICK:+--quick}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export VK_LOADER_LAYERS_DISABLE=${VK_LOADER_LAYERS_DISABLE-VK_LAYER_KHRONOS_validation}
device=$("$python" - "${2:-gpu}" <<'PROGRAM'
import sys, ag
try:
    ag.ag_device(sys.argv[1])
    print(ag.ag_default_device())
except ag.AgError as error:
    sys.exit(f"gpu_check: {error}")
PROGRAM
)
if [ -z "$device" ]; then
    echo "gpu_check: there is nothing to check; the loader says:"
    VK_LOADER_DEBUG=error,warn,driver "$python" -m ag devices
    exit 3
fi
cuda='import torch; print("cuda" if torch.cuda.is_available() else "cpu")'
torch_device=${3:-$("$python" -c "$cuda" 2>/dev/null || echo cpu)}
status=0
results=$results/${device//:/}  # rows of two devices are no table
mkdir -p "$results"
exec > >(tee -a "$results/log.txt") 2>&1
echo "gpu_check: $call on $device, $(date -u +%FT%TZ)"

part() {  # part SECONDS COMMAND...
    local begin=$SECONDS failed=0
    timeout -s INT -k 10 "$@" || failed=$?
    [ $failed = 0 ] || { status=1; echo "gpu_check: failed with $failed (124: too long): ${*:2:5}"; }
    echo "gpu_check: $((SECONDS - begin)) s of at most $1 s"
}

bench() {  # bench SECONDS NAME ARGUMENTS...
    part "$1" "$python" "benchmarks/bench_$2.py" $quick --device "$device" --torch-device "$torch_device" \
        --rounds 1 --out "$results/$2.json" "${@:3}"
}

tests() {  # tests SECONDS FILE...; a row per test, by rows.py
    rm -f "$results/kernels.jsonl"
    AG_TEST_DEVICE=$device AG_TEST_ROWS=$results/kernels.jsonl PYTHONPATH=benchmarks:$PYTHONPATH part "$1" "$python" \
        -m pytest -q --maxfail=30 -p no:cacheprovider -p rows -m "vulkan and not slow" "${@:2}"
}

if [ "$call" = kernels ]; then  # a wrong kernel makes every figure worthless
    part 40 "$python" -m ag devices
    if [ -n "$quick" ]; then
        tests 120 tests/ops/test_values.py tests/capture/test_capture.py
    else
        tests 420 tests/table tests/engine/kernels/test_kernel_reference.py tests/engine/kernels/test_edges.py \
            tests/engine/kernels/test_attention.py tests/engine/kernels/test_epilogue.py \
            tests/engine/compile/test_fuse_elementwise.py tests/engine/compile/test_copy_elimination.py \
            tests/engine/compile/test_fold_scaling.py tests/engine/test_random.py tests/tools/test_profile.py \
            tests/engine/test_counters.py tests/engine/backends/test_autotune.py \
            tests/engine/backends/test_cooperative.py tests/capture/test_capture.py tests/ops/test_values.py \
            tests/optim/test_optimizers.py
    fi
elif [ "$call" = operations ]; then
    bench 60 transfer --seconds 0.2
    bench 420 ops --seconds 0.2
elif [ "$call" = judge ]; then
    best=fused
    [ "${torch_device#cuda}" = "$torch_device" ] || best=fused,graph
    bench 150 ops --sizes judged --seconds 0.1
    bench 110 step --seconds 0.3 --workloads W3,W4 --variants captured --against $best
else
    bench 480 step --seconds 0.7 --workloads W2,W3,W4,W1,W1b --against eager,fused
fi
part 20 "$python" benchmarks/verdict.py "$results"

echo "gpu_check: $SECONDS s in all, status $status"
exit $status
