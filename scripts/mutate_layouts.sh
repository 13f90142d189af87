#!/usr/bin/env bash
# Mutation tests. Every patch of tests/mutations is a bug: applied alone to a copy of the tree, it
# must make the equivalence tests fail. Prints the result of each patch. Exit code: 1 if a mutation
# was not caught, 2 if one could not be tried.
# Usage: scripts/mutate_layouts.sh [name …]   (default: all; name: tests/mutations/name.patch)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
scratch=${MUTATION_DIRECTORY:-$root/build-mutations}
tree=$scratch/tree log=$scratch/log
build=$tree/build  # inside the tree, so that ccache sees the same relative paths as in the root
jobs=${JOBS:-$(nproc)}
export GIT_CEILING_DIRECTORIES=$scratch  # git apply must patch the copy, which is not a repository
export CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1
# Without the random draws, so that the result does not depend on them.
tests=(env KINTSUGI_NO_SHRINK=1 timeout 300 "$build/kintsugi_equivalence_tests"
       --gtest_brief=1 --gtest_fail_fast '--gtest_filter=-*RandomDraws')

fail() { echo "$*" >&2; exit 2; }

# Gives every file a new time stamp, so that objects of an interrupted run are rebuilt.
copy_tree() {
  mkdir -p "$tree"
  find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
  (cd "$root" && git ls-files -z --cached --others --exclude-standard -- CMakeLists.txt cmake models src tests) |
    while IFS= read -r -d '' file; do [ ! -f "$root/$file" ] || printf '%s\0' "$file"; done |
    tar -C "$root" --null -T - -cf - | tar -C "$tree" -xmf -
}

build_tests() { cmake --build "$build" -j "$jobs" --target kintsugi_equivalence_tests > "$log" 2>&1; }

patches=()
for name in "$@"; do patches+=("$root/tests/mutations/$name.patch"); done
[ $# -gt 0 ] || patches=("$root"/tests/mutations/*.patch)

copy_tree
cd "$tree"
for patch in "${patches[@]}"; do
  git apply --check "$patch" || fail "$patch does not apply any more: rewrite it for the current sources"
done
cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKINTSUGI_CUDA=OFF -DKINTSUGI_TESTS=ON -DKINTSUGI_UNITY=OFF \
  > "$log" 2>&1 || fail "$(cat "$log")"
build_tests || fail "the unmodified sources do not build: $(cat "$log")"
"${tests[@]}" > "$log" 2>&1 || fail "the tests fail without a mutation: $(cat "$log")"

survived=() untried=()
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  SECONDS=0
  git apply "$patch"
  if ! build_tests; then
    verdict="DOES NOT BUILD" untried+=("$name")
  elif "${tests[@]}" > "$log" 2>&1; then
    verdict="NOT CAUGHT" survived+=("$name")
  else
    verdict=caught
  fi
  git apply -R "$patch"
  printf '%-34s %-14s %3d s  %s\n' "$name" "$verdict" $SECONDS "$(head -1 "$patch")"
  # The first failed case and its message; after a crash there is none.
  [ "$verdict" != caught ] || grep -m1 -A1 -E '^tp=' "$log" | cut -c1-170 | sed 's/^/    /' || true
done

echo "${#patches[@]} mutations, ${#survived[@]} not caught, ${#untried[@]} not tried"
[ ${#untried[@]} -eq 0 ] || fail "these do not build: ${untried[*]}"
[ ${#survived[@]} -eq 0 ] || { echo "not caught: ${survived[*]}" >&2; exit 1; }
