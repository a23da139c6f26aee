#!/usr/bin/env bash
# Checkpoints as a user meets them: a run stops and goes on with another plan, on threads and under mpirun; its weights
# are exported and trained on; logs follow; and whatever is wrong with a checkpoint or the disk gets its message.
# Usage: checkpoints.sh TESSERA MPIRUN
set -u
tessera=$1
mpirun=$2
. "$(dirname "$0")/expect.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

network=(--model resnet_v1 --depth 8 --image-size 16 --synthetic-images 24 --dtype float64)
train=("$tessera" train "${network[@]}" --num-classes 3)
one=(--batch-size 4 --parts 2)
tiles=(--batch-size 4 --parts 2 --split-size 2 --num-spatial-parts 4) # 5 ranks
replicas=(--batch-size 2 --split-size 3 --replicas 2)                # 6 ranks
# same_losses FILE TOLERANCE: those of the whole run, from step 5 on.
same_losses() {
  python3 - "$1" "$2" <<'P' || fail "losses of $1"
import json, sys
whole, after = (json.load(open(f))["steps"] for f in ("whole.json", sys.argv[1]))
assert [s["step"] for s in after] == [5, 6, 7, 8], after
for a, b in zip(whole[4:], after):
    assert abs(a["loss"] - b["loss"]) <= float(sys.argv[2]) * a["loss"], (a, b)
P
}

expect 0 "step 8/8" -- "${train[@]}" "${tiles[@]}" --steps 8 --checkpoint-dir whole --json whole.json
expect 0 "step 4/4" -- "${train[@]}" "${tiles[@]}" --steps 4 --checkpoint-dir stopped --checkpoint-every 3 --log-dir log
[ "$(ls -A stopped | xargs)" = "step-000003 step-000004" ] || fail "checkpoints: $(ls -A stopped)"
for plan in same one mpi replicas; do cp -r stopped "$plan"; done

expect 0 "goes on from same/step-000004" -- "${train[@]}" "${tiles[@]}" --steps 8 --checkpoint-dir same --resume auto \
  --json same.json --log-dir log
same_losses same.json 0
expect 0 "goes on from one/step-000004" -- "${train[@]}" "${one[@]}" --steps 8 --checkpoint-dir one --resume auto --json one.json
same_losses one.json 1e-10
expect 0 "goes on from mpi/step-000004" -- "$mpirun" -np 5 "${train[@]}" "${tiles[@]}" --steps 8 --checkpoint-dir mpi \
  --resume auto --json mpi.json --keep 1
same_losses mpi.json 1e-10
[ "$(ls -A mpi)" = "step-000008" ] || fail "--keep 1 keeps: $(ls -A mpi)"
expect 0 "goes on from replicas/step-000004" -- "$mpirun" -np 6 "${train[@]}" "${replicas[@]}" --steps 8 \
  --checkpoint-dir replicas --resume replicas/step-000004 --json replicas.json
same_losses replicas.json 1e-10

# On the same plan the weights are the same bytes.
expect 0 "56 tensors" "after 8 steps" -- "$tessera" export whole --output whole.safetensors
expect 0 -- "$tessera" export same/step-000008 -o same.safetensors --quiet
cmp whole.safetensors same.safetensors || fail "weights after an interruption"
expect 0 "all 8 steps are done" -- "${train[@]}" "${one[@]}" --steps 8 --checkpoint-dir one --resume auto

# One line a step, none of them twice; an event file for each start.
python3 -c "
import json; steps = [json.loads(l)['step'] for l in open('log/metrics.jsonl')]; assert steps == list(range(1, 9)), steps
" || fail "metrics.jsonl"
[ "$(ls log/events.out.tfevents.* | wc -l)" = 2 ] || fail "event files: $(ls log)"
expect 2 "--log-dir log" "another run" -- "${train[@]}" "${one[@]}" --steps 1 --log-dir log

# Weights to start from: all, or with a new head; the resumed run has its own.
expect 0 "56 tensors from whole.safetensors" -- "${train[@]}" "${one[@]}" --steps 1 --init-from whole.safetensors
expect 0 -- "${train[@]}" "${one[@]}" --steps 1 --init-from whole.safetensors --json from_one.json
expect 0 -- "${train[@]}" "${tiles[@]}" --steps 1 --init-from whole.safetensors --json from_tiles.json
python3 -c "
import json; a, b = (json.load(open(f))['steps'][0]['loss'] for f in ('from_one.json', 'from_tiles.json'))
assert abs(a - b) <= 1e-12 * a, (a, b)
" || fail "losses of one rank and of tiles that start from the same weights"
expect 0 "54 tensors from whole/step-000008" "fc.weight, fc.bias" "starts anew" -- \
  "$tessera" train "${network[@]}" --num-classes 5 "${one[@]}" --steps 1 --init-from whole/step-000008
expect 0 "no checkpoint in fresh yet" -- "${train[@]}" "${one[@]}" --steps 1 --checkpoint-dir fresh --resume auto
expect 0 "goes on from fresh" -- "${train[@]}" "${one[@]}" --steps 2 --checkpoint-dir fresh --resume auto \
  --init-from whole.safetensors

# Weights and checkpoints that do not fit: what differs, by name.
other=("$tessera" train --model resnet_v1 --depth 14 --image-size 16 --num-classes 3 --synthetic-images 24 --batch-size 4)
expect 2 "--init-from whole.safetensors" "layer1.1.conv1.weight" -- "${other[@]}" --steps 9 --init-from whole.safetensors
expect 2 "--depth 14 contradicts whole" "--depth 8" -- "${other[@]}" --steps 9 --resume whole
expect 2 "4 images per step, and this run has 8" "--batch-size" -- "${train[@]}" --batch-size 8 --steps 9 --resume whole/step-000008
expect 2 "--seed 0, not 7" -- "${train[@]}" "${one[@]}" --steps 9 --seed 7 --resume whole
expect 2 "has the state of sgd, not of adam" -- "${train[@]}" "${one[@]}" --steps 9 --optimizer adam --resume whole
expect 2 "another size" -- "$tessera" train --model resnet_v1 --depth 8 --image-size 16 --synthetic-images 8 \
  --num-classes 3 "${one[@]}" --steps 9 --resume whole
expect 2 "whole/step-000007" -- "${train[@]}" "${one[@]}" --steps 9 --resume whole/step-000007
expect 2 "holds step-000008" "--resume auto" -- "${train[@]}" "${one[@]}" --steps 9 --checkpoint-dir whole
expect 2 "--checkpoint-dir whole: another run" -- flock whole "${train[@]}" "${one[@]}" --steps 9 --checkpoint-dir whole \
  --resume auto
expect 2 "--resume auto needs --checkpoint-dir" "--keep needs" -- "${train[@]}" "${one[@]}" --resume auto --keep 3
expect 2 "--checkpoint-every 0" -- "${train[@]}" "${one[@]}" --checkpoint-dir new --checkpoint-every 0
expect 2 "leave out --init-from" -- "${train[@]}" "${one[@]}" --resume whole --init-from whole.safetensors
expect 2 "nowhere" -- "$tessera" export nowhere -o w.safetensors
expect 2 "--output nowhere/w" -- "$tessera" export whole -o nowhere/w
head -c 3000 whole.safetensors >cut.safetensors
expect 2 "cut.safetensors" -- "${train[@]}" "${one[@]}" --steps 1 --init-from cut.safetensors
# One message, not one a rank.
[ "$("$mpirun" -np 2 "${train[@]}" "${one[@]}" --split-size 2 --steps 9 --resume nowhere 2>&1 | grep -c 'resume nowhere: there is no such checkpoint')" = 1 ] ||
  fail "a missing checkpoint under mpirun"

# A damaged checkpoint: named and passed over, or refused where it was asked for by name.
truncate -s -1 stopped/step-000004/optimizer-00002-of-00002.safetensors
expect 2 "optimizer-00002-of-00002.safetensors" "damaged" -- "${train[@]}" "${one[@]}" --steps 8 --resume stopped/step-000004
expect 0 "step-000004 is passed over" "optimizer-00002" "goes on from stopped/step-000003" -- \
  "${train[@]}" "${one[@]}" --steps 5 --checkpoint-dir stopped --resume auto
expect 0 "goes on from stopped/step-000005" -- "${train[@]}" "${one[@]}" --steps 8 --checkpoint-dir stopped --resume auto
printf '\377' | dd of=mpi/step-000008/model-00001-of-00002.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null
expect 2 "model-00001-of-00002.safetensors is damaged" "no whole checkpoint" -- \
  "${train[@]}" "${one[@]}" --steps 9 --checkpoint-dir mpi --resume auto
expect 2 "model-00001-of-00002.safetensors is damaged" -- "$tessera" export mpi/step-000008 -o w.safetensors

# A place that nobody may write to.
expect 2 "/sys/tessera" -- "${train[@]}" "${one[@]}" --steps 1 --checkpoint-dir /sys/tessera
expect 2 "--log-dir /sys/tessera" -- "${train[@]}" "${one[@]}" --steps 1 --log-dir /sys/tessera

# A full disk, which a limit on the size of files stands for: the old checkpoint stays. Training goes on with a warning,
# though a run whose last checkpoint is not there has failed; or it stops.
limited=(bash -c 'ulimit -f 100; exec "$@"' limited)
"$tessera" train "${network[@]}" --num-classes 3 "${one[@]}" --steps 2 --checkpoint-dir full --quiet || fail "exit code $?"
expect 1 "warning: no checkpoint of step 3 in full" "step 4/4" "no checkpoint of step 4" -- \
  "${limited[@]}" "${train[@]}" "${one[@]}" --steps 4 --checkpoint-dir full --resume auto --checkpoint-every 1
expect 1 "tessera: no checkpoint of step 3 in full" -- \
  "${limited[@]}" "${train[@]}" "${one[@]}" --steps 400 --checkpoint-dir full --resume auto --checkpoint-every 1 --on-save-error stop
expect 1 "no checkpoint of step 3 in full" -- "${limited[@]}" "${train[@]}" "${one[@]}" --split-size 2 \
  --steps 400 --checkpoint-dir full --resume auto --checkpoint-every 1 --on-save-error stop
[ "$(ls -A full)" = "step-000002" ] || fail "a full disk leaves: $(ls -A full)"
expect 0 "goes on from full/step-000002" -- "${train[@]}" "${one[@]}" --steps 3 --checkpoint-dir full --resume auto

[ $failures = 0 ] && echo "all is well with checkpoints" || { echo "$failures checks failed"; exit 1; }
