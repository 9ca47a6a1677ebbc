#!/usr/bin/env bash
# Real servers, filled, then the ratios of benchmarks/prometheus.py, elasticsearch.py, fleet.py and cordon.py; everything is stopped and removed at the end.
# usage: benchmarks/live.sh [PYTHON] [metrics|logs|fleet|cordon]…     needs what tests/services needs (Debian, root, a JDK)
# Ends with 1 when a gate failed: other samples than the client's, a wrong verdict. What was merely slower than asked is shown as missed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
[ $# = 0 ] || shift
[ $# != 0 ] || set -- metrics logs fleet cordon
export PYTHONPATH=$PWD
scratch=$(mktemp -d)
cleanup() {
  tests/services/prometheus/stop --dir "$scratch/prometheus" --purge >/dev/null 2>&1 || true
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

metrics() {
  echo "== metrics to frames: 2,048 GPUs, 20 fields, 240 points 30 s apart"
  local port end
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  end=$(($(date +%s) / 7200 * 7200 - 30)) # all in one block of two hours: promtool reads its input once for each
  "$python" tests/services/prometheus/dcgm_history.py --nodes 256 --hours 1.9917 --step 30 --fields twenty --end "$end" >"$scratch/history.om"
  tests/services/prometheus/start --no-alertmanager --dir "$scratch/prometheus" --port "$port" "$scratch/history.om" >/dev/null
  rm -f "$scratch/history.om"
  "$python" benchmarks/prometheus.py "http://127.0.0.1:$port" --hours 1.9917 --end "$end" --fields 20
  tests/services/prometheus/stop --dir "$scratch/prometheus" --purge
}

logs() {
  echo "== logs of a job"
  "$python" benchmarks/elasticsearch.py
}

fleet() {
  echo "== a whole site: one job of 16,384 ranks"
  "$python" benchmarks/fleet.py
}

cordon() {
  echo "== from a fatal finding to the cordon: 1,500 nodes"
  "$python" benchmarks/cordon.py
}

failed=0
for part; do
  case $part in metrics | logs | fleet | cordon) ;; *) sed -n 3p "$0" >&2; exit 2 ;; esac
  (set -e; "$part") || failed=1
done
exit $failed
