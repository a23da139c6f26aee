#!/usr/bin/env bash
# Kills a run with SIGKILL, twenty times or more, at random moments: while it starts, trains and writes checkpoints.
# Each time the next one must go on from a whole checkpoint, and the last must end with the weights of a run that
# nobody killed.
# Usage: kill_and_resume.sh TESSERA [SEED]
set -euo pipefail
tessera=$1
seed=${2:-$((SRANDOM % 32768))}
RANDOM=$seed
echo "seed of the moments: $seed"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; cat log; exit 1; }

kills=20 steps=4000
# Two ranks with a shard each. With a checkpoint a step one is always being written; with one in fifty, seldom.
train=("$tessera" train --model resnet_v1 --depth 8 --image-size 8 --num-classes 3 --synthetic-images 64 --batch-size 2
  --split-size 2 --threads 1 --steps $steps --checkpoint-dir run --keep 2 --resume auto)
newest() { { ls run 2>/dev/null || true; } | tail -n 1; }

writing=0 starting=0
for ((kill = 1; kill <= kills || (writing == 0 && kill <= 3 * kills); ++kill)); do
  before=$(newest)
  "${train[@]}" --checkpoint-every $((kill % 2 ? 1 : 50)) >log 2>&1 &
  pid=$!
  if ((kill % 5 == 0)); then # at any moment, most likely while it starts
    sleep "0.$((RANDOM % 9 + 1))"
  else # some steps after it has gone on
    for ((i = 0; i < 12000; ++i)); do
      [ "$(newest)" != "$before" ] && break
      kill -0 $pid 2>/dev/null || break
      sleep 0.01
    done
    [ "$(newest)" != "$before" ] || fail "no progress from $before in run $kill"
    sleep "0.$(printf %03d $((RANDOM % 150)))"
  fi
  kill -9 $pid 2>/dev/null || fail "run $kill ended by itself"
  wait $pid 2>/dev/null || true
  if grep -q "passed over" log; then fail "a damaged checkpoint was there before run $kill"; fi
  [ "$(newest)" = "$before" ] && starting=$((starting + 1))
  compgen -G "run/.step-*" >/dev/null && writing=$((writing + 1))
done
reached=$(newest)
kills=$((kill - 1))
((writing > 0 && writing < kills)) || fail "a checkpoint was under way at $writing of $kills kills: not both are tested"

"${train[@]}" --checkpoint-every 1000 >log 2>&1 || fail "the last run"
grep -q "goes on from run/$reached" log || fail "the last run did not go on from $reached"
if grep -q "passed over" log; then fail "a damaged checkpoint"; fi
[ "$(ls -A run | wc -l)" = 2 ] || fail "leftovers: $(ls -A run)"
"$tessera" export run -o killed.safetensors --quiet
rm -rf run
"${train[@]}" --checkpoint-every $steps >log 2>&1 || fail "the run that nobody kills"
"$tessera" export run -o whole.safetensors --quiet
cmp killed.safetensors whole.safetensors || fail "the weights differ"
echo "$kills kills, $writing of them while a checkpoint was written, $starting before one; up to $reached: same weights"
