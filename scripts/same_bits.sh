#!/usr/bin/env bash
# Checks that two commits compute the same bits: builds both, trains every *-tiny preset of OLD in
# eight layouts on the CPU, and compares all weights and optimizer states. Exit code 1 if any value
# differs or any run fails.
# Usage: scripts/same_bits.sh [--families "gpt2 llama …"] OLD [NEW]   (default of NEW: HEAD)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$root/build-same-bits
jobs=${JOBS:-$(nproc)}
fail() { echo "$*" >&2; exit 1; }

families=
if [ "${1:-}" = --families ]; then families=${2:-}; shift 2; fi
[ $# -ge 1 ] && [ $# -le 2 ] || fail "usage: $0 [--families \"gpt2 llama …\"] OLD [NEW]"
old=$(git -C "$root" rev-parse --verify --quiet "$1^{commit}") || fail "$1 is not a commit"
new=$(git -C "$root" rev-parse --verify --quiet "${2:-HEAD}^{commit}") || fail "$2 is not a commit"

# name, ranks, keys of the layout
layouts=(
  "one           1 tp=1"
  "dp2           2 dp=2"
  "zero3         4 dp=4 zero=3"
  "tp2sp         2 tp=2 sequence_parallel=true"
  "pp2           2 pp=2"
  "interleaved   2 pp=2 chunks=2 schedule=interleaved"
  "cp2           2 cp=2"
  "tp2pp2dp2     8 tp=2 pp=2 dp=2 zero=1 recompute=full"
)

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none

# The build directory is inside the tree, so that ccache sees the same relative paths for both.
build() {
  local tree=$scratch/$1/tree log=$scratch/$1/build.log
  mkdir -p "$tree"
  git -C "$root" archive "$1" | tar -C "$tree" -xf -
  { cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKINTSUGI_CUDA=OFF -DKINTSUGI_TESTS=OFF \
      -DKINTSUGI_COMMIT="${1:0:12}" && cmake --build "$tree/build" -j "$jobs" --target kintsugi; } > "$log" 2>&1 ||
    fail "$1 does not build: see $log"
}

# train COMMIT RUN FAMILY LAYOUT: writes RUN/sums, the hash and name of every tensor file, if the
# run completes.
train() {
  local commit=$1 run=$2 family=$3 name ranks keys key
  read -r name ranks keys <<< "$4"
  local options=(--set "run.dir=$run" --set "model.preset=$family-tiny")
  for key in $keys; do options+=(--set "layout.$key"); done
  rm -rf "$run" && mkdir -p "$run"
  timeout 600 mpirun -np "$ranks" "$scratch/$commit/tree/build/kintsugi" train "$scratch/run.yaml" "${options[@]}" \
    > "$run.log" 2>&1 < /dev/null || return 1
  [ -d "$run/checkpoints/step-00000020" ] && [ -d "$run/checkpoints/state/step-00000020" ] || return 1
  (cd "$run/checkpoints" && find . -name '*.safetensors' -type f -print0 | sort -z | xargs -0 -r sha256sum) > "$run/sums"
  grep -q '/state/' "$run/sums" && grep -qv '/state/' "$run/sums"
}

compare() {
  local family=$1 layout=$2 verdict=equal of
  for of in old new; do
    train "${!of}" "$scratch/runs/$of/$family-${layout%% *}" "$family" "$layout" || verdict=FAILED:$of
  done
  [ "$verdict" != equal ] || cmp -s "$scratch"/runs/{old,new}/"$family-${layout%% *}/sums" || verdict=DIFFERENT
  echo "$verdict"
}

for commit in "$old" "$new"; do build "$commit"; done
[ -n "$families" ] || families=$(cd "$scratch/$old/tree/models" && ls -- *-tiny.yaml | sed 's/-tiny\.yaml$//' | xargs)
[ -n "$families" ] || fail "$1 has no *-tiny preset"
rm -rf "$scratch/runs"
mkdir -p "$scratch/runs"
seq 1 4000 | awk '{ print $1 " times " $1 % 7 " is " $1 * ($1 % 7) "." }' > "$scratch/text.txt"
cat > "$scratch/run.yaml" << END
run: {dir: unnamed, seed: 1}
model: {preset: unnamed, layers: 4}
data: {train: [{path: "$scratch/text.txt"}], valid_fraction: 0, tokenizer: bytes, sequence_length: 32}
batch: {global: 8, micro: 1}
optimizer: {warmup_steps: 5}
train: {steps: 20, eval_every: 0, checkpoint_every: 10, precision: fp32}
comm: {deterministic: true}
device: cpu
threads: 1
END

echo "$old (old) and $new (new)"
printf '%-12s' family
for layout in "${layouts[@]}"; do printf ' %-12s' "${layout%% *}"; done
echo
bad=0
for family in $families; do
  printf '%-12s' "$family"
  for layout in "${layouts[@]}"; do
    verdict=$(compare "$family" "$layout")
    [ "$verdict" = equal ] || bad=$((bad + 1))
    printf ' %-12s' "$verdict"
  done
  echo
done
[ $bad -eq 0 ] || fail "$bad comparisons failed: the logs are in $scratch/runs"
