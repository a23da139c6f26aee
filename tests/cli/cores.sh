#!/usr/bin/env bash
# Ranks keep to the cores of a NUMA node each: on a machine that hwloc is told to take for one with two nodes.
# Usage: cores.sh TESSERA MPIRUN
set -u
tessera=$1 mpirun=$2
. "$(dirname "$0")/expect.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { failures=$((failures + 1)); echo "FAILED: $*"; }

if "$tessera" --version | grep -q '^hwloc *no'; then echo "built without hwloc: nothing to test"; exit 0; fi
if [ "$(nproc)" -lt 2 ]; then echo "one core: nothing to test"; exit 0; fi
unset OMP_NUM_THREADS
two=(env HWLOC_SYNTHETIC="numa:2 core:1 pu:1" HWLOC_THISSYSTEM=1)
train=(train --model resnet_v1 --depth 8 --image-size 64 --batch-size 4 --conv-choice fixed)
tiles=(--grid 1x2 --threads 1)

# lists COMMAND...: where the threads of a running job may run, each list once. It is looked at in the middle of a run.
lists() {
  "$@" --steps 100000 > "$work/running" 2>&1 &
  local job=$! found="" pid
  for _ in $(seq 200); do
    grep -q '^step ' "$work/running" && break
    sleep 0.1
  done
  for pid in $job $(pgrep -P $job) $(pgrep -P $job | xargs -r -n 1 pgrep -P); do
    grep -qa "$tessera" "/proc/$pid/cmdline" 2>/dev/null && [ "$(readlink "/proc/$pid/exe")" = "$(readlink -f "$tessera")" ] &&
      found+=$(cat "/proc/$pid"/task/*/status | sed -n 's/^Cpus_allowed_list:[[:space:]]*//p')$'\n'
  done
  kill $job; wait $job 2>/dev/null
  sort -u <<<"$found" | grep . | tr '\n' ' '
}
has() {  # has WORD LISTS WHAT
  case " $2 " in *" $1 "*) ;; *) fail "$3: no thread has processors $1, but $2" ;; esac
}
has_not() {
  [ -n "$2" ] || fail "$3: no thread was seen"
  case " $2 " in *" $1 "*) fail "$3: a thread has processors $1, of $2" ;; esac
}

expect 0 "ranks keep to 2 NUMA nodes" -- "${two[@]}" "$tessera" "${train[@]}" "${tiles[@]}" --steps 1
expect 0 "equal" -- "${two[@]}" "$tessera" verify --model resnet_v1 --depth 8 --image-size 32 --batch-size 2 "${tiles[@]}"
expect 2 "--bind" -- "$tessera" "${train[@]}" --bind sockets
# unbound COMMAND...: it works, and says nothing of nodes.
unbound() {
  local said
  said=$("$@" --steps 1 2>&1) || fail "$*: exit code $?"
  grep -q NUMA <<<"$said" && fail "$*: ranks are bound"
}
unbound "${two[@]}" "$tessera" "${train[@]}" "${tiles[@]}" --bind none
unbound "${two[@]}" "$tessera" "${train[@]}" --threads 2               # one rank, and more threads than a node has
unbound "${two[@]}" "$tessera" "${train[@]}" --grid 1x2 --threads 2
unbound taskset -c 0 "${two[@]}" "$tessera" "${train[@]}" "${tiles[@]}"  # what is left to the process is a node less

found=$(lists "${two[@]}" "$tessera" "${train[@]}" "${tiles[@]}")
has 0 "$found" "threads"; has 1 "$found" "threads"
found=$(lists "${two[@]}" "$tessera" "${train[@]}" "${tiles[@]}" --bind none)
has_not 0 "$found" "--bind none"; has_not 1 "$found" "--bind none"
found=$(lists "${two[@]}" "$mpirun" --bind-to none -np 2 "$tessera" "${train[@]}" "${tiles[@]}")
has 0 "$found" "processes"; has 1 "$found" "processes"
# mpirun binds a process to a core, if it is not told otherwise, whatever its threads are.
found=$(lists "$mpirun" --bind-to core -np 1 "$tessera" "${train[@]}" --threads 2)
has 0-1 "$found" "two threads of a process that was bound to a core"
found=$(lists "$mpirun" --bind-to core -np 1 "$tessera" "${train[@]}" --threads 2 --bind none)
has_not 0-1 "$found" "--bind none of a process that was bound to a core"

[ $failures = 0 ] && echo "ranks keep to their nodes" || { echo "$failures lines failed"; exit 1; }
