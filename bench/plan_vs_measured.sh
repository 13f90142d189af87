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
  [ "$9" = - ] || fp8="fp8: {recipe: $9}"
  cat <<END
run: {dir: $out/run}
model: {$model}
data: {train: [{path: $out/data}], sequence_length: $6}
batch: {global: $(($5 * $7)), micro: $5}
train: {steps: 10, precision: bf16${fp8:+, $fp8}}
optimizer: {moments: $8}
layout: {tp: 1, pp: 1, dp: 1, zero: 0, recompute: none}
END
}
