#!/usr/bin/env bash
# Real servers, filled, then the ratios of benchmarks/prometheus.py and benchmarks/elasticsearch.py; everything is stopped and removed at the end.
# usage: benchmarks/live.sh [PYTHON]     needs what tests/services needs (Debian, root, a JDK)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
export PYTHONPATH=$PWD
scratch=$(mktemp -d)
port=$((20000 + RANDOM % 20000))
cleanup() {
  tests/services/prometheus/stop --dir "$scratch/prometheus" >/dev/null 2>&1 || true
  rm -rf "$scratch"
}
trap cleanup EXIT

history() { # NODES HOURS STEP FIELDS
  tests/services/prometheus/stop --dir "$scratch/prometheus" >/dev/null 2>&1 || true
  rm -rf "$scratch/prometheus"
  "$python" tests/services/prometheus/dcgm_history.py --nodes "$1" --hours "$2" --step "$3" --fields "$4" >"$scratch/history.om"
  tests/services/prometheus/start --no-alertmanager --dir "$scratch/prometheus" --port "$port" "$scratch/history.om" >/dev/null
  rm -f "$scratch/history.om"
}

echo "== metrics to frames: 2,048 GPUs, 2 hours, a sample each 30 s"
history 256 2 30 basic
"$python" benchmarks/prometheus.py "http://127.0.0.1:$port" --hours 2 --fields 5
echo "== a job of 16,384 GPUs by push-down"
history 2048 0.5 60 basic
"$python" benchmarks/prometheus.py "http://127.0.0.1:$port" --job trainer --hours 0.5
echo "== logs of a job"
"$python" benchmarks/elasticsearch.py
