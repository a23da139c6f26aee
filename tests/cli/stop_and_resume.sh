#!/usr/bin/env bash
# Asks runs to end, with SIGINT, SIGTERM and SIGUSR1 (which mpirun passes on), as threads and as processes: they finish
# their step, save, and say how to go on; the run that goes on ends with the weights of one that nobody asked.
# Usage: stop_and_resume.sh TESSERA MPIEXEC
set -euo pipefail
set -m # or bash has what runs in the background ignore SIGINT
tessera=$1 mpiexec=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; cat log; exit 1; }

steps=3000
flags=(train --model resnet_v1 --depth 8 --image-size 8 --num-classes 3 --synthetic-images 64 --batch-size 2 --split-size 2
  --threads 1 --steps $steps --checkpoint-dir run --checkpoint-every $steps --resume auto)

# ask SIGNAL WHOM COMMAND...: once the run has taken a step. WHOM: self, or a child: one rank of several.
ask() {
  local signal=$1 whom=$2 pid code=0
  shift 2
  : >log # not that of the run before
  "$@" >log 2>&1 &
  pid=$!
  for ((i = 0; i < 12000; ++i)); do
    if grep -aq '^step ' log || ! kill -0 $pid 2>/dev/null; then break; fi
    sleep 0.01
  done
  asked=$pid
  if [ "$whom" = child ]; then
    for stat in /proc/[0-9]*/stat; do
      if read -r child name _ parent _ 2>/dev/null <"$stat" && [ "$parent $name" = "$pid (tessera)" ]; then asked=$child; fi
    done
    ((asked != pid)) || fail "no rank is there"
  fi
  kill "-$signal" "$asked" || fail "the run ended by itself"
  wait $pid || code=$?
  ((code == 1)) || fail "$signal: exit code $code, not 1"
  step=$(grep -a -o 'stopped by a signal after step [0-9]* of' log | grep -o '[0-9]*') || fail "$signal: no message"
  # Only the first rank says so, and a child may be another one.
  [ "$whom" = child ] || grep -aq 'asked to stop: finishing this step' log ||
    fail "$signal: no word before the end of the step"
  [ "$(ls -A run)" = "$(printf 'step-%06d' "$step")" ] || fail "$signal at step $step leaves: $(ls -A run)"
  ((step < steps)) || fail "all steps were done"
  echo "$signal after step $step"
}
ask INT self "$tessera" "${flags[@]}"
first=$step
rm -rf run
ask USR1 self "$mpiexec" -np 2 "$tessera" "${flags[@]}"
rm -rf run
ask TERM child "$mpiexec" -np 2 "$tessera" "${flags[@]}"
"$tessera" "${flags[@]}" >log 2>&1 || fail "the run that goes on"
grep -q "goes on from run/$(printf 'step-%06d' "$step")" log || fail "it did not go on from step $step"
"$tessera" export run -o stopped.safetensors --quiet
rm -rf run
"$tessera" "${flags[@]}" >log 2>&1 || fail "the run that nobody asks"
"$tessera" export run -o whole.safetensors --quiet
cmp stopped.safetensors whole.safetensors || fail "the weights differ"
echo "stopped after step $first and step $step: same weights"
