#!/usr/bin/env bash
# launcher_gone.sh MPIEXEC TESSERA: ranks whose launcher was killed end by themselves, within seconds.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
log=$(mktemp)
mark=$RANDOM$RANDOM  # a seed that finds these ranks among other processes
trap 'rm -f "$log"' EXIT
fail() { echo "FAILED: $*"; cat "$log"; exit 1; }

"$1" -np 2 "$2" train --model resnet_v1 --depth 8 --image-size 32 --batch-size 4 --steps 1000000 --verbose \
  --num-spatial-parts 2 --seed "$mark" >"$log" 2>&1 &
job=$!
for _ in $(seq 1200); do
  grep -q "step 2/" "$log" && break
  kill -0 $job 2>/dev/null || fail "the job ended before its launcher was killed"
  sleep 0.1
done
grep -q "step 2/" "$log" || fail "no second step after 120 s"
ranks=$(pgrep -P $job -f -- "--seed $mark")
[ "$(wc -w <<<"$ranks")" = 2 ] || fail "two ranks expected, found '$ranks'"
kill -KILL $job
# Not a process that has ended and that nobody has asked how.
lives() { [ -e "/proc/$1/status" ] && ! grep -q "^State:.Z" "/proc/$1/status"; }
for _ in $(seq 300); do
  left=
  for rank in $ranks; do lives "$rank" && left+=" $rank"; done
  [ -z "$left" ] && { echo "both ranks ended"; exit 0; }
  sleep 0.1
done
kill -KILL $left
fail "ranks$left were alive 30 s after their launcher"
