#!/usr/bin/env bash
# Runs legs of the tests (arguments: lint quick sync slow sync_full mutants long) in .venv and prints their results and times
# last, with how slow the machine was (tests/helpers/probe.py). Every leg runs, also after one that failed. Called by make
# after tools/setup.sh; PYTEST_ARGS holds more arguments for pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/vulkan.sh

folder=$PWD/.make/test
not_run=77  # a leg's status when a piece is missing; setup.sh has said which

have_vulkan() {
    [ -n "$(test_drivers)" ] && [ -e ag/engine/backends/shader/spv/manifest.json ] && .venv/bin/python -c 'import ag.engine.backends.vulkan._kp' 2>/dev/null
}

# The drivers behind vulkan:0 and vulkan:1: tests fail where AG_TEST_ICDS names one that does not work, and skip the
# Vulkan part without it.
if have_vulkan; then
    AG_TEST_ICDS=$(test_drivers)
    export AG_TEST_ICDS VK_ICD_FILENAMES=$AG_TEST_ICDS
fi
if [ -e .make/newer-mesa ]; then export AG_TEST_NEWER_MESA=1; fi  # tests of it fail, then, where it is not there
export VK_LOADER_LAYERS_DISABLE=VK_LAYER_KHRONOS_validation  # costs ten times a recording; only `validated` wants it
unset PYTHONDONTWRITEBYTECODE  # as on most machines: tests start hundreds of processes, and each would compile ag anew

say() { printf 'ag: %s\n' "$*"; }

# One worker per core, which takes tests from one that has more left. Threads of a driver or of a product would wait in
# turns for the cores that the other workers use.
workers=$(nproc)
[ "$workers" -le 8 ] || workers=8  # each opens both drivers
export LP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

run_pytest() {  # run_pytest LEG ARGUMENTS...
    local more status=0
    read -ra more <<<"${PYTEST_ARGS:-}"
    more=(-o "cache_dir=$folder/cache.$1" --timeout=$((hang_s * slow)) "${more[@]}")
    .venv/bin/python -m pytest -q -n "${processes:-$workers}" --dist worksteal --junitxml="$folder/$1.xml" "${@:2}" "${more[@]}" ||
        status=$?
    [ $status != 5 ] || status=0  # no test has been selected
    if [ $status = 1 ] && [[ $(grep -c :: "$folder/cache.$1/v/cache/lastfailed") = [12] ]]; then
        # A machine that is kept busy for a second fails one test of 30,000 now and then. The summary names it.
        say "$1: running again what failed"
        status=0
        .venv/bin/python -m pytest -q --junitxml="$folder/$1.again.xml" --last-failed "${@:2}" "${more[@]}" -n 0 ||
            status=$?
    fi
    return $status
}

leg_lint() {
    local status=0
    .venv/bin/ruff check --output-format concise . || status=1
    .venv/bin/mypy --strict ag tests/test_types.py || status=1
    return $status
}

leg_quick() { hang_s=300 run_pytest quick -m 'not slow'; }

# Tests of ranks and of other programs wait for a tenth of the time, so one worker more.
leg_slow() { processes=$((workers + 1)) hang_s=1500 run_pytest slow -m 'slow and not long'; }

leg_long() { hang_s=3000 run_pytest long -m long; }

leg_mutants() {
    local words
    have_vulkan || return $not_run  # mutants of kernels are killed on lavapipe
    read -ra words <<<"${MUTANTS:-}"
    .venv/bin/python tests/mutants.py "${words[@]}"
}

# shellcheck disable=SC2046
leg_sync() { validated sync -m 'vulkan and sync' $(grep -rl --include='test_*.py' mark.sync tests); }

# Every kernel, and every op of the case table once: other tests launch the same again.
leg_sync_full() {
    validated sync_full -m 'vulkan and not slow and not sync' tests/engine/kernels tests/table/test_cases_gradient.py
}

# pytest on one driver, as the layer sits above it, with its synchronization checked
validated() {  # validated REPORT ARGUMENTS...
    { have_vulkan && validation_layer >/dev/null; } || return $not_run
    local layer=$folder/$1.layer
    mkdir -p "$layer"
    local -x AG_TEST_DEVICE=vulkan:0 AG_TEST_ICDS=${AG_TEST_ICDS%%:*} VK_ICD_FILENAMES=${AG_TEST_ICDS%%:*}
    cat >"$layer/vk_layer_settings.txt" <<END
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn
khronos_validation.log_filename = $layer/pipe
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT,VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT
END
    local -x VK_LAYER_SETTINGS_PATH=$layer VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation AG_BARRIER_ALL=1
    unset VK_LOADER_LAYERS_DISABLE
    local races seen status=0
    races=$(logged "$layer" races .venv/bin/python tools/hazard.py) || return 1
    seen=$(grep -c '^SYNC-HAZARD-WRITE-AFTER-WRITE' "$layer/races.log") || true
    say "synchronization validation saw $seen of $races deliberate races"
    [ "$seen" = "$races" ] || return 1
    hang_s=600 logged "$layer" tests run_pytest "$1" "${@:2}" || status=1
    if grep -E 'SYNC-HAZARD|VUID|UNASSIGNED' "$layer/tests.log"; then status=1; fi  # two workers may share a line
    return $status
}

logged() {  # logged LAYER NAME COMMAND...: with the layer's messages in LAYER/NAME.log
    # The layer truncates its log file whenever an instance is created, so a plain file would hold the messages of the
    # last instance only. A pipe holds them all.
    local pipe=$1/pipe reader status=0
    rm -f "$pipe"
    mkfifo "$pipe"
    cat "$pipe" >"$1/$2.log" &
    reader=$!
    exec 3>"$pipe"  # or cat would end with the first instance
    "${@:3}" 3>&- || status=$?
    exec 3>&-
    wait $reader
    return $status
}

probe() { .venv/bin/python tests/helpers/probe.py; }

rm -rf "$folder"
mkdir -p "$folder"
probed=$(probe)
slow=$((${probed%%.*} + 1))  # how many times slower than at a factor of 1, rounded up
say "this machine is slower by a factor of $probed; $workers workers"
if [[ " $* " = *" lint "* ]]; then  # it uses one core: beside the other legs
    (begin=$SECONDS status=0; leg_lint >"$folder/lint.log" 2>&1 || status=$?
     echo "lint=$status=$((SECONDS - begin))=$probed" >"$folder/lint.result") &
    lint=$!
fi
results=()
for leg in "${@/#lint/}"; do
    [ -n "$leg" ] || continue
    say "leg $leg"
    status=0 begin=$SECONDS
    (leg_"$leg") || status=$?
    probed=$(probe)
    results+=("$leg=$status=$((SECONDS - begin))=$probed")
done
if [ -n "${lint:-}" ]; then
    wait "$lint"
    cat "$folder/lint.log"
    results=("$(cat "$folder/lint.result")" "${results[@]}")
fi
.venv/bin/python tools/summary.py "$folder" $SECONDS "${results[@]}"
