#!/usr/bin/env bash
# Runs legs of the tests (arguments: lint quick sync slow sync_full full mutants) in .venv and prints their results and
# times last. Every leg runs, also after one that failed. Called by make after tools/setup.sh; PYTEST_ARGS holds more
# arguments for pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/vulkan.sh

folder=$PWD/.make/test
not_run=77  # a leg's status when a piece is missing; setup.sh has said which

have_vulkan() {
    [ -n "$(test_drivers)" ] && [ -e ag/engine/backends/vulkan/spv/manifest.json ] && .venv/bin/python -c 'import ag.engine.backends.vulkan._kp' 2>/dev/null
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

run_pytest() {  # run_pytest REPORT ARGUMENTS...
    local more status=0
    read -ra more <<<"${PYTEST_ARGS:-}"
    more+=(-o "cache_dir=$folder/cache.$1")
    .venv/bin/python -m pytest --junitxml="$folder/$1.xml" "${@:2}" "${more[@]}" || status=$?
    [ $status != 5 ] || status=0  # no test has been selected
    if [ $status = 1 ] && few_failed "$folder/cache.$1"; then
        say "$1: running again what failed"
        status=0
        .venv/bin/python -m pytest --junitxml="$folder/$1.again.xml" --last-failed "${@:2}" "${more[@]}" || status=$?
    fi
    return $status
}

# A machine that somebody else keeps busy for a second fails one test of 30,000 now and then. Up to two are run again,
# and those that were only too long, as a driver's first compilation is; the summary names those that passed then, so
# that nobody overlooks a race.
few_failed() {
    local failed too_long
    failed=$(grep -c :: "$1/v/cache/lastfailed")
    too_long=$(grep -c :: "$1/v/ag/too_long" 2>/dev/null) || too_long=0
    [ $((failed - too_long)) -le 2 ]
}

leg_lint() {
    local status=0
    .venv/bin/ruff check --output-format concise . || status=1
    .venv/bin/mypy --strict ag tests/test_types.py || status=1
    return $status
}

# A part of a leg: its name, what runs it, which tests by their marks, and where they are.
quick=("vulkan|run_pytest|vulkan and not slow|" "cpu|run_pytest|not vulkan and not slow|")
slow=("vulkan|run_pytest|vulkan and slow|"
      "cpu|run_pytest|not vulkan and slow|--ignore=tests/tools --ignore=tests/test_mutants.py"
      "tools|run_pytest|not vulkan and slow|tests/tools tests/test_mutants.py")
# All quick Vulkan tests as the layer sees them; the slow ones launch the same more often.
synchronization=("sync0|validated|vulkan and not slow|tests/engine/kernels"
                 "sync1|validated|vulkan and not slow|tests/table tests/engine --ignore=tests/engine/kernels"
                 "sync2|validated|vulkan and not slow|--ignore=tests/engine --ignore=tests/table")

leg_quick() { AG_TEST_LIMIT_S=10 in_two_processes quick "${quick[@]}"; }

leg_slow() { in_two_processes slow "${slow[@]}"; }

leg_sync_full() { in_two_processes sync_full "${synchronization[@]}"; }

leg_full() { in_two_processes full "${slow[@]}" "${synchronization[@]}"; }

# Two processes at the same time take part after part. The first two parts are the longest: the one spends its time in
# the threads of the drivers, the other in Python. Products on the CPU keep to one core, or their threads would wait in
# turns for cores that the other process uses.
in_two_processes() {  # in_two_processes LEG PART...
    local other status=0
    local -x OPENBLAS_NUM_THREADS=1
    parts_of "$@" >"$folder/$1.log" 2>&1 &
    other=$!
    parts_of "$@" || status=$?
    wait $other || status=$?
    cat "$folder/$1.log"
    return $status
}

parts_of() {  # parts_of LEG PART...: runs those that the other process has not taken
    local part name runs marks where status=0
    for part in "${@:2}"; do
        IFS='|' read -r name runs marks where <<<"$part"
        mkdir "$folder/$1.$name.taken" 2>/dev/null || continue  # which only one of the two can
        # shellcheck disable=SC2086
        "$runs" "$1.$name" -m "$marks" $where || status=$?
    done
    return $status
}

leg_mutants() {
    local words
    read -ra words <<<"${MUTANTS:-}"
    .venv/bin/python tests/mutants.py "${words[@]}"
}

leg_sync() { validated sync -m 'vulkan and sync'; }

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
    logged "$layer" tests run_pytest "$1" "${@:2}" || status=1
    if grep -E '^(SYNC-HAZARD|VUID|UNASSIGNED)' "$layer/tests.log"; then status=1; fi
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

rm -rf "$folder"
mkdir -p "$folder"
results=()
for leg in "$@"; do
    say "leg $leg"
    status=0 begin=$SECONDS
    (leg_"$leg") || status=$?
    results+=("$leg=$status=$((SECONDS - begin))")
done
.venv/bin/python tools/summary.py "$folder" "${results[@]}"
