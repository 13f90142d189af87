#!/bin/bash
# demo on JUWELS Booster: 48 nodes x 4 ranks, by kintsugi launch.
#SBATCH --job-name=demo
#SBATCH --account=opengptx
#SBATCH --partition=booster
#SBATCH --nodes=48
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:4
#SBATCH --exclusive
#SBATCH --hint=nomultithread
#SBATCH --time=1-00:00:00
#SBATCH --array=0-2%1
#SBATCH --requeue
#SBATCH --signal=USR1@300
#SBATCH --chdir=/scratch/project
#SBATCH --output=/scratch/project/runs/demo/launch/slurm-%j.out
#SBATCH --open-mode=append

export NCCL_SOCKET_IFNAME="ib0"
export NCCL_SOCKET_FAMILY="AF_INET"
export NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2,mlx5_3"
export NCCL_NET_GDR_LEVEL="2"
export NCCL_NET_GDR_READ="1"
export NCCL_IB_TIMEOUT="20"
export NCCL_IB_RETRY_CNT="20"
export UCX_RC_TIMEOUT="4s"

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
