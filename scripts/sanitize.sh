#!/usr/bin/env bash
# Runs the tests of a build with a sanitizer: sanitize.sh BUILD address|thread|races JOBS [PROGRAM]
# One process per job and not one per test, because an instrumented process takes a second to start. What is left out, and why,
# is in tests/sanitizers/. FILTER='Suite.*' runs only these tests.
set -euo pipefail
build=$1 sanitizer=$2 jobs=$3 program=${4:-kintsugi_tests}
root=$(cd "$(dirname "$0")/.." && pwd)

list=$root/tests/sanitizers/$sanitizer.txt left_out=
if [ -e "$list" ]; then left_out=$(sed -e 's/ *#.*//' -e '/^$/d' "$list" | paste -sd:); fi
case $program in
  *_32) all='*emulated*:Emulator*' ;;
  *_64) all='*hip*:Emulator*' ;;
  *) all='*' ;;
esac
export LSAN_OPTIONS="${LSAN_OPTIONS:-} suppressions=$root/scripts/leak_sanitizer.supp print_suppressions=0"
export TSAN_OPTIONS="${TSAN_OPTIONS:-} suppressions=$root/scripts/thread_sanitizer.supp print_suppressions=0"
export GTEST_TOTAL_SHARDS=$jobs GTEST_BRIEF=1

running=()
rm -f "$build"/times-*.txt
for ((shard = 0; shard < jobs; ++shard)); do
  GTEST_SHARD_INDEX=$shard KINTSUGI_TEST_TIMES="$build/times-$shard.txt" \
    "$build/$program" --gtest_filter="${FILTER:-$all}-$left_out" > "$build/sanitize-$shard.log" 2>&1 &
  running+=($!)
done
trap 'kill "${running[@]}" 2> /dev/null' EXIT
failed=0
for ((shard = 0; shard < jobs; ++shard)); do
  if ! wait "${running[shard]}"; then failed=1; fi
done
trap - EXIT
for ((shard = 0; shard < jobs; ++shard)); do
  if ((failed)); then cat "$build/sanitize-$shard.log"; else grep PASSED "$build/sanitize-$shard.log"; fi
done
if compgen -G "$build/times-*.txt" > /dev/null; then  # tests/sanitizers_test.cpp writes them, where it is part of the build
  cat "$build"/times-*.txt | sort -rn > "$build/times.txt"
  awk '{sum += $1} END {printf "%d tests took %.0f s of processor time; the longest:\n", NR, sum}' "$build/times.txt"
  head -n 10 "$build/times.txt"
fi
exit $failed
