#!/usr/bin/env bash
# Mutation tests. Every patch of a folder is a bug: applied alone to a copy of the tree, it must make
# tests fail. Prints the result of each patch. Exit code: 1 if a mutation was not caught, 2 if one
# could not be tried.
# Usage: scripts/mutate.sh layouts|kernels [name …]   (default: all)
#   layouts: tests/mutations/*.patch, against the tests that compare layouts
#   kernels: tests/mutations/kernels/*.patch, against the operation tests on an emulated GPU, which
#            looks for races; a patch names its tests: those called emulated have waves of 32 lanes,
#            those called hip 64
set -euo pipefail

suite=${1:-}
case $suite in
  layouts) folder=tests/mutations programs=kintsugi_equivalence_tests options=-DKINTSUGI_UNITY=OFF ;;
  kernels) folder=tests/mutations/kernels programs='kintsugi_emulated_tests_32 kintsugi_emulated_tests_64' options=-DKINTSUGI_RACE_CHECK=ON ;;
  *) echo "usage: $0 layouts|kernels [name …]" >&2; exit 2 ;;
esac
shift
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=${MUTATION_DIRECTORY:-$root/build-mutations}/$suite
tree=$scratch/tree log=$scratch/log${MUTATION_WORKER:-} results=$scratch/results
build=$tree/build  # inside the tree, so that ccache sees the same relative paths as in the root
jobs=${JOBS:-$(nproc)}
export GIT_CEILING_DIRECTORIES=$scratch  # git apply must patch the copy, which is not a repository
# run_tests PATCH…: the tests that the patches name, of every program. Without random draws, so that
# the result does not depend on them.
run_tests() {
  local filter program ran=0
  filter=$(sed -n 's/^tests: //p' "$@" | paste -sd:)
  for program in $programs; do
    KINTSUGI_NO_SHRINK=1 timeout "$limit_s" "$build/$program" --gtest_brief=1 --gtest_fail_fast \
      "--gtest_filter=$filter-*RandomDraws" > "$log" 2>&1 ||
      { [ $? -ne 124 ] || echo "[  FAILED  ] ends after $limit_s s" >> "$log"; return 1; }
    grep -q '^\[==========\] 0 tests' "$log" || ran=1
  done
  [ $ran = 1 ] || fail "no test is called $filter"
}

fail() { echo "$*" >&2; exit 2; }

# Gives every file a new time stamp, so that objects of an interrupted run are rebuilt.
copy_tree() {
  mkdir -p "$tree"
  find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
  (cd "$root" && git ls-files -z --cached --others --exclude-standard) |
    while IFS= read -r -d '' file; do [ ! -f "$root/$file" ] || printf '%s\0' "$file"; done |
    tar -C "$root" --null -T - -cf - | tar -C "$tree" -xmf -
}

build_tests() { cmake --build "$build" -j "$jobs" --target $programs > "$log" 2>&1; }

# try_patch PATCH: its result, in one line, which is kept in $results.
try_patch() {
  local patch=$1 name verdict
  name=$(basename "$patch" .patch)
  SECONDS=0
  git apply "$patch"
  if ! build_tests; then
    verdict="DOES NOT BUILD"
  elif run_tests "$patch"; then
    verdict="NOT CAUGHT"
  else
    verdict=caught
  fi
  git apply -R "$patch"
  {
    printf '%-34s %-14s %3d s  %s\n' "$name" "$verdict" $SECONDS "$(head -1 "$patch")"
    # The first failed case and its message; after a crash there is none.
    [ "$verdict" != caught ] || grep -m1 -A1 -E '^tp=|^\[  FAILED|race' "$log" | cut -c1-170 | sed 's/^/    /' || true
  } > "$results/$name.text"
  cat "$results/$name.text"
  echo "$verdict" > "$results/$name.verdict"
}

# Tries every patch that no other worker has begun.
try_patches() {
  local patch
  cd "$tree"
  for patch in "${patches[@]}"; do
    if mkdir "$results/$(basename "$patch" .patch).begun" 2> /dev/null; then try_patch "$patch"; fi
  done
}

# names VERDICT: the patches with this result.
names() { (cd "$results" && { grep -lx "$1" -- *.verdict || true; } | sed 's/\.verdict$//' | xargs); }

patches=()
for name in "$@"; do patches+=("$root/$folder/$name.patch"); done
[ $# -gt 0 ] || patches=("$root/$folder"/*.patch)

if [ -n "${MUTATION_WORKER:-}" ]; then  # in a mount namespace of its own: see below
  mount --bind "$scratch/copy$MUTATION_WORKER" "$tree"
  try_patches
  exit 0
fi

copy_tree
cd "$tree"
for patch in "${patches[@]}"; do
  git apply --check "$patch" || fail "$patch does not apply any more: rewrite it for the current sources"
done
cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKINTSUGI_CUDA=OFF -DKINTSUGI_TESTS=ON $options \
  > "$log" 2>&1 || fail "$(cat "$log")"
build_tests || fail "the unmodified sources do not build: $(cat "$log")"
limit_s=7200 SECONDS=0
run_tests "${patches[@]}" || fail "the tests fail without a mutation: $(cat "$log")"
export limit_s=$((300 + 2 * SECONDS))  # a mutation may hang

rm -rf "$results"
mkdir "$results"
# A mutation keeps few cores busy, so several are tried at a time. Each worker has a copy of the tree, which it mounts
# over the original, where the build directory expects its sources.
workers=$((jobs / 2 < ${#patches[@]} ? jobs / 2 : ${#patches[@]}))
if [ $workers -gt 1 ] && unshare --map-root-user --mount true 2> /dev/null; then
  running=()
  for ((worker = 0; worker < workers; ++worker)); do
    rm -rf "$scratch/copy$worker"
    cp -a "$tree" "$scratch/copy$worker"
    MUTATION_WORKER=$worker JOBS=2 unshare --map-root-user --mount "$root/scripts/mutate.sh" "$suite" "$@" &
    running+=($!)
  done
  trap 'kill "${running[@]}" 2> /dev/null' EXIT
  for process in "${running[@]}"; do wait "$process" || fail "a worker failed: see $scratch/log*"; done
  trap - EXIT
  rm -rf "$scratch"/copy*
else
  try_patches
fi

survived=$(names 'NOT CAUGHT') untried=$(names 'DOES NOT BUILD')
echo "${#patches[@]} mutations, $(wc -w <<< "$survived") not caught, $(wc -w <<< "$untried") not tried"
[ -z "$untried" ] || fail "these do not build: $untried"
[ -z "$survived" ] || { echo "not caught: $survived" >&2; exit 1; }
