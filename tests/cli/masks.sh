#!/usr/bin/env bash
# Segmentation of image files as a user runs it: folders and lists, values of masks, and what is wrong with masks.
# Usage: masks.sh TESSERA
set -euo pipefail
tessera=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

# Ten pictures of 60x50 pixels with a bright square, whose mask is 1 (or 255) there, 0 elsewhere and 9 in a corner.
python3 - "$work" <<'P'
import os, sys
work = sys.argv[1]
def write(name, magic, width, height, pixels):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "wb") as f: f.write(b"%s %d %d 255\n" % (magic, width, height) + bytes(pixels))
for i in range(10):
    inside = lambda y, x: 5 * i <= y < 5 * i + 15 and 3 * i <= x < 3 * i + 20
    plane = [(y, x) for y in range(60) for x in range(50)]
    rgb = [v for y, x in plane for v in ((200, 180, 90) if inside(y, x) else (40, (7 * y) % 90, (11 * x) % 80))]
    write(f"{work}/set/images/{i}.ppm", b"P6", 50, 60, rgb)
    write(f"{work}/set/masks/{i}.pgm", b"P5", 50, 60, [int(inside(y, x)) for y, x in plane])
    white = [9 if y + x > 95 else 255 * inside(y, x) for y, x in plane]
    write(f"{work}/white/{i}.pgm", b"P5", 50, 60, white)
write(f"{work}/small.pgm", b"P5", 50, 59, [0] * 50 * 59)
with open(f"{work}/white.csv", "w") as f:
    f.write("path,mask\n" + "".join(f"set/images/{i}.ppm,white/{i}.pgm\n" for i in range(10)))
with open(f"{work}/small.csv", "w") as f: f.write("path,mask\nset/images/2.ppm,set/masks/2.pgm\nset/images/3.ppm,small.pgm\n")
with open(f"{work}/missing.csv", "w") as f: f.write("path,mask\nset/images/3.ppm,none.pgm\n")
P

flags=(--app medical --model unet --num-layers 2 --num-filters 4 --num-classes 2 --batch-size 2)
# says PATTERN COMMAND...: the command succeeds and prints the pattern.
says() {
  local pattern=$1 output
  shift
  output=$("$@" 2>&1) || fail "exit code $? of: $* :: $output"
  grep -q -e "$pattern" <<<"$output" || fail "no «$pattern» from: $* :: $output"
}
# refuses CODE PATTERN PATTERN COMMAND...: the command ends with this code and prints both.
refuses() {
  local code=$1 first=$2 second=$3 output status=0
  shift 3
  output=$("$@" 2>&1) || status=$?
  [ $status = "$code" ] || fail "exit code $status, not $code, of: $* :: $output"
  grep -qF -e "$first" <<<"$output" && grep -qF -e "$second" <<<"$output" || fail "not «$first», «$second»: $output"
}

says "step 4/4" "$tessera" train "${flags[@]}" --datapath "$work/set" --image-size 48x40 --steps 4
# Stretched to odd sizes, turned and cropped; each rank reads its tile. Equal to one rank that reads everything.
says "^equal" "$tessera" verify "${flags[@]}" --datapath "$work/set" --image-size 41x37 --rotate --flip-horizontal \
  --crop-min 0.5 --split-size 2 --grid 2x2,2x2
says "^equal" "$tessera" verify "${flags[@]}" --datapath "$work/white.csv" --image-size 60x50 --mask-values 0,255 \
  --mask-ignore 9 --parts 2 --grid 3x1

# Palette masks, as Pascal VOC has them: the numbers count, not the colours.
python3 - "$work" <<'P'
import os, struct, sys, zlib
work = sys.argv[1]
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
os.makedirs(f"{work}/palette")
for i in range(10):
    text = open(f"{work}/set/masks/{i}.pgm", "rb").read()
    pixels = text[text.index(b"\n") + 1:]
    rows = b"".join(b"\0" + pixels[50 * y:50 * y + 50] for y in range(60))
    open(f"{work}/palette/{i}.png", "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 50, 60, 8, 3, 0, 0, 0))
        + chunk(b"PLTE", bytes((0, 0, 0, 128, 0, 0, 0, 128, 0))) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
with open(f"{work}/palette.csv", "w") as f:
    f.write("path,mask\n" + "".join(f"set/images/{i}.ppm,palette/{i}.png\n" for i in range(10)))
P
losses() { "$tessera" train "${flags[@]}" --datapath "$1" --image-size 48x40 --steps 3 --quiet --json "$work/l.json" &&
  python3 -c "import json; print([s['loss'] for s in json.load(open('$work/l.json'))['steps']])"; }
[ "$(losses "$work/palette.csv")" = "$(losses "$work/set")" ] || fail "a palette mask is read otherwise than a grey one"

# What is predicted has the image's own size and the values of --mask-values, under the image's own name: it is read
# back as masks, and agrees with what the network says.
says "step 4/4" "$tessera" train "${flags[@]}" --datapath "$work/white.csv" --mask-values 0,255 --mask-ignore 9 --image-size 30x25 \
  --steps 4 --checkpoint-dir "$work/run" --class-names ground,square
says "image" "$tessera" predict "$work/run" --datapath "$work/set/images" -o "$work/said"
[ "$(ls "$work/said" | xargs)" = "0.tif 1.tif 2.tif 3.tif 4.tif 5.tif 6.tif 7.tif 8.tif 9.tif" ] || fail "masks: $(ls "$work/said")"
{ echo path,mask; for i in 0 1 2 3 4 5 6 7 8 9; do echo "set/images/$i.ppm,said/$i.tif"; done; } >"$work/said.csv"
says "accuracy 100.0%" "$tessera" eval "$work/run" --datapath "$work/said.csv"
says "square" "$tessera" eval "$work/run" --datapath "$work/said.csv"
mkdir -p "$work/classed/a" "$work/classed/b"
cp "$work/set/images/1.ppm" "$work/classed/a/" && cp "$work/set/images/1.ppm" "$work/classed/b/"
says "image" "$tessera" predict "$work/run" --datapath "$work/classed" -o "$work/both"
[ -f "$work/both/a/1.tif" ] && [ -f "$work/both/b/1.tif" ] || fail "class folders are lost: $(find "$work/both")"

train=("$tessera" train "${flags[@]}" --image-size 60x50 --steps 2)
refuses 1 "white/" "the value 255" "${train[@]}" --datapath "$work/white.csv"
refuses 1 "white/" "the value 9 in row" "${train[@]}" --datapath "$work/white.csv" --mask-values 0,255
refuses 2 "--mask-values has 3 values" "2 classes" "${train[@]}" --datapath "$work/white.csv" --mask-values 0,255,9
refuses 1 "small.pgm' has 59x50 pixels" "images/3.ppm' has 60x50" "${train[@]}" --datapath "$work/small.csv"
refuses 2 "none.pgm' does not exist" "line 2" "${train[@]}" --datapath "$work/missing.csv"
rm "$work/set/masks/4.pgm"
refuses 2 "images/4.ppm' has no mask" "set/masks" "${train[@]}" --datapath "$work/set"
rm -r "$work/set/masks"
refuses 2 "set/masks' with a mask for each image" "--datapath" "${train[@]}" --datapath "$work/set"
echo "masks are read as they should be"
