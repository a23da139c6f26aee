#!/usr/bin/env bash
# Checkpoints and exported weights say what they are: eval, predict and train --resume need nothing else, and a flag
# that contradicts them is an error with both values.
# Usage: describes_itself.sh TESSERA
set -u
tessera=$1
. "$(dirname "$0")/expect.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# Three classes of stripes, told apart by their distance: shrunk to another size they look like each other.
python3 - <<'P'
import os
for split, count in (("train", 8), ("val", 4)):
    for k, name in enumerate(("blue", "green", "red")):
        os.makedirs(f"data/{split}/{name}", exist_ok=True)
        for i in range(count):
            pixels = bytes(v for y in range(24) for x in range(20)
                           for v in (((x + i) // (k + 1) % 2) * 200, (7 * y + i) % 90, 40 * k + i))
            open(f"data/{split}/{name}/{i}.ppm", "wb").write(b"P6 20 24 255\n" + pixels)
P
how=(--app medical --model resnet_v1 --depth 8 --num-classes 3 --image-size 24x20 --mean 0.4,0.3,0.2 --std 0.3,0.2,0.1)
expect 0 "step 6/6" -- "$tessera" train "${how[@]}" --datapath data --batch-size 6 --steps 6 --lr 0.05 --checkpoint-dir run

# result FILE: what an evaluation came to.
result() { python3 -c "import json; e = json.load(open('$1'))['evaluation']; print(e['loss'], e['accuracy'], e['confusion'])"; }
expect 0 -- "$tessera" eval "${how[@]}" --weights run --datapath data --json flags.json
expect 0 "run" "as red" -- "$tessera" eval run --datapath data --json run.json
[ "$(result run.json)" = "$(result flags.json)" ] || fail "eval RUN: $(result run.json), not $(result flags.json)"
expect 0 "3 classes" -- "$tessera" eval run --json own.json # the set that it was trained on has a part for that
[ "$(result own.json)" = "$(result flags.json)" ] || fail "eval RUN without data: $(result own.json)"
expect 0 "p.csv" -- "$tessera" predict run --datapath data/val/red -o p.csv
grep -q "^path,label,predicted,p_blue,p_green,p_red" p.csv || fail "predictions without names: $(head -1 p.csv)"

expect 0 -- "$tessera" export run -o w.safetensors
expect 0 -- "$tessera" eval w.safetensors --datapath data --json file.json
[ "$(result file.json)" = "$(result flags.json)" ] || fail "eval of an exported file: $(result file.json)"

# Contradictions: both values; on purpose only where that makes sense.
expect 2 "--depth 14 contradicts run" "--depth 8" -- "$tessera" eval run --datapath data --depth 14
expect 2 "--mean 0.5,0.5,0.5 contradicts run" "--mean 0.4,0.3,0.2" "--num-classes 4" "--num-classes 3" -- \
  "$tessera" eval run --datapath data --mean 0.5,0.5,0.5 --num-classes 4
expect 2 "--model resnet18 contradicts w.safetensors" "--model resnet_v1" -- "$tessera" eval w.safetensors --model resnet18
expect 0 "warning: --image-size 32x32" "--image-size 24x20" -- "$tessera" eval run --datapath data --image-size 32
expect 0 -- "$tessera" eval run --datapath data --image-size 24x20 --depth 8 --mean 0.4,0.3,0.2
expect 2 "which weights" "tessera eval" -- "$tessera" eval --datapath data

# A run goes on with what it was started with; another plan or length is for the command line to say.
cp -r run again
expect 0 "all 6 steps are done" -- "$tessera" train --checkpoint-dir again --resume auto
expect 0 "goes on from again/step-000006" "step 8/8" "batch 6" -- "$tessera" train --checkpoint-dir again --resume auto --steps 8
expect 0 "step 9/9" "2 ranks" -- "$tessera" train --resume run --steps 9 --num-spatial-parts 2
expect 2 "--depth 14 contradicts run" "--depth 8" -- "$tessera" train --resume run --steps 9 --depth 14

# One of an older version has no description: flags say everything, as before.
python3 - <<'P'
import json, os, shutil
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8): crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
shutil.copytree("run", "old")
folder = "old/" + sorted(os.listdir("old"))[-1]
state = json.load(open(f"{folder}/run_state.json"))
assert state.pop("description")["use"]["class_names"] == ["blue", "green", "red"]
text = json.dumps(state).encode()
open(f"{folder}/run_state.json", "wb").write(text)
sums = json.load(open(f"{folder}/checksums.json"))
sums["files"]["run_state.json"] = {"bytes": len(text), "crc32c": f"{crc32c(text):08x}"}
json.dump(sums, open(f"{folder}/checksums.json", "w"))
P
expect 0 -- "$tessera" eval "${how[@]}" old --datapath data --json old.json
[ "$(result old.json)" = "$(result flags.json)" ] || fail "an older checkpoint: $(result old.json)"

[ $failures = 0 ] && echo "weights say what they are" || { echo "$failures checks failed"; exit 1; }
