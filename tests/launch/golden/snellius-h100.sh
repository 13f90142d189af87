#!/bin/bash
# demo on Snellius H100: 2 nodes x 4 ranks, by kintsugi launch.
#SBATCH --job-name=demo
#SBATCH --partition=gpu_h100
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --ear=on
#SBATCH --ear-policy=monitoring
#SBATCH --time=5-00:00:00
#SBATCH --no-requeue
#SBATCH --signal=USR1@300
#SBATCH --chdir=/scratch/project
#SBATCH --output=/scratch/project/runs/demo/launch/slurm-%j.out
#SBATCH --open-mode=append

export NCCL_SOCKET_IFNAME="eno2np0"
unset SINGULARITY_BIND APPTAINER_BIND  # of a container around this job
export PMIX_MCA_psec=^munge  # there is no munge inside of the container

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

if [ "$code" -eq 75 ]; then rm -f "$run/stop"; fi  # it was obeyed
for attempt in {1..30}; do  # a full disk may get space
  echo "$code" 2>/dev/null >"$run/launch/exit_code" && break
  [ -d "$run/launch" ] || break  # it was moved
  sleep 10
done
exit "$status"
