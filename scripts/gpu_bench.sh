#!/usr/bin/env bash
# Times the training step of models with published results, on one GPU: one JSON line each.
set -euo pipefail
cd "$(dirname "$0")/.."
bench=build-gpu/bench_gpu_step
cache=$(mktemp -d)/matmul.txt
"$bench" gpt2-124m --vocabulary 50304 --micro 64 --length 1024 --matmul-cache "$cache"
"$bench" gpt2-1.5b --vocabulary 50304 --micro 16 --length 1024 --matmul-cache "$cache"
"$bench" llama-1b --micro 4 --length 4096 --matmul-cache "$cache"
"$bench" llama-8b --layers 8 --micro 2 --length 4096 --matmul-cache "$cache"
"$bench" qwen2.5-7b --micro 8 --length 1024 --accumulate 4 --moments bf16 --steps 5 --matmul-cache "$cache"
"$bench" llama-3b --micro 2 --length 4096 --steps 4 --matmul-cache "$cache"
"$bench" llama-8b --micro 1 --length 4096 --moments bf16 --recompute full --steps 3 --matmul-cache "$cache"
# PEER: path of a PyTorch trainer with the same options, to time it in the same session.
if [ -n "${PEER:-}" ]; then
  python3 "$PEER" --model gpt2-124m --mb 64 --seq 1024 --steps 10
  python3 "$PEER" --model llama-1b --mb 4 --seq 4096 --fp32-master --steps 10
fi
