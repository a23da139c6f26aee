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

expect 2 "--keep-best auc is for images of two classes, or with --loss binary" -- "${train[@]}" --eval-every 2 --keep-best auc --checkpoint-dir x
expect 2 "--keep-best mean_iou" -- "${train[@]}" --eval-every 2 --keep-best mean_iou --checkpoint-dir x

expect 0 "p.csv" -- "$tessera" predict held -o p.csv --logits
head -1 p.csv | grep -q "^index,label,predicted,p_0,p_1,p_2,logit_0,logit_1,logit_2$" || fail "columns: $(head -1 p.csv)"

# Where the network looked: the mean of a class's map is its logit. Tiles make the same maps.
if "$tessera" --version | grep -qE "libvips +[0-9]"; then
expect 2 "--heatmap" -- "$tessera" predict held -o m.csv --heatmap /proc/none
expect 0 "m.csv" -- "$tessera" predict held -o m.csv --heatmap maps --logits
expect 0 "t.csv" -- "$tessera" predict held -o t.csv --heatmap tiles --logits --num-spatial-parts 4
python3 - <<'P' || fail "maps"
import csv, glob, os, struct, zlib

def tags(data):
    """Of a BigTIFF file with one image."""
    assert data[:4] == b"II+\0", data[:4]
    at = struct.unpack_from("<Q", data, 8)[0]
    found = {}
    for i in range(struct.unpack_from("<Q", data, at)[0]):
        tag, kind, count = struct.unpack_from("<HHQ", data, at + 8 + 20 * i)
        letter = {1: "B", 2: "B", 3: "H", 4: "I", 5: "Q", 7: "B", 12: "d", 16: "Q"}[kind]
        size = struct.calcsize(letter) * count
        place = at + 20 + 20 * i if size <= 8 else struct.unpack_from("<Q", data, at + 20 + 20 * i)[0]
        found[tag] = struct.unpack_from("<%d%s" % (count, letter), data, place)
    return found

def planes(path):
    data = open(path, "rb").read()
    t = tags(data)
    width, height, channels, tile = t[256][0], t[257][0], t[277][0], t[322][0]
    assert t[339][0] == 3 and t[258][0] == 32 and t.get(317, (1,))[0] == 1, t  # float32, no predictor
    assert width <= tile and height <= t[323][0]
    values = struct.unpack("<%df" % (tile * t[323][0] * channels), zlib.decompress(data[t[324][0]:t[324][0] + t[325][0]]))
    return [[values[(y * tile + x) * channels + c] for y in range(height) for x in range(width)] for c in range(channels)]

rows = list(csv.DictReader(open("m.csv")))
assert len(rows) == 10 and len(glob.glob("maps/*.tif")) == len(glob.glob("maps/*.jpg")) == 10, os.listdir("maps")
for row in rows:
    name = row["index"] + ".tif"
    whole, parts = planes("maps/" + name), planes("tiles/" + name)
    assert len(whole) == 3 and len(whole[0]) > 1
    for k in range(3):
        mean = sum(whole[k]) / len(whole[k])
        assert abs(mean - float(row["logit_%d" % k])) < 1e-4 * (1 + abs(mean)), (name, k, mean, row)
        assert max(abs(a - b) for a, b in zip(whole[k], parts[k])) < 1e-3, (name, k)
        assert max(whole[k]) - min(whole[k]) > 1e-3, "a map without a picture"
P
else
  expect 2 "libvips" -- "$tessera" predict held -o m.csv --heatmap maps
fi

# A moving average of the weights is what is saved, evaluated and exported; the run itself goes on without it.
ema=("${train[@]}" --steps 6 --lr 0.05 --eval-every 3)
expect 0 "step 6/6" -- "${ema[@]}" --checkpoint-dir plain --checkpoint-every 1
expect 0 "step 6/6" -- "${ema[@]}" --checkpoint-dir ema --ema 0.6 --checkpoint-every 2 --json ema.json
expect 0 "step 6/6" -- "${ema[@]}" --checkpoint-dir ema_tiles --ema 0.6 --num-spatial-parts 4
for step in 1 2 3 4 5 6; do expect 0 -- "$tessera" export plain/step-00000$step --output plain$step.safetensors; done
expect 0 -- "$tessera" export ema --output ema.safetensors
expect 0 -- "$tessera" export ema_tiles --output ema_tiles.safetensors
rm -rf ema/step-000006 ema/step-000004
expect 0 "step 6/6" -- "${ema[@]}" --checkpoint-dir ema --ema 0.6 --resume auto
expect 0 -- "$tessera" export ema --output resumed.safetensors
expect 0 -- "$tessera" eval ema --json ema_later.json
expect 2 "with averaged weights" "--ema" -- "${train[@]}" --steps 7 --checkpoint-dir ema --resume auto --ema 0
expect 2 "--ema 1" -- "${ema[@]}" --ema 1
python3 - <<'P' || fail "moving averages"
import json, struct

def load(name):
    data = open(name + ".safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for key, t in header.items():
        if key == "__metadata__" or t["dtype"] != "F32": continue
        begin, end = (8 + size + o for o in t["data_offsets"])
        out[key] = struct.unpack("<%df" % ((end - begin) // 4), data[begin:end])
    return out

steps = [load("plain%d" % s) for s in range(1, 7)]
ema, resumed, tiles = load("ema"), load("resumed"), load("ema_tiles")
assert ema == resumed, "a resumed run has another average"
norms = [k for k in ema if k.endswith("running_var")]
assert norms and steps[0].keys() == ema.keys()
for key in ema:
    assert max(abs(a - b) for a, b in zip(ema[key], tiles[key])) < 1e-4, key
    apart = [a - b for a, b in zip(ema[key], steps[5][key])]
    assert any(apart), key + " is not averaged"
later = json.load(open("ema_later.json"))["evaluation"]["loss"]
during = json.load(open("ema.json"))["evaluations"][-1]["loss"]
assert abs(during - later) < 1e-5, (during, later)
# Weights whose first values are known: norms begin with weight 1, bias 0, running_var 1.
for suffix, first in (("weight", 1.0), ("bias", 0.0), ("running_var", 1.0)):
    key = norms[0].replace("running_var", suffix)
    average = [first] * len(ema[key])
    for t, step in enumerate(steps):
        d = min(0.6, (1 + t) / (10 + t))
        average = [d * a + (1 - d) * v for a, v in zip(average, step[key])]
    assert max(abs(a - b) for a, b in zip(average, ema[key])) < 1e-5, (key, average, ema[key])
P

[ $failures = 0 ] && echo "training as people expect it" || { echo "$failures checks failed"; exit 1; }
