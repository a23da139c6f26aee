#!/usr/bin/env bash
# Images with any number of labels: a CSV file separates them by semicolons, --loss binary trains them.
# Usage: several_labels.sh TESSERA
set -u
tessera=$1
. "$(dirname "$0")/expect.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# Red, green and blue planes that are bright or dark, each by itself: labels that a network finds easily.
python3 - <<'P' || fail "images"
import random
random.seed(1)
def npy(name, light):
    head = "{'descr': '|u1', 'fortran_order': False, 'shape': (16, 16, 3), }"
    head += " " * (64 - (10 + len(head) + 1) % 64) + "\n"
    pixels = bytes(random.randrange(40) + (170 if light[c] else 30) for _ in range(256) for c in range(3))
    open(name, "wb").write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + pixels)
for part, count in (("train", 64), ("val", 24)):
    lines = ["path,label"]
    for i in range(count):
        light = [i >> c & 1 for c in range(3)]
        npy(f"{part}{i}.npy", light)
        lines.append(f"{part}{i}.npy," + ";".join(n for n, on in zip(("red", "green", "blue"), light) if on))
    open(part + ".csv", "w").write("\n".join(lines) + "\n")
P
train=("$tessera" train --model resnet_v1 --depth 8 --batch-size 8)
expect 2 "is several labels; use --loss binary" -- "${train[@]}" --datapath . --steps 1
expect 2 "--loss" "cross-entropy" -- "${train[@]}" --datapath . --loss hinge
expect 2 "--loss binary is for networks that label images" -- "$tessera" verify --model unet --image-size 32 --loss binary
expect 0 "mean AUC" -- "${train[@]}" --datapath . --loss binary --num-epochs 12 --lr 0.05 --eval-every 96 --checkpoint-dir run --json run.json \
  --keep-best auc --log-dir log
# The checkpoint knows its loss.
expect 0 "class" "precision" "red" "mean AUC" -- "$tessera" eval run --json eval.json
expect 2 "--loss cross-entropy contradicts" -- "$tessera" train --datapath . --resume auto --checkpoint-dir run --loss cross-entropy --num-epochs 13
expect 0 "p.csv" -- "$tessera" predict run -o p.csv --num-spatial-parts 4
python3 - <<'P' || fail "what was learnt"
import csv, json
during, later = json.load(open("run.json"))["evaluations"][-1], json.load(open("eval.json"))["evaluation"]
assert later["labels"] == "several" and later["labelled"] == 24 and len(later["by_class"]) == 3, later
assert during["by_class"] == later["by_class"] and abs(during["loss"] - later["loss"]) < 1e-6, (during, later)
assert later["auc"] > 0.9 and later["accuracy"] > 0.8, later
rows = list(csv.DictReader(open("p.csv")))
truth = {r["path"]: r["label"] for r in csv.DictReader(open("val.csv"))}
right = 0
for row in rows:
    name = row["path"].rsplit("/", 1)[-1]
    # Classes are numbered by their names.
    assert set(filter(None, row["label"].split(";"))) == set(filter(None, truth[name].split(";"))), row
    said = {n for n in ("red", "green", "blue") if float(row["p_" + n]) > 0.5}
    assert said == set(filter(None, row["predicted"].split(";"))), row
    right += sum((n in said) == (n in truth[name].split(";")) for n in ("red", "green", "blue"))
assert abs(right / 72 - later["accuracy"]) < 1e-9, (right, later["accuracy"])
P
# What is not known is not taken for "none".
mkdir plain && cp val3.npy val5.npy plain
expect 0 "2 images" "none of them labelled" -- "$tessera" predict run --datapath plain -o q.csv
expect 0 "1 image," "none of them labelled" -- "$tessera" predict run --datapath val3.npy -o q.csv
printf 'val3.npy\nval5.npy\n' > paths.csv
expect 0 "2 images" "none of them labelled" -- "$tessera" predict run --datapath paths.csv -o q.csv
expect 2 "line 1: no label" -- "${train[@]}" --datapath paths.csv --loss binary
# On plans, beside one device; weights of a yes, smoothing.
expect 0 "equal" -- "$tessera" verify --model resnet_v1 --depth 8 --image-size 19x17 --num-classes 4 --batch-size 4 --loss binary
expect 0 "equal" -- "$tessera" verify --model resnet_v1 --depth 8 --image-size 19x17 --num-classes 4 --batch-size 4 --loss binary \
  --class-weights 1,2,0.5,3 --label-smoothing 0.1 --parts 2 --split-size 2 --grid 2x2,1x1
[ "$failures" = 0 ] && echo "all good"
exit $((failures > 0))
