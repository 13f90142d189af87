#!/bin/sh
# share_gpu.sh COMMAND …: runs a command whose processes share one GPU, for tests of many ranks.
# Without the MPS server, kernels of two processes take turns of milliseconds, and every call between two ranks waits for several;
# with it they run beside each other (1 KB summed by two ranks of an H200: 0.07 ms instead of 4.8).
set -u
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}" NCCL_IB_DISABLE=1
# Channels take multiprocessors, and a rank that finds none free waits for one that waits for it.
export NCCL_MAX_NCHANNELS="${NCCL_MAX_NCHANNELS:-1}"
# Each process has queues to the GPU, and the server has not enough for four with 32.
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-16}"
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
if command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d; then
  trap 'echo quit | nvidia-cuda-mps-control > /dev/null 2>&1; rm -rf "$folder"' EXIT
  trap 'exit 130' INT TERM
else
  echo "share_gpu.sh: no MPS server, so the processes take turns" >&2
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
"$@"
