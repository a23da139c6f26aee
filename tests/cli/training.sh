#!/usr/bin/env bash
# What people expect of training: a part of the set held out by the seed, the best checkpoint kept, an early end.
# Usage: training.sh TESSERA
set -u
tessera=$1
. "$(dirname "$0")/expect.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
train=("$tessera" train --model resnet_v1 --depth 8 --image-size 16 --num-classes 3 --synthetic-images 50 --batch-size 5)

expect 0 "(10 images" "40 of synthetic" "step 16/16" -- "${train[@]}" --val-share 0.2 --num-epochs 2 --checkpoint-dir held --json held.json
# Evaluated later: the same ten images, with the same result; and those that it was trained on.
expect 0 "(10 images" -- "$tessera" eval held --json later.json
expect 0 "(40 images" -- "$tessera" eval held --split train
python3 - <<'P' || fail "what was held out is not what is evaluated later"
import json
during, later = json.load(open("held.json"))["evaluations"], json.load(open("later.json"))["evaluation"]
assert len(during) == 2, during
assert during[-1]["confusion"] == later["confusion"] and abs(during[-1]["loss"] - later["loss"]) < 1e-6, (during[-1], later)
P
expect 2 "--val-share 1.5" -- "${train[@]}" --val-share 1.5
mkdir empty && expect 2 "--val-share and --val-datapath" -- "$tessera" train --datapath empty --val-share 0.5 --val-datapath x

expect 0 "step 24/24" -- "${train[@]}" --steps 24 --eval-every 3 --lr 0.05 --checkpoint-dir run --keep 1 --keep-best loss --json run.json
expect 0 -- "$tessera" eval run/best --json best.json
python3 - <<'P' || fail "the best checkpoint"
import json, os
best = min(json.load(open("run.json"))["evaluations"], key=lambda e: e["loss"])
assert os.listdir("run/best") == ["step-%06d" % best["step"]], (os.listdir("run/best"), best)
now = json.load(open("best.json"))["evaluation"]["loss"]
assert abs(best["loss"] - now) < 1e-6, (best["loss"], now)
P
before=$(ls run/best)
expect 0 "step 27/27" -- "${train[@]}" --steps 27 --eval-every 3 --lr 1 --checkpoint-dir run --resume auto --keep-best loss
[ "$(ls run/best)" = "$before" ] || fail "a resumed run forgets the best: $(ls run/best), not $before"

# Nothing is learnt, so the first evaluation stays the best one (running statistics alone move on). Tiles agree on it.
expect 0 "stopped early: 2 evaluations without a better loss" "after step 2" -- "${train[@]}" --steps 50 --eval-every 2 --lr 0 \
  --weight-decay 0 --early-stop 2 --keep-best loss --checkpoint-dir early --num-spatial-parts 2 --checkpoint-every 50
[ "$(ls early | xargs)" = "best step-000006" ] || fail "an early end leaves: $(ls early)"
expect 2 "--early-stop" "--eval-every" -- "${train[@]}" --early-stop 2
expect 2 "--keep-best needs" -- "${train[@]}" --eval-every 2 --keep-best loss

expect 2 "--keep-best auc is for images of two classes" -- "${train[@]}" --eval-every 2 --keep-best auc --checkpoint-dir x
expect 2 "--keep-best mean_iou" -- "${train[@]}" --eval-every 2 --keep-best mean_iou --checkpoint-dir x

expect 0 "p.csv" -- "$tessera" predict held -o p.csv --logits
head -1 p.csv | grep -q "^index,label,predicted,p_0,p_1,p_2,logit_0,logit_1,logit_2$" || fail "columns: $(head -1 p.csv)"

[ $failures = 0 ] && echo "training as people expect it" || { echo "$failures checks failed"; exit 1; }
