#!/bin/sh
# Health program, prolog and epilog of Slurm in one file; its name says which it is. On every node:
#
#   workbench config slurm > /etc/slurm/workbench-node && chmod 755 /etc/slurm/workbench-node
#   cd /etc/slurm && for hook in health prolog epilog drain; do ln -sf workbench-node workbench-$hook; done
#
# slurm.conf:
#
#   HealthCheckProgram=/etc/slurm/workbench-health
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY,CYCLE       # CYCLE: not all nodes in the same second
#   Prolog=/etc/slurm/workbench-prolog
#   Epilog=/etc/slurm/workbench-epilog
#   PrologEpilogTimeout=120
#   PrologFlags=Alloc                    # when the node is allocated, not when the first step comes
#
# What Slurm makes of the exit code: a prolog or epilog that does not exit 0 DRAINS the node (reason "Prolog error", "Epilog error"), and a
# failed prolog requeues the job, held unless SchedulerParameters has nohold_on_prolog_fail. So a node that is not fit (2), or of which
# something required could not be checked (3), is drained; warnings (1) let the job start. Let 3 pass in `judged` below to be less strict.
# Slurm makes nothing of the health program's exit code: it writes what it found into /run/gpu-workbench.
#
# No Slurm command is run inside of prolog, epilog or health program: 2,000 nodes that call scontrol in the same moment are an outage. Who
# wants a node drained while no job starts, with the finding as its reason, lets a timer of the system call `workbench-drain` (cron:
# "*/5 * * * * root sleep $((RANDOM % 60)); /etc/slurm/workbench-drain"). It undrains nothing: that is for whoever mended the node, or for
# `workbench loop` with adopt = ["workbench check"] in its policy.

# slurmd gives a health program no PATH
PATH=${WORKBENCH_PATH:+$WORKBENCH_PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
out=${WORKBENCH_RUN:-/run/gpu-workbench}
hook=${0##*/workbench-}
umask 022
mkdir -p "$out"

check() { # CONTEXT: look, leave what was found in $out/$hook, return the code of workbench check
  # 40 s for the checks, 50 s for all of it, and 5 s more until SIGKILL: slurmd kills a health program after 60 s
  timeout -k 5 50 workbench check --context "$1" --seconds 40 ${SLURMD_NODENAME:+--node "$SLURMD_NODENAME"} \
    >"$out/$hook.new" 2>"$out/$hook.err" </dev/null
  code=$?
  [ -s "$out/$hook.new" ] || echo "workbench check ended with $code and said nothing" >"$out/$hook.new"
  mv -f "$out/$hook.new" "$out/$hook"
  return $code
}

judged() { # CODE: whether the node may get jobs; the reason file is there while it may not
  case $1 in
    0 | 1) rm -f "$out/unfit" ;;
    *) head -n 1 "$out/$hook" >"$out/unfit.new" && mv -f "$out/unfit.new" "$out/unfit"; return 1 ;;
  esac
}

case $hook in
  health)
    check running
    judged $?
    exit 0
    ;;
  prolog)
    check allocation
    judged $? && exit 0
    echo "gpu-workbench: $(cat "$out/unfit")" >&2
    exit 1
    ;;
  epilog)
    # other jobs may run on the node: nothing that disturbs them. Where jobs get whole nodes, `idle` may use the GPUs
    check running
    judged $?
    exit $?
    ;;
  drain) # not for slurmd: for a timer
    [ -s "$out/unfit" ] || exit 0
    node=${SLURMD_NODENAME:-$(hostname -s)}
    case $(sinfo -h -N -n "$node" -o %T | head -n 1) in
      *drain* | *down* | *fail*) exit 0 ;; # somebody's reason stands there already
    esac
    exec scontrol update nodename="$node" state=drain reason="workbench check: $(head -c 200 "$out/unfit" | tr -d '"')"
    ;;
  *)
    echo "call it workbench-health, workbench-prolog, workbench-epilog or workbench-drain, not $0" >&2
    exit 64
    ;;
esac
