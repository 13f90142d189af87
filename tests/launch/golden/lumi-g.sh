#!/bin/bash
# demo on LUMI-G: 16 nodes x 8 ranks and 1 spare node, by kintsugi launch.
#SBATCH --job-name=demo
#SBATCH --account=project_465000001
#SBATCH --partition=standard-g
#SBATCH --nodes=17
#SBATCH --no-kill
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=480G
#SBATCH --time=2-00:00:00
#SBATCH --array=0-5%1
#SBATCH --requeue
#SBATCH --signal=USR1@300
#SBATCH --chdir=/scratch/project
#SBATCH --output=/scratch/project/runs/demo/launch/slurm-%j.out
#SBATCH --open-mode=append

unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL  # of the login shell
export NCCL_SOCKET_IFNAME="hsn"
export NCCL_NET_GDR_LEVEL="3"
export FI_CXI_DEFAULT_CQ_SIZE="262144"
export CXI_FORK_SAFE="1"
export CXI_FORK_SAFE_HP="1"
export FI_CXI_DISABLE_CQ_HUGETLB="1"
export FI_MR_CACHE_MONITOR="userfaultfd"
export FI_CXI_DISABLE_HOST_REGISTER="1"
export MPICH_GPU_SUPPORT_ENABLED="0"
export HSA_ENABLE_SDMA="0"
export MIOPEN_USER_DB_PATH="/tmp/miopen-$SLURM_JOB_ID"
export MIOPEN_CUSTOM_CACHE_DIR="/tmp/miopen-$SLURM_JOB_ID"

# When this job ends, in Unix seconds, so that the run can plan its saves.
end=$(squeue --noheader --jobs="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" --format=%e 2>/dev/null | head -n 1)
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
# The next job of the array continues, unless the run has ended (0 finished, 2 mistake, 3 diverged,
# 4 no progress), somebody asked for the stop, or this is the last one.
case $code in
  0 | 2 | 3 | 4) ;;
  *) asked_to_stop || [ "$SLURM_ARRAY_TASK_ID" -eq "$SLURM_ARRAY_TASK_MAX" ] || exit "$status" ;;
esac
scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"

if [ "$code" -eq 75 ]; then rm -f "$run/stop"; fi  # it was obeyed
for attempt in {1..30}; do  # a full disk may get space
  echo "$code" 2>/dev/null >"$run/launch/exit_code" && break
  [ -d "$run/launch" ] || break  # it was moved
  sleep 10
done
exit "$status"
