#!/usr/bin/env bash
# killed.sh MPIEXEC TESSERA: a rank that is killed in the middle of training takes the job down within seconds.
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
fail() { echo "FAILED: $*"; cat "$log"; exit 1; }

# Two tiles and a stage behind them: the others wait for the one that goes, in an exchange or in a norm.
"$1" -np 3 "$2" train --model resnet_v1 --depth 8 --image-size 32 --batch-size 4 --steps 1000000 --verbose \
  --num-spatial-parts 2 --split-size 2 >"$log" 2>&1 &
job=$!
for _ in $(seq 1200); do
  grep -q "step 3/" "$log" && break
  kill -0 $job 2>/dev/null || fail "the job ended before anybody was killed"
  sleep 0.1
done
grep -q "step 3/" "$log" || fail "no third step after 120 s"
victim=$(pgrep -P $job -f "train --model" | sed -n 2p)
[ -n "$victim" ] || fail "no rank found to kill"
kill -KILL "$victim"
start=$SECONDS
wait $job
status=$?
[ $((SECONDS - start)) -le 20 ] || fail "the job took $((SECONDS - start)) s to end"
[ $status -ne 0 ] || fail "the job ended as if all were well"
grep -qi "signal 9" "$log" || fail "no message about the killed rank"
echo "the job ended with $status after $((SECONDS - start)) s"
