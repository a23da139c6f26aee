#!/usr/bin/env bash
# several_hosts.sh MPIRUN TESSERA exact|killed|link: ranks on several hosts are exact, and no fault of a host or link hangs
# the others, leaves one behind, or takes the last checkpoint with it.
set -u
mpirun=$1
tessera=$2
. "$(dirname "$0")/hosts.sh"
log=$hosts_work/log
fail() { echo "FAILED: $*"; cat "$log"; exit 1; }
small=(--image-size 19x17 --num-classes 3)
resnet=(--model resnet_v1 --depth 8)

make_hosts 3

# exact HOSTS FLAGS...: the plan, spread over these hosts, trains like one device. Ranks of one host talk through shared
# memory, the others through the net.
exact() {
  local list=$1
  shift
  local network=("${resnet[@]}")
  [[ "$*" == *--model* ]] && network=()
  on_hosts "$list" "$tessera" verify "${small[@]}" "${network[@]}" --steps 2 --timeout 120 "$@" >"$log" 2>&1 ||
    fail "$list: verify $*"
  grep -q "^equal" "$log" || fail "$list: no verdict on $*"
  echo "exact on $list: $*"
}
if [ "$3" = exact ]; then
  exact h1:2,h2:2 --batch-size 2 --grid 2x2
  exact h1:1,h2:2,h3:1 --batch-size 4 --parts 2 --split-size 2 --grid 3x1 --halo-D2
  exact h1:2,h2:2 --batch-size 2 --replicas 4 --grad-sync hierarchical --clip-norm 0.1
  exact h1:1,h2:1,h3:1 --batch-size 4 --parts 2 --split-size 3 --schedule chimera
  exact h1:1,h2:1 --batch-size 4 --parts 2 --split-size 2 --schedule gems-master
  exact h1:1,h2:1,h3:1 --batch-size 6 --parts 3 --split-size 3 --schedule zero-bubble
  exact h1:1,h2:2,h3:1 --batch-size 4 --parts 2 --split-size 2 --grid 1x2 --spatial-size 1 --local-DP 2
  exact h1:2,h2:2 --batch-size 4 --split-size 2 --replicas 2 --num-hp 2 --batch-norm global
  exact h1:1,h2:1 --batch-size 2 --grid 1x2 --turns 2x1
  exact h1:1,h2:1,h3:1 --batch-size 2 --grid 3x1 --model unet --num-layers 2 --num-filters 3
  limit h2 100mbit
  exact h1:1,h2:1 --batch-size 2 --grid 1x2
exit 0
fi

# How many ranks are left on all hosts. The launcher's own processes are not ours to end: behind a link that is down they
# wait for minutes.
alive() {
  local host pid count=0
  for host in "${hosts[@]}"; do
    for pid in $(ip netns pids "$hosts_tag$host"); do
      [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$(basename "$tessera")" ] && count=$((count + 1))
    done
  done
  echo $count
}
# nobody_left SECONDS: all ranks end within that time.
nobody_left() {
  local start=$SECONDS
  while [ "$(alive)" != 0 ]; do
    [ $((SECONDS - start)) -lt "$1" ] || fail "after $1 s there are still $(alive) ranks"
    sleep 0.5
  done
}
end_launchers() {
  local host
  for host in "${hosts[@]}"; do ip netns pids "$hosts_tag$host" | xargs -r kill -KILL 2>/dev/null; done
}
# training HOSTS FLAGS...: starts a run that saves as it goes, and returns at its third checkpoint.
saved=$hosts_work/saved
training() {
  local list=$1
  shift
  rm -rf "$saved"
  on_hosts "$list" "$tessera" train "${small[@]}" "${resnet[@]}" --batch-size 4 --steps 1000000 --checkpoint-dir "$saved" \
    --checkpoint-every 2 --keep 2 --timeout 20 "$@" >"$log" 2>&1 &
  job=$!
  for _ in $(seq 1800); do
    [ -n "$(find "$saved" -maxdepth 1 -name 'step-*' 2>/dev/null | sed 's/.*step-0*//' | awk '$1 >= 6')" ] && return
    kill -0 $job 2>/dev/null || fail "the run ended before anything was done to it"
    sleep 0.1
  done
  fail "no third checkpoint after 180 s"
}
# goes_on WORDS: what was saved last is whole, and a run on one host goes on from it.
goes_on() {
  on_hosts h1:2 "$tessera" train "${small[@]}" "${resnet[@]}" --batch-size 4 --replicas 1 --grid 1x2 --checkpoint-dir "$saved" \
    --resume auto --steps 100000 --timeout 60 --verbose >"$log" 2>&1 &
  local run=$!
  for _ in $(seq 1200); do
    grep -q "^step " "$log" && break
    kill -0 $run 2>/dev/null || break
    sleep 0.1
  done
  grep -q "^step " "$log" || fail "$1: --resume auto on fewer hosts does not go on"
  end_launchers
  wait $run
  echo "$1: nobody left behind, and the run went on with one host"
}

if [ "$3" = link ]; then
# A link that goes down in the middle of a step: silence on the line, for everybody.
training h1:2,h2:2 --grid 2x2
link h2 down
nobody_left 90
link h2 up
end_launchers
wait $job && fail "the run ended as if all were well"
grep -q "rank [0-9] on host h[12] has waited .* for rank [0-9] on host h[12]" "$log" || fail "no line said who waits for whom"
goes_on "a link down"
exit 0
fi

# A host that is gone at once.
training h1:2,h2:1 --split-size 2 --grid 2x1
ip netns pids "${hosts_tag}h2" | xargs -r kill -KILL
nobody_left 60
end_launchers
wait $job && fail "the run ended as if all were well"
grep -q "h2" "$log" || fail "no message names the host that is gone"
goes_on "a host killed"
