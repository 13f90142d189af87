#!/usr/bin/env bash
# A Slurm cluster of several nodes on this machine, for tests: one controller, one slurmd per node and a munge daemon
# of its own. Everything is below one directory; nothing of the system is changed.
#
#   cluster.sh start DIR NODES   start nodes n1, n2, …; prints the variables to export
#   cluster.sh kill DIR NODE     a node dies: its slurmd and every process of its jobs
#   cluster.sh revive DIR NODE   it answers again
#   cluster.sh stop DIR          end everything
#
# Needs Debian's slurm-wlm, munge and Open MPI.
set -euo pipefail

action=${1:?start, kill, revive or stop} dir=${2:?a directory}
conf=$dir/slurm.conf
export SLURM_CONF=$conf

free_ports() {  # the first of $1 ports in a row that nothing listens on
  local first port
  for first in $(shuf -i 20000-31000 -n 64); do
    for port in $(seq "$first" $((first + $1 - 1))); do
      if (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then continue 2; fi
    done
    echo "$first"
    return
  done
  echo "cluster.sh: no free ports" >&2
  exit 1
}

# cred_expire also delays the next start of a requeued job. TmpFS differs by node, because PMIx keeps its sockets there.
configure() {
  local port nodes=$1
  port=$(free_ports $((nodes + 1)))
  cat > "$conf" << END
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/%n/spool
TmpFS=$dir/%n/tmp
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/%n/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmix
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-$nodes] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
END
}

start() {
  local nodes=$1 node
  mkdir -p "$dir/state"
  chmod 755 "$dir"
  for node in $(seq 1 "$nodes"); do
    mkdir -p "$dir/n$node/spool" "$dir/n$node/tmp"
    chmod 1777 "$dir/n$node/tmp"
  done
  configure "$nodes"
  (umask 077 && head -c 512 /dev/urandom > "$dir/munge.key")
  munged --force --socket="$dir/munge.socket" --key-file="$dir/munge.key" --pid-file="$dir/munge.pid" \
    --log-file="$dir/munge.log" --seed-file="$dir/munge.seed" > "$dir/munge.out" 2>&1
  slurmctld -c -f "$conf" >&2
  for node in $(seq 1 "$nodes"); do slurmd -f "$conf" -N "n$node" >&2; done
  for _ in $(seq 1 150); do
    if [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = "$nodes" ]; then
      # The nodes share /dev/shm and have only the loopback interface.
      echo "SLURM_CONF=$conf"
      echo "OMPI_MCA_pml=ob1"
      echo "OMPI_MCA_btl=self,tcp"
      echo "OMPI_MCA_btl_tcp_if_include=lo"
      return
    fi
    sleep 0.1
  done
  echo "cluster.sh: the nodes did not start, see $dir/slurmctld.log and $dir/n*/slurmd.log" >&2
  stop
  exit 1
}

# The tasks of a node's jobs, and the slurmstepd above each.
tasks_of() {
  local file process parent
  # -s: processes come and go.
  for file in $(grep -lzxs -- "SLURM_CONF=$conf" /proc/[0-9]*/environ); do
    grep -qzxs -- "SLURMD_NODENAME=$1" "$file" || continue
    process=$(basename "$(dirname "$file")")
    echo "$process"
    parent=$(sed 's/.*) . //' "/proc/$process/stat" 2> /dev/null | cut -d' ' -f1) || continue
    if [ "$(cat "/proc/$parent/comm" 2> /dev/null)" = slurmstepd ]; then echo "$parent"; fi
  done
}

pid_in() { if [ -s "$1" ]; then cat "$1"; fi; }

kill_node() {
  local round processes
  kill -9 $(pid_in "$dir/$1/slurmd.pid") 2> /dev/null || true
  for round in 1 2 3; do
    processes=$(tasks_of "$1" | sort -u)
    [ -n "$processes" ] || break
    kill -9 $processes 2> /dev/null || true
  done
}

stop() {
  local node
  scancel -u "$(id -un)" 2> /dev/null || true
  for node in "$dir"/n*/; do kill_node "$(basename "$node")"; done
  kill $(pid_in "$dir/slurmctld.pid") $(pid_in "$dir/munge.pid") 2> /dev/null || true
}

case $action in
  start) start "${3:?number of nodes}" ;;
  kill) kill_node "${3:?a node}" ;;
  revive) slurmd -f "$conf" -N "${3:?a node}" >&2 ;;
  stop) stop ;;
  *) echo "cluster.sh: unknown action $action" >&2; exit 2 ;;
esac
