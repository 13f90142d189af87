#!/usr/bin/env bash
# Compares the planner with measured steps on one GPU: calibrates it, trains each model, and predicts
# the same steps. Prints ms per step and J per token, predicted / measured, and writes DIR/machine.yaml.
#   bench/plan_vs_measured.sh DIR [MODEL…]
# MODEL: names below; default: all. MACHINE (default h200) has the values that are not measured; with
# CALIBRATED=file.yaml nothing is calibrated. KINTSUGI and BENCH are the programs.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6p' "$0"; exit 2; }
out=$1; shift
kintsugi=${KINTSUGI:-build-gpu/kintsugi} bench=${BENCH:-build-gpu/bench_gpu_step} machine=${MACHINE:-h200}
mkdir -p "$out"
: > "$out/rows"
calibrated=${CALIBRATED:-$out/machine.yaml}
if [ -z "${CALIBRATED:-}" ]; then
  "$kintsugi" calibrate --machine "$machine" --output "$calibrated" --overwrite | tee "$out/calibrate.txt"
fi

# name, preset, layers, vocabulary, sequences, length, micro-batches, moments, fp8 (0 or -: the preset's)
cases='gpt2-124m     gpt2-124m     0 50304 64 1024 1 fp32 -
gpt2-1.5b     gpt2-1.5b     0 50304 16 1024 1 fp32 -
llama-1b      llama-1b      0 0     4  4096 1 fp32 -
llama-3b      llama-3b      0 0     2  4096 1 fp32 -
llama-8b-8    llama-8b      8 0     2  4096 1 fp32 -
llama-8b-fp8  llama-8b      8 0     2  4096 1 fp32 rowwise
qwen          qwen2.5-7b    0 0     8  1024 4 bf16 -
qwen-fp8      qwen2.5-7b    0 0     8  1024 4 bf16 rowwise
retnet        retnet-medium 0 0     8  8192 1 fp32 -'

value() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" | head -1; }

# The configuration of a case, for train --dry-run.
configuration() {
  local model="preset: $2" fp8=""
  [ "$3" = 0 ] || model="$model, layers: $3"
  [ "$4" = 0 ] || model="$model, vocab_size: $4"
  [ "$9" = - ] || fp8=", fp8: {recipe: $9}"
  cat <<END
run: {dir: $out/run}
model: {$model}
data: {train: [{path: $out/data}], sequence_length: $6}
batch: {global: $(($5 * $7)), micro: $5}
train: {steps: 100, precision: bf16$fp8}
optimizer: {moments: $8}
layout: {tp: 1, pp: 1, dp: 1, zero: 0, recompute: none}
END
}

while read -r name preset layers vocabulary micro length accumulate moments fp8; do
  case " $* " in "  " | *" $name "*) ;; *) continue ;; esac
  configuration "$name" "$preset" "$layers" "$vocabulary" "$micro" "$length" "$accumulate" "$moments" "$fp8" > "$out/$name.yaml"
  "$kintsugi" train --dry-run --machine "$calibrated" "$out/$name.yaml" > "$out/$name.plan" || true
  options=(--micro "$micro" --length "$length" --accumulate "$accumulate" --moments "$moments" --matmul-cache "$out/matmuls")
  [ "$layers" = 0 ] || options+=(--layers "$layers")
  [ "$vocabulary" = 0 ] || options+=(--vocabulary "$vocabulary")
  [ "$fp8" = - ] || options+=(--fp8 "$fp8")
  # Some seconds first: a cool GPU is faster.
  "$bench" "$preset" "${options[@]}" --warmup "${WARMUP:-20}" --steps "${STEPS:-10}" > "$out/$name.json" ||
    { echo "$name: not measured"; continue; }
  predicted=$(sed -n 's/^ *total  *\([0-9.]*\) s.*/\1/p' "$out/$name.plan")
  joules=$(sed -n 's/.* \([0-9.]*\) kJ per step in GPUs.*/\1/p' "$out/$name.plan")
  awk -v name="$name" -v ms="$(value step_ms < "$out/$name.json")" -v s="$predicted" -v kj="$joules" \
      -v j="$(value j_per_token < "$out/$name.json")" -v tokens=$((micro * length * accumulate)) 'BEGIN {
    planned = 1e3 * kj / tokens
    printf "%-14s %9.1f %9.1f %+7.1f %%  %10.6f %10.6f %+7.1f %%\n", name, ms, 1e3 * s, 100 * (1e3 * s / ms - 1),
      j, planned, (j + 0 > 0 ? 100 * (planned / j - 1) : 0) }' | tee -a "$out/rows"
done <<< "$cases"
printf '\n%-14s %9s %9s %9s  %10s %10s %9s\n' model measured predicted ms J/token predicted J
cat "$out/rows"
