#!/bin/sh
# share_gpu.sh COMMAND …: runs a command whose processes share one GPU, for tests with many ranks.
# Without the MPS server the GPU switches between processes in time slices of milliseconds, and every
# collective waits for several of them. With MPS kernels of several processes run concurrently (1 KB
# all-reduce of two ranks on an H200: 0.07 ms instead of 4.8 ms).
set -u
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}" NCCL_IB_DISABLE=1
# NCCL channels occupy multiprocessors. A rank without a free one would wait for a rank that waits
# for it.
export NCCL_MAX_NCHANNELS="${NCCL_MAX_NCHANNELS:-1}"
# The MPS server has too few hardware queues for four processes with 32 connections each.
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-16}"
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
if command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d; then
  trap 'echo quit | nvidia-cuda-mps-control > /dev/null 2>&1; rm -rf "$folder"' EXIT
  trap 'exit 130' INT TERM
else
  echo "share_gpu.sh: no MPS server, so the processes run in time slices" >&2
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
"$@"
