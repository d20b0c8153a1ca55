#!/usr/bin/env bash
# Everything that must hold on a machine with a GPU, from programs that scripts/gpu-bundle.sh built:
#
#   scripts/gpu-check.sh DIR [TRACE...]
#
# Runs the conformance suites and the device's own tests on the GPU, the acceptance programs, a
# replay of each trace, and a part of it all under compute-sanitizer where that is installed. Needs
# no Rust toolchain. Logs go to $MILLPOND_LOGS, or to a new directory. Ends with a line for each step, and
# with an exit code that is not zero if one failed.
#
#   MILLPOND_ONLY=WORD   runs only the steps whose name contains the word
set -uo pipefail

if [ $# -lt 1 ] || [ ! -x "$1/conformance" ]; then
    echo "usage: $0 DIR [TRACE...], with DIR as scripts/gpu-bundle.sh laid it out" >&2
    exit 2
fi
bundle=$(cd "$1" && pwd)
shift
logs=${MILLPOND_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
passed=0 failed=0 skipped=0
summary=()

note() {
    summary+=("$(printf '%-8s %5ss  %s' "$1" "$2" "$3")")
    printf '%s\n' "${summary[-1]}"
}

# step NAME SECONDS COMMAND...: runs a command, with its output in a log; shows the log's end if it
# fails.
step() {
    local name=$1 limit=$2 log start code
    shift 2
    if [[ $name != *"${MILLPOND_ONLY:-}"* ]]; then
        return
    fi
    log="$logs/$(printf '%s' "$name" | tr -c 'a-zA-Z0-9_.-' '_').log"
    start=$SECONDS
    timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1
    code=$?
    if [ $code -ne 0 ]; then
        failed=$((failed + 1))
        note FAILED $((SECONDS - start)) "$name (exit code $code, $log)"
        grep -E 'FAILED|panicked|^Error|ERROR SUMMARY|corrupt' "$log" | tail -40
        tail -n 20 "$log"
    elif grep -q '^skipped' "$log"; then
        skipped=$((skipped + 1))
        note skipped $((SECONDS - start)) "$name: $(grep -m1 '^skipped' "$log")"
    else
        passed=$((passed + 1))
        note ok $((SECONDS - start)) "$name: $(grep -v '^ *$' "$log" | tail -n 1)"
    fi
}

gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)
printf '%s\n' "${gpus:-no nvidia-smi; the programs say themselves whether there is a GPU}"

# Cases of a GPU that were all ignored would be no test.
step "a GPU is there" 60 "$bundle/conformance" --exact device::capabilities_are_plausible::cuda
if grep -q '1 ignored' "$logs"/a_GPU_is_there.log 2>/dev/null; then
    grep ignored "$logs"/a_GPU_is_there.log
    echo "there is no GPU that millpond can use" >&2
    exit 1
fi

step "doctor" 60 "$bundle/millpond" doctor --device cuda:0
step "conformance" 900 "$bundle/conformance" ::cuda --test-threads 1
step "cuda device" 600 "$bundle/cuda_device" --test-threads 1
for program in "$bundle"/gpu_*; do
    if [ -x "$program" ] && [[ $program != *.sh ]]; then
        step "$(basename "$program")" 300 "$program"
    fi
done
for trace in "$@"; do
    step "replay $(basename "$trace")" 600 "$bundle/millpond" replay --device cuda:0 "$trace"
done

# Cases that fault on purpose, or look at the process as a whole, are not for the sanitizer; calls
# that are refused on purpose are not errors.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
cases=(
    ::cuda --test-threads 1
    --skip access_is_needed --skip what_may_only_be_read --skip a_fault_loses
    --skip a_thousand_pools --skip more_than_there_is --skip many_verifications
)
export MILLPOND_HOLD_MAY_END=1
for tool in memcheck initcheck racecheck; do
    if [ -z "$sanitizer" ]; then
        skipped=$((skipped + 1))
        note skipped 0 "compute-sanitizer $tool: it is not installed"
        continue
    fi
    check=("$sanitizer" --tool "$tool" --error-exitcode 9 --target-processes all)
    if [ "$tool" = memcheck ]; then
        check+=(--report-api-errors no)
    fi
    step "$tool: conformance" 1200 "${check[@]}" "$bundle/conformance" "${cases[@]}"
    for program in gpu_stream_ordered_allocation gpu_mapped_vector_add gpu_ipc_handles gpu_corruption; do
        step "$tool: $program" 600 "${check[@]}" "$bundle/$program"
    done
done

printf '\n== summary (logs in %s)\n' "$logs"
printf '%s\n' "${summary[@]}"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
