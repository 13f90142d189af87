#!/bin/bash
# demo on Frontier: 128 nodes x 8 ranks, by kintsugi launch.
#SBATCH --job-name=demo
#SBATCH --account=ABC123
#SBATCH --partition=batch
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --exclusive
#SBATCH --network=disable_rdzv_get
#SBATCH --exclude=frontier00007,frontier[00010-00012]
#SBATCH --time=06:00:00
#SBATCH --requeue
#SBATCH --signal=USR1@600
#SBATCH --chdir=/scratch/project
#SBATCH --output=/scratch/project/runs/demo/launch/slurm-%j.out
#SBATCH --open-mode=append

module load rocm rccl-net-plugin || exit 2
unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL  # of the login shell
export NCCL_SOCKET_IFNAME="hsn0,hsn1,hsn2,hsn3"
export NCCL_NET_GDR_LEVEL="PHB"
export NCCL_CROSS_NIC="1"
export HSA_FORCE_FINE_GRAIN_PCIE="1"
export FI_MR_CACHE_MONITOR="kdreg2"
export FI_CXI_DISABLE_HOST_REGISTER="1"
export FI_CXI_DEFAULT_CQ_SIZE="131072"
export FI_CXI_DEFAULT_TX_SIZE="2048"
export FI_CXI_RX_MATCH_MODE="hybrid"
export FI_CXI_RDZV_PROTO="alt_read"
export FI_CXI_RDZV_EAGER_SIZE="0"
export FI_CXI_RDZV_THRESHOLD="0"
export FI_CXI_RDZV_GET_MIN="0"
export MPICH_GPU_SUPPORT_ENABLED="0"
export NCCL_NET="OFI"

# When this job ends, in Unix seconds, so that the run can plan its saves.
end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null | head -n 1)
if [ -n "$end" ] && KINTSUGI_END_TIME=$(date --date="$end" +%s 2>/dev/null); then
  export KINTSUGI_END_TIME
fi

run=/scratch/project/runs/demo
rm -f "$run/launch/exit_code" "$run/launch/asked_to_stop"
# The supervisor starts the ranks. It is started again only if it was killed or has crashed.
for attempt in {1..20}; do
  /opt/kintsugi/bin/kintsugi launch --supervise "$run"
  code=$?
  case $code in 134 | 135 | 136 | 137 | 139) sleep 1 ;; *) break ;; esac
done

# For Slurm a stopped run is no failed job; some sites requeue all jobs that exit with 75.
status=$code
if [ "$code" -eq 75 ]; then status=0; fi

asked_to_stop() { [ -e "$run/stop" ] || [ -e "$run/launch/asked_to_stop" ]; }
# 75: stopped with a checkpoint. Back into the queue, unless somebody asked for the stop.
if [ "$code" -eq 75 ] && ! asked_to_stop; then
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
# 1: too few nodes are left. Slurm may have others.
if [ "$code" -eq 1 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ] && ! asked_to_stop; then
  scontrol requeue "$SLURM_JOB_ID" && exit 1
fi

if [ "$code" -eq 75 ]; then rm -f "$run/stop"; fi  # it was obeyed
for attempt in {1..30}; do  # a full disk may get space
  echo "$code" 2>/dev/null >"$run/launch/exit_code" && break
  [ -d "$run/launch" ] || break  # it was moved
  sleep 10
done
exit "$status"
