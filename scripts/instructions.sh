#!/usr/bin/env bash
# Counts the instructions of one pair of allocation and free under callgrind, and compares them with
# crates/millpond-bench/instructions.txt. The counts are the same on a busy machine as on an idle one,
# and nearly the same on another one. Needs valgrind; says so, and ends well, where there is none.
#
#   scripts/instructions.sh              fails if a count is more than 3 % above the one in the file
#   scripts/instructions.sh --update     writes what it counts into the file
#   scripts/instructions.sh --breakdown  shows the functions that take most of it, too
set -euo pipefail
cd "$(dirname "$0")/.."
expected=crates/millpond-bench/instructions.txt
tolerance=3
mode=${1:-}
case $mode in
"" | --update | --breakdown) ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

if ! command -v valgrind >/dev/null; then
    echo "skipped: valgrind is not installed, so instructions were not counted"
    exit 0
fi
# As it ships: other settings of the profile give other counts.
unset CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_CODEGEN_UNITS CARGO_PROFILE_RELEASE_OPT_LEVEL
cargo build --release --locked --quiet -p millpond-bench --bin instructions
program=${CARGO_TARGET_DIR:-target}/release/instructions
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# count PATTERN PAIRS: instructions of one pair.
count() {
    local log="$work/$1.log" total
    if ! valgrind --tool=callgrind --callgrind-out-file="$work/$1.out" \
        --toggle-collect='instructions::measured_*' "$program" "$1" "$2" >"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
    total=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$log")
    if [ "${total:-0}" -eq 0 ]; then
        echo "callgrind counted nothing in $1: is a function called measured_... still there?" >&2
        return 1
    fi
    echo $((total / $2))
}

failed=0
counted=()
for pattern in pair churn; do
    pairs=10000
    found=$(count "$pattern" "$pairs")
    counted+=("$pattern $found")
    wanted=$(sed -n "s/^$pattern \([0-9]*\)$/\1/p" "$expected")
    if [ -z "$wanted" ] && [ "$mode" != --update ]; then
        echo "$pattern: $found instructions a pair, and $expected expects none: use --update" >&2
        failed=1
    elif [ "$mode" = --update ]; then
        echo "$pattern: $found instructions a pair (${wanted:-none} before)"
    elif [ $((found * 100)) -gt $((wanted * (100 + tolerance))) ]; then
        echo "$pattern: $found instructions a pair, expected $wanted: more than $tolerance % above" >&2
        failed=1
    elif [ $((found * 100)) -lt $((wanted * (100 - tolerance))) ]; then
        echo "$pattern: $found instructions a pair, expected $wanted: better; keep it with --update"
    else
        echo "$pattern: $found instructions a pair, expected $wanted"
    fi
    if [ "$mode" = --breakdown ]; then
        # By function: what was inlined into one is its own.
        callgrind_annotate --auto=no --threshold=100 "$work/$pattern.out" | awk -v pairs="$pairs" '
            / \( *[0-9.]+%\)  / && !/PROGRAM TOTALS/ {
                count = $1
                gsub(",", "", count)
                sub(/^[^)]*\)  /, "")
                sub(/^[^:]*:/, "")
                sub(/ \[[^]]*\]$/, "")
                sum[$0] += count
            }
            END { for (f in sum) if (sum[f] >= pairs) printf "%10.1f  %s\n", sum[f] / pairs, f }
        ' | sort -rn
    fi
done
if [ "$mode" = --update ]; then
    sed -i '/^[a-z]/d' "$expected"
    printf '%s\n' "${counted[@]}" >>"$expected"
fi
exit $failed
