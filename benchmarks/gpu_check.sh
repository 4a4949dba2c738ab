#!/usr/bin/env bash
# What a machine with a graphics card should run, in one call: that every kernel and op is right on the card, then how
# fast training steps are against PyTorch on the same card.
#
#   benchmarks/gpu_check.sh [DEVICE] [TORCH_DEVICE]      default: vulkan:0 and, where PyTorch sees one, cuda
#
# Needs the package's dependencies, kp, the compiled kernels and pytest in the Python that PYTHON names (default:
# python3); PyTorch is optional. Results go to RESULTS (default: benchmarks/results) as JSON, and to standard output.
set -euo pipefail
cd "$(dirname "$0")/.."

device=${1:-vulkan:0}
python=${PYTHON:-python3}
results=${RESULTS:-benchmarks/results}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} VK_LOADER_LAYERS_DISABLE=VK_LAYER_KHRONOS_validation

torch_device=${2:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")' 2>/dev/null || echo cpu)}

"$python" -m ag devices

# Correctness first: a wrong kernel makes every figure below worthless.
AG_TEST_DEVICE=$device timeout 240 "$python" -m pytest -q -p no:cacheprovider -m 'vulkan and not slow' \
    tests/test_cases_forward.py tests/test_cases_gradient.py tests/test_cases_capture.py tests/test_kernel_reference.py \
    tests/test_ops_values.py tests/test_rng.py tests/test_passes.py tests/test_capture.py tests/test_optim.py

mkdir -p "$results"
timeout 240 "$python" benchmarks/run.py --device "$device" --torch-device "$torch_device" \
    --rounds "${ROUNDS:-3}" --seconds "${SECONDS_EACH:-1}" --out "$results/step_${device//:/}.json"
