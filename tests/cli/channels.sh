#!/usr/bin/env bash
# Images as instruments write them: 1, 4 and 13 channels, of 8 and 16 bits and of floats, as a user trains on them.
# Usage: channels.sh TESSERA
set -uo pipefail
tessera=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source "$(dirname "$0")/expect.sh"

# Eight images of 24x20 pixels a set, in two classes; class b is brighter in the last channel.
python3 - "$work" <<'P'
import os, struct, sys
work = sys.argv[1]
def numbers(image, channels, scale, number):
    light = lambda c: 0.4 if image % 2 and c == channels - 1 else 0
    return [number(scale * (((y * 7 + x * 13 + c * 5 + image * 31) % 97) / 200 + light(c)))
            for y in range(24) for x in range(20) for c in range(channels)]
def npy(path, kind, shape, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    head = ("{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (kind, shape)).encode()
    head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
    code = {"|u1": "B", "<u2": "H", "<f4": "f", "<i8": "q"}[kind]
    numbers = struct.pack("<%d%s" % (len(data), code), *data)
    with open(path, "wb") as f: f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + numbers)
def tiff(path, channels, bits, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pixels = struct.pack("<%d%s" % (len(data), {8: "B", 16: "H", 32: "f"}[bits]), *data)
    def shorts(values): return struct.pack("<%dH" % len(values), *values)
    tags, extra, at = [], b"", 8 + len(pixels)
    after = at + 2 + 12 * 12 + 4
    def tag(number, kind, values):
        nonlocal extra
        raw = shorts(values) if kind == 3 else struct.pack("<%dI" % len(values), *values)
        if len(raw) > 4: raw, extra = struct.pack("<I", after + len(extra)), extra + raw
        tags.append(struct.pack("<HHI", number, kind, len(values)) + raw.ljust(4, b"\0"))
    tag(256, 4, [20]); tag(257, 4, [24]); tag(258, 3, [bits] * channels); tag(259, 3, [1]); tag(262, 3, [1])
    tag(273, 4, [8]); tag(277, 3, [channels]); tag(278, 4, [24]); tag(279, 4, [len(pixels)]); tag(284, 3, [1])
    tag(338, 3, [0] * max(1, channels - 1)); tag(339, 3, [3 if bits == 32 else 1] * channels)
    with open(path, "wb") as f:
        f.write(b"II*\0" + struct.pack("<I", at) + pixels + struct.pack("<H", len(tags)) + b"".join(tags))
        f.write(b"\0" * 4 + extra)
kinds = {"u1": ("|u1", 8, 255, int), "u2": ("<u2", 16, 65535, int), "f4": ("<f4", 32, 3, float)}
for channels in (1, 4, 13):
    for name, (kind, bits, scale, number) in kinds.items():
        for i in range(8):
            data = numbers(i, channels, scale, number)
            npy(f"{work}/{channels}{name}/{'ab'[i % 2]}/{i}.npy", kind, (24, 20, channels), data)
            tiff(f"{work}/{channels}{name}tif/{'ab'[i % 2]}/{i}.tif", channels, bits, data)
# Eight images in one array, with labels or masks in another; and four of a class.
many = [v for i in range(8) for v in numbers(i, 4, 65535, int)]
for part in ("train", "val"):
    npy(f"{work}/many/{part}/images.npy", "<u2", (8, 24, 20, 4), many)
    npy(f"{work}/many/{part}/labels.npy", "<i8", (8,), [i % 2 for i in range(8)])
npy(f"{work}/masked/images.npy", "<u2", (8, 24, 20, 4), many)
npy(f"{work}/masked/masks.npy", "|u1", (8, 24, 20),
    [(y + i) // 12 % 2 for i in range(8) for y in range(24) for x in range(20)])
for k, name in enumerate("ab"):
    npy(f"{work}/four/{name}/all.npy", "<u2", (4, 24, 20, 4),
        [v for i in range(k, 8, 2) for v in numbers(i, 4, 65535, int)])
# Sets that do not fit together.
npy(f"{work}/mixed/a/1.npy", "<u2", (24, 20, 4), [0] * 24 * 20 * 4)
npy(f"{work}/mixed/b/2.npy", "<u2", (24, 20, 5), [0] * 24 * 20 * 5)
npy(f"{work}/types/a/1.npy", "<u2", (24, 20, 4), [0] * 24 * 20 * 4)
npy(f"{work}/types/b/2.npy", "<f4", (24, 20, 4), [0] * 24 * 20 * 4)
npy(f"{work}/grey/a/1.npy", "|u1", (24, 20), [7] * 24 * 20)
npy(f"{work}/grey/b/2.npy", "|u1", (24, 20, 3), [7] * 24 * 20 * 3)
for i, c in enumerate("ab"):
    npy(f"{work}/nan/{c}/{i}.npy", "<f4", (24, 20), [1.0] * 100 + [float("nan") if i else 2.0] + [0.0] * 379)
P

flags=(--model resnet_v1 --depth 8 --batch-size 2 --steps 4 --lr 0.05)

# The channels are found, shown, and kept; runs go on, are judged and used without another word.
for channels in 1 4 13; do
  for set in "${channels}u2" "${channels}f4tif"; do
    run=$work/runs/$set
    expect 0 "${channels}x24x20" "step 4/4" -- "$tessera" train "${flags[@]}" --datapath "$work/$set" --run "$run"
    expect 0 "step 6/6" -- "$tessera" train --run "$run" --resume auto --steps 6
    expect 0 "accuracy" -- "$tessera" eval "$run"
    expect 0 -- "$tessera" predict "$run" --datapath "$work/$set/a" -o "$work/p.csv"
    [ "$(wc -l <"$work/p.csv")" = 5 ] || { echo "FAILED: predictions of $set"; failures=$((failures + 1)); }
  done
done
# Arrays and TIFF of the same numbers are the same images, of every type.
for set in 1u1 4u1 13u1 4u2 4f4 13u2; do
  for form in "" tif; do
    expect 0 -- "$tessera" train "${flags[@]}" --datapath "$work/$set$form" --json "$work/$form.json"
    python3 -c "import json, sys; print([s['loss'] for s in json.load(open(sys.argv[1]))['steps']])" "$work/$form.json" \
      >"$work/losses$form"
  done
  cmp -s "$work/losses" "$work/lossestif" || { echo "FAILED: $set as arrays and as TIFF"; failures=$((failures + 1)); }
done
# Each rank reads its tile, stretched or not; the same as one rank that reads everything.
expect 0 "equal" -- "$tessera" verify "${flags[@]}" --datapath "$work/4u2" --grid 2x2
expect 0 "equal" -- "$tessera" verify "${flags[@]}" --datapath "$work/4u2tif" --grid 2x2 --image-size 31x27 --rotate
expect 0 "equal" -- "$tessera" verify "${flags[@]}" --datapath "$work/13f4" --grid 2x2 --image-size 31x27
expect 0 "5x32x32" -- "$tessera" train "${flags[@]}" --channels 5

# Several images in one array.
run=$work/runs/many
expect 0 "8 images as 4x24x20, 2 classes" "step 4/4" -- \
  "$tessera" train "${flags[@]}" --datapath "$work/many" --num-classes 2 --class-names dark,bright --run "$run"
expect 0 "accuracy" "bright" -- "$tessera" eval "$run"
expect 2 "label 'a'" -- "$tessera" eval "$run" --datapath "$work/four"
expect 0 -- "$tessera" predict "$run" --datapath "$work/masked" -o "$work/p.csv"
grep -q 'masked/images.npy\[7\]' "$work/p.csv" || { echo "FAILED: predictions of many"; failures=$((failures + 1)); }
expect 0 "equal" -- "$tessera" verify "${flags[@]}" --datapath "$work/four" --grid 2x2
unet=(--model unet --num-layers 2 --num-filters 4 --num-classes 2 --batch-size 2 --steps 4)
expect 0 "step 4/4" -- "$tessera" train "${unet[@]}" --datapath "$work/masked" --run "$work/runs/masked"
expect 0 -- "$tessera" predict "$work/runs/masked" --datapath "$work/masked" -o "$work/said"
[ -f "$work/said/images_7.tif" ] || { echo "FAILED: masks of arrays"; ls "$work/said"; failures=$((failures + 1)); }

# One mean for all channels, or one for each.
expect 0 "step 4/4" -- "$tessera" train "${flags[@]}" --datapath "$work/4u2" --mean 0.3 --std 0.2,0.3,0.2,0.1
expect 2 "--mean has 3 numbers, and the images have 4 channels" -- \
  "$tessera" train "${flags[@]}" --datapath "$work/4u2" --mean 0.1,0.2,0.3
expect 2 "--mean nan must be a number" "--std inf must be" -- \
  "$tessera" train "${flags[@]}" --datapath "$work/4u2" --mean nan --std inf
expect 2 "--std has 2 numbers, and the images have 13 channels" -- \
  "$tessera" train "${flags[@]}" --datapath "$work/13u2" --std 1,2
expect 2 "--mean 0.1" "contradicts" -- "$tessera" eval "$work/runs/4u2" --mean 0.1
expect 0 "accuracy" -- "$tessera" eval "$work/runs/4u2" --mean 0.5

# What does not fit is named.
expect 2 "a/1.npy' has 4 channels of uint16" "b/2.npy' 5 channels of uint16" -- \
  "$tessera" train "${flags[@]}" --datapath "$work/mixed"
expect 2 "a/1.npy' has 4 channels of uint16" "b/2.npy' 4 channels of float32" -- \
  "$tessera" train "${flags[@]}" --datapath "$work/types"
expect 2 "--channels 3 makes colours of grey" -- "$tessera" train "${flags[@]}" --datapath "$work/grey"
expect 0 "3x24x20" -- "$tessera" train "${flags[@]}" --datapath "$work/grey" --channels 3
expect 2 "has 13 channels of uint16, and the network was trained on 4 channels" -- \
  "$tessera" eval "$work/runs/4u2" --datapath "$work/13u2"
expect 2 "--channels 13" "contradicts" "--channels 4" -- "$tessera" eval "$work/runs/4u2" --channels 13
expect 1 "b/1.npy' has the value nan in row 5, column 0, channel 0" -- \
  "$tessera" train "${flags[@]}" --datapath "$work/nan"
expect 2 "it takes images of 3 channels, and these have 4" -- "$tessera" train --datapath "$work/4u2" --steps 1 \
  --model "$(dirname "$0")/../import/pt2/resnet18.pt2" --batch-size 2 --num-classes 1000
expect 2 "4 channels have no saturation" -- "$tessera" train "${flags[@]}" --datapath "$work/4u2" --saturation 0.2
expect 0 "step 4/4" -- "$tessera" train "${flags[@]}" --datapath "$work/4u2" --brightness 0.2 --contrast 0.1

[ $failures = 0 ] || { echo "$failures failed"; exit 1; }
echo "channels: as they should be"
