#!/usr/bin/env bash
# Checks this machine's graphics card, in three calls of under nine minutes each, or judges its speed in one of under
# five, `judge`:
#
#   gpu-kit/check.sh kernels|operations|steps|judge [DEVICE [TORCH_DEVICE]]
#
# Needs Python 3.10 to 3.13 (PYTHON, default: python3) and the card's driver. Rows and log go to gpu-kit/results.
set -euo pipefail
kit=$(cd "$(dirname "$0")" && pwd)
export PYTHON=${PYTHON:-python3} RESULTS=${RESULTS:-$kit/results} AG_COMMIT
AG_COMMIT=$(cat "$kit/commit")
site=$("$PYTHON" "$kit/unpack.py")
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
"$PYTHON" -c 'import ctypes; ctypes.CDLL("libvulkan.so.1")' 2>/dev/null ||
    export LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
nvidia=/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json  # where containers have it, and the loader does not look
[ ! -e $nvidia ] || export VK_DRIVER_FILES=${VK_DRIVER_FILES:-$nvidia}
exec bash "$kit/source/benchmarks/gpu_check.sh" "$@"
