#!/bin/sh
# Starts torchrun's agents of two "nodes" with two ranks each, as srun would, and ends both when one fails.  usage: two_nodes.sh TORCHRUN PORT ARGUMENT…
torchrun=$1 port=$2; shift 2
host=true # the first has the store: both are on this machine, and either would try
for node in 0 1; do
  "$torchrun" --rdzv-conf is_host=$host --nnodes 2 --nproc-per-node 2 --node-rank $node --rdzv-backend c10d --rdzv-id tiny --rdzv-endpoint 127.0.0.1:"$port" "$@" &
  pids="$pids $!" host=false
done
code=0
for pid in $pids; do
  wait "$pid" || { code=$?; break; }
done
[ $code -eq 0 ] || { echo "two_nodes: an agent ended with $code" >&2; kill $pids 2>/dev/null; }
exit $code
