#!/usr/bin/env bash
# What a machine with a graphics card should run, in one call of under nine minutes: that every kernel and op is right
# on the card, then how fast operations and training steps are against PyTorch on the same card.
#
#   benchmarks/gpu_check.sh [DEVICE] [TORCH_DEVICE]      default: vulkan:0 and, where PyTorch sees one, cuda
#
# Needs the package's dependencies, the Vulkan extension, compiled kernels (`python kernels_build.py` and
# `python benchmarks/roofs.py`; what they make can be brought) and pytest in the Python that PYTHON names (default:
# python3); PyTorch and matplotlib are optional.
# Results go to the folder RESULTS (default: benchmarks/results): one JSON file per table, correctness.xml, and log.txt
# with what was printed. QUICK=1 takes the smallest sizes. Every part runs, also after one that failed or took too long;
# the exit status is 0 if all went well.
set -uo pipefail
cd "$(dirname "$0")/.."

device=${1:-vulkan:0}
python=${PYTHON:-python3}
results=${RESULTS:-benchmarks/results}
quick=${QUICK:+--quick}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} VK_LOADER_LAYERS_DISABLE=VK_LAYER_KHRONOS_validation
mkdir -p "$results"
exec > >(tee "$results/log.txt") 2>&1

cuda='import torch; print("cuda" if torch.cuda.is_available() else "cpu")'
torch_device=${2:-$("$python" -c "$cuda" 2>/dev/null || echo cpu)}
status=0

part() {  # part SECONDS COMMAND...
    local begin=$SECONDS failed=0
    timeout "$@" || failed=$?
    [ $failed = 0 ] || { status=1; echo "gpu_check: failed with $failed (124: too long): ${*:2:5}"; }
    echo "gpu_check: $((SECONDS - begin)) s of at most $1 s"
}

bench() {  # bench SECONDS NAME ARGUMENTS...
    part "$1" "$python" "benchmarks/bench_$2.py" $quick --device "$device" --torch-device "$torch_device" \
        --out "$results/$2_${device//:/}.json" "${@:3}"
}

part 20 "$python" -m ag devices

# Correctness first: a wrong kernel makes every figure below worthless.
AG_TEST_DEVICE=$device part 150 "$python" -m pytest -q -p no:cacheprovider --junitxml="$results/correctness.xml" \
    -m vulkan tests/table tests/engine/kernels/test_kernel_reference.py tests/engine/kernels/test_edges.py \
    tests/engine/compile/test_fuse_elementwise.py tests/engine/compile/test_copy_elimination.py \
    tests/engine/compile/test_fold_scaling.py tests/engine/test_random.py tests/engine/test_profile.py \
    tests/engine/test_counters.py tests/engine/backends/test_autotune.py tests/engine/backends/test_cooperative.py \
    tests/autograd/test_capture.py tests/ops/test_values.py tests/optim/test_optimizers.py

# What a device with cooperative matrices says to "high" and "medium": nothing, if their kernels are right and faster.
part 30 "$python" - "$device" <<'PROGRAM'
import sys, logging, numpy as np, ag
logging.basicConfig(level=logging.INFO, format="gpu_check: %(message)s", stream=sys.stdout)
ag.ag_device(sys.argv[1])
rng = np.random.default_rng(0)
a, b = rng.standard_normal((2, 512, 512), np.float32)
for precision in ("highest", "high", "medium"):
    with ag.ag_matmul_precision(precision):
        error = abs(ag.ag_matmul(a, b).numpy() - a.astype(float) @ b) / (abs(a) @ abs(b))
    print(f"gpu_check: precision {precision}: largest error {error.max():.1e}")
PROGRAM

bench 20 transfer --rounds 1 --seconds 0.2
bench 170 ops --rounds 1 --seconds 0.2
[ -e "$results/ops_${device//:/}.json" ] && part 10 "$python" benchmarks/roofline.py "$results/ops_${device//:/}.json"
bench 130 step --rounds 1 --seconds 0.7 --workloads W2,W3,W4,W1,W1b --against eager,fused

echo "gpu_check: $SECONDS s in all, status $status"
exit $status
