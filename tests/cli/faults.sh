#!/usr/bin/env bash
# Longer faults: runs that are killed at random moments, over random plans, intervals and ways to start; disks that are
# full or become read-only; file systems without locks; clocks that jump. Nothing is lost that was saved.
# Usage: faults.sh TESSERA MPIRUN [KILLS [SEED]]
set -u
tessera=$1 mpirun=$2 kills=${3:-12} seed=${4:-$((SRANDOM % 32768))}
. "$(dirname "$0")/expect.sh"
RANDOM=$seed
work=$(mktemp -d)
mounted=()
trap 'for m in "${mounted[@]}"; do umount -l "$m"; done; rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
pick() { local i=$((1 + RANDOM % $#)); REPLY=${!i}; } # no subshell: it would draw from another stream
newest() { { ls "$1" 2>/dev/null || true; } | tail -n 1; }

# Float64, two images normalised together on every plan: what comes out is the same but for rounding.
network=(--model resnet_v1 --depth 8 --image-size 8 --num-classes 3 --synthetic-images 64 --dtype float64
  --threads 1 --lr 0.001)
two="--batch-size 2 --replicas 1 --batch-norm micro" # a run that goes on would take the last one's replicas
plans=("1 $two" "2 $two --split-size 2" "2 $two --num-spatial-parts 2" "4 $two --grid 2x2"
  "3 $two --split-size 2 --num-spatial-parts 2" "4 $two --split-size 2 --num-spatial-parts 2 --local-DP 2"
  "2 --batch-size 1 --replicas 2 --batch-norm global")

# ---- kills
run=killed_$$ # no other test's processes have it in their command line
alive() { grep -qsa "[k]illed_$$" /proc/[0-9]*/cmdline; } # the pattern does not find itself
killed=0 by_mpirun=0 starting=0 writing=0
declare -A of_plan
while ((killed < kills)); do
  pick "${plans[@]}" && plan=$REPLY
  pick 1 3 20 200 && every=$REPLY
  # shellcheck disable=SC2206
  words=($plan) start=()
  pick threads threads launcher rank && how=$REPLY
  [ "$how" = threads ] || [ "${words[0]}" = 1 ] || start=("$mpirun" -np "${words[0]}")
  before=$(newest $run)
  "${start[@]}" "$tessera" train "${network[@]}" "${words[@]:1}" --steps 1000000 --checkpoint-dir $run --keep 2 \
    --resume auto --checkpoint-every "$every" >log 2>&1 &
  pid=$!
  if ((RANDOM % 5 == 0)); then # at any moment, most likely while it starts
    sleep "0.$((RANDOM % 9 + 1))"
  else # some time after it has gone on
    for ((i = 0; i < 3000; ++i)); do
      [ "$(newest $run)" != "$before" ] && break
      kill -0 $pid 2>/dev/null || break
      sleep 0.01
    done
    [ "$(newest $run)" != "$before" ] || { fail "no progress from $before: $plan, $(tail -n 3 log)"; break; }
    sleep "0.$(printf %03d $((RANDOM % 400)))"
  fi
  saved=$(newest $run)
  victim=$pid
  if [ "$how" = rank ] && [ ${#start[@]} -gt 0 ]; then
    ranks=() # the file has no end of line, so read fails though it has read
    read -r -a ranks 2>/dev/null <"/proc/$pid/task/$pid/children" || true
    [ ${#ranks[@]} -gt 0 ] && pick "${ranks[@]}" && victim=$REPLY
  fi
  kill -9 "$victim" 2>/dev/null || { fail "a run ended by itself: $plan, $(tail -n 3 log)"; break; }
  wait $pid 2>/dev/null
  for ((i = 0; i < 2000; ++i)); do alive || break; sleep 0.01; done
  alive && { fail "ranks live on: $plan, $how"; break; }
  [[ "$(newest $run)" < "$saved" ]] && fail "lost: $saved was there, now $(newest $run)"
  grep -q "passed over" log && fail "a damaged checkpoint: $plan, $(grep "passed over" log)"
  if [ -n "$before" ] && grep -q "goes on from" log; then
    grep -q "goes on from $run/$before" log || fail "did not go on from $before: $(grep "goes on" log)"
  fi
  killed=$((killed + 1))
  [ ${#start[@]} -gt 0 ] && by_mpirun=$((by_mpirun + 1))
  [ "$saved" = "$before" ] && starting=$((starting + 1))
  compgen -G "$run/.step-*" >/dev/null && writing=$((writing + 1))
  of_plan[$plan]=$((${of_plan[$plan]:-0} + 1))
done
reached=$((10#$(newest $run | tr -dc 0-9) + 10))
expect 0 "step $reached/$reached" -- "$tessera" train "${network[@]}" $two --steps $reached --checkpoint-dir $run --keep 2 --resume auto
expect 0 "step $reached/$reached" -- "$tessera" train "${network[@]}" $two --steps $reached --checkpoint-dir whole --checkpoint-every $reached
for name in $run whole; do "$tessera" export $name -o ${name/$run/run}.safetensors --quiet || fail "export of $name"; done
apart=$(python3 - <<'P'
import json, struct
def load(name):
    data = open(name, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {k: struct.unpack_from("<%dd" % ((t["data_offsets"][1] - t["data_offsets"][0]) // 8), data, 8 + size + t["data_offsets"][0])
            for k, t in header.items() if k != "__metadata__" and t["dtype"] == "F64"}
a, b = load("run.safetensors"), load("whole.safetensors")
assert a.keys() == b.keys() and len(a) > 20
print("%.1e" % max((sum((x - y) ** 2 for x, y in zip(a[k], b[k])) / (1e-30 + sum(y * y for y in b[k]))) ** .5 for k in a))
P
)
python3 -c "exit(not float('${apart:-inf}') < 1e-6)" || fail "the weights differ by ${apart:-?} from those of a run that nobody killed"
echo "$killed kills (seed $seed), $by_mpirun of them under mpirun, $writing while a checkpoint was written, $starting before one;"
echo "  $reached steps; beside a run that nobody killed $apart; plans: $(for p in "${!of_plan[@]}"; do printf '[%s] %s ' "$p" "${of_plan[$p]}"; done)"

# ---- disks
small=("$tessera" train "${network[@]}" $two --split-size 2)
if mkdir disk && mount -t tmpfs -o size=4m tmpfs disk 2>/dev/null; then
  mounted+=("$work/disk")
  for start in "" "$mpirun -np 2"; do
    rm -rf disk/*
    mount -o remount,size=4m disk
    # A checkpoint takes 1.3 MB: three do not fit.
    expect 1 "no checkpoint of step" "step 9/9" -- $start "${small[@]}" --steps 9 --checkpoint-dir disk/run --keep 3 --checkpoint-every 1
    last=$(newest disk/run)
    [ -n "$last" ] || fail "a full disk leaves nothing"
    compgen -G "disk/run/.step-*" >/dev/null && fail "a full disk leaves $(ls -A disk/run)"
    mount -o remount,size=16m disk
    expect 0 "goes on from disk/run/$last" -- $start "${small[@]}" --steps 12 --checkpoint-dir disk/run --keep 1 --checkpoint-every 9 --resume auto

    # Read-only, all at once.
    rm -rf disk/*
    $start "${small[@]}" --steps 3000 --checkpoint-dir disk/run --keep 2 --checkpoint-every 1 >ro.log 2>&1 &
    pid=$!
    for ((i = 0; i < 2000; ++i)); do [ -n "$(newest disk/run)" ] && break; sleep 0.01; done
    for ((i = 0; i < 2000; ++i)); do mount -o remount,ro disk 2>/dev/null && break; done
    last=$(newest disk/run)
    wait $pid
    code=$?
    [ $code = 1 ] && grep -q "no checkpoint of step 3000" ro.log || fail "a disk that is read-only: exit code $code, $(tail -n 3 ro.log)"
    mount -o remount,rw disk
    expect 0 "goes on from disk/run/$last" -- $start "${small[@]}" --steps 3001 --checkpoint-dir disk/run --keep 1 --resume auto --checkpoint-every 3001
  done
  echo "full and read-only disks, ranks as threads and as processes: done"
else
  echo "full and read-only disks: skipped, this user may not mount"
fi

# ---- file systems and clocks
if command -v cc >/dev/null; then
  cat >no_locks.c <<'C'
#include <errno.h>
int flock(int fd, int how) { (void)fd, (void)how; errno = ENOLCK; return -1; }
int link(const char* a, const char* b) { (void)a, (void)b; errno = EPERM; return -1; }
int linkat(int a, const char* b, int c, const char* d, int e) { (void)a, (void)b, (void)c, (void)d, (void)e; errno = EPERM; return -1; }
int renameat2(int a, const char* b, int c, const char* d, unsigned e) { (void)a, (void)b, (void)c, (void)d, (void)e; errno = EINVAL; return -1; }
C
  cat >jumping_clock.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>
// Every look at the calendar is a day off, one way or the other; clocks that only go on do so.
static long jump(void) { static long n; return (__sync_fetch_and_add(&n, 1) % 3 - 1) * 86400; }
int clock_gettime(clockid_t id, struct timespec* t) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int code = real(id, t);
  if (id == CLOCK_REALTIME) t->tv_sec += jump();
  return code;
}
time_t time(time_t* to) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (to) *to = t.tv_sec; return t.tv_sec; }
int gettimeofday(struct timeval* t, void* zone) {
  (void)zone; struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000; return 0;
}
C
  for fault in no_locks jumping_clock; do
    cc -shared -fPIC -O1 $fault.c -o $fault.so -ldl || { fail "$fault.c does not compile"; continue; }
    for start in "" "$mpirun -np 2"; do
      rm -rf odd
      for steps in 20 40; do
        expect 0 "step $steps/$steps" -- $start env LD_PRELOAD="$work/$fault.so" "${small[@]}" --steps $steps \
          --checkpoint-dir odd --checkpoint-every 5 --keep 2 --resume auto --timeout 60 --log-dir "log_$fault"
      done
      [ "$(newest odd)" = step-000040 ] || fail "$fault: $(ls -A odd)"
    done
  done
  rm -rf odd_plain
  expect 0 "step 40/40" -- "${small[@]}" --steps 40 --checkpoint-dir odd_plain --checkpoint-every 40
  for name in odd odd_plain; do "$tessera" export $name -o $name.safetensors --quiet; done
  cmp odd.safetensors odd_plain.safetensors || fail "other weights when the clock jumps"
  echo "no locks, no hard links, clocks that jump: done"
else
  echo "no locks, clocks that jump: skipped, there is no C compiler"
fi

[ $failures = 0 ] && echo "all faults survived" || { echo "$failures checks failed"; exit 1; }
