#!/usr/bin/env bash
# From a folder of images to a report, as somebody new types it: no command needs more than three flags.
# Usage: persons_path.sh TESSERA
set -u
tessera=$1
. "$(dirname "$0")/expect.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

python3 - <<'P'
import os
def write(path, k, i):
    pixels = bytes(v for y in range(24) for x in range(20)
                   for v in (((x + i) // (k + 1) % 2) * 200, (7 * y + i) % 90, 40 * k + i))
    open(path, "wb").write(b"P6 20 24 255\n" + pixels)
for k, name in enumerate(("blue", "green", "red")):
    os.makedirs(f"data/{name}")
    for i in range(12): write(f"data/{name}/{i}.ppm", k, i)
os.makedirs("new")
for k in range(3): write(f"new/{k}.ppm", k, 20)
P

# The run is kept without being asked, the network is one that suits image files, and the next commands are named.
expect 0 "resnet18 on data: 36 images as 3x24x20, 3 classes" "no validation set" "--val-share 0.1" "1 step per epoch" \
  "step 3/3" "kept in runs/1" "tessera eval runs/1" "tessera report runs/1" -- "$tessera" train --datapath data --num-epochs 3
[ "$(ls runs/1 | xargs)" = "log step-000002 step-000003" ] || fail "runs/1 holds $(ls runs/1 | xargs)"
expect 0 "warning: these are the images that runs/1 was trained on" "as red" -- "$tessera" eval runs/1
expect 0 "predictions.csv: 3 images, none of them labelled" "maps: a map" -- "$tessera" predict runs/1 --datapath new --heatmap maps
grep -q "^path,label,predicted,p_blue,p_green,p_red" predictions.csv || fail "predictions: $(head -1 predictions.csv)"
[ "$(ls maps | xargs)" = "0.jpg 0.tif 1.jpg 1.tif 2.jpg 2.tif" ] || fail "maps: $(ls maps | xargs)"
expect 0 "report.html: 1 run" -- "$tessera" report runs/1
grep -q "resnet18" report.html || fail "the report does not name the network"
expect 0 "goes on from runs/1/step-000003" "step 4/4" -- "$tessera" train --run runs/1 --resume auto --num-epochs 4

# The next run has the next number; one that cannot start leaves none; trials and --run none keep nothing.
expect 0 "validation" "kept in runs/2" -- "$tessera" train --datapath data --val-share 0.1
expect 2 "--lr -1" -- "$tessera" train --datapath data --lr -1
expect 0 "nothing of this run is kept" -- "$tessera" train --datapath data --steps 1
expect 0 "step 1/1" -- "$tessera" train --datapath data --run none
[ "$(ls runs | xargs)" = "1 2" ] || fail "runs: $(ls runs | xargs)"
# A place where nothing can be written.
mkdir elsewhere && cd elsewhere && touch runs
expect 2 "cannot be kept in runs/" "--run DIR" "--run none" -- "$tessera" train --datapath ../data --num-epochs 1
[ $failures = 0 ] && echo "the path is walked" || { echo "$failures failed"; exit 1; }
