#!/usr/bin/env bash
# The commands as a user runs them: they end well, say what they should, and write what they promise.
# Usage: runs.sh TESSERA
set -euo pipefail
tessera=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
# says PATTERN COMMAND...: the command succeeds and prints the pattern.
says() {
  local pattern=$1 output
  shift
  output=$("$@") || fail "exit code $? of: $*"
  grep -q -e "$pattern" <<<"$output" || fail "no «$pattern» from: $*"
}

small=(--model resnet_v1 --depth 8 --image-size 19x16 --batch-size 4 --num-classes 3)

says "step 3/3 .* images/s" "$tessera" train "${small[@]}" --steps 3 --json "$work/run.json"
python3 - "$work/run.json" <<'P'
import json, sys
run = json.load(open(sys.argv[1]))
assert len(run["steps"]) == 3 and run["plan"]["image"] == [3, 19, 16], run
assert run["peak_bytes"][0] > 0 and run["images_per_second"]["median"] > 0, run
P

[ -z "$("$tessera" train "${small[@]}" --steps 1 --quiet)" ] || fail "--quiet prints"
says "batch 4 in 1 micro of 4" "$tessera" plan "${small[@]}"
says "^equal" "$tessera" verify "${small[@]}" --steps 2 --json "$work/verify.json"
python3 -c "import json,sys; v=json.load(open('$work/verify.json')); assert v['passed'] and v['largest']<1e-10, v"
# A tolerance that nothing can meet fails, so the check checks.
if "$tessera" verify "${small[@]}" --steps 1 --tolerance 1e-30 >"$work/log" 2>&1; then fail "an impossible tolerance passed"; fi
grep -q "NOT EQUAL" "$work/log" || fail "no verdict"

# A class for every pixel.
small_unet=(--model unet --num-layers 2 --num-filters 4 --image-size 19x22 --num-classes 3)
says "step 3/3 .* images/s" "$tessera" train "${small_unet[@]}" --batch-size 4 --steps 3
says "^equal" "$tessera" verify "${small_unet[@]}" --batch-size 4 --parts 2 --split-size 2 --grid 2x2,2x2
says "^equal" "$tessera" verify "${small_unet[@]}" --batch-size 2 --upsampling bilinear

# Flags from a file; the command line wins.
printf 'model = "resnet_v1"\ndepth = 8\nimage-size = "16"\nbatch-size = 4\nsteps = 2\n' >"$work/flags.toml"
says "step 2/2" "$tessera" train --config "$work/flags.toml"
says "step 1/1" "$tessera" train --config "$work/flags.toml" --steps 1
printf 'modell = "resnet18"\n' >"$work/wrong.toml"
if "$tessera" train --config "$work/wrong.toml" >"$work/log" 2>&1; then fail "an unknown name in --config passed"; fi
grep -q "modell" "$work/log" || fail "the unknown name is not told"

# The same losses with and without micros' boundaries in the data loader, and for any number of loader threads.
losses() { "$tessera" train "${small[@]}" --steps 3 --quiet --dtype float64 --json "$work/l.json" "$@" &&
  python3 -c "import json; print([s['loss'] for s in json.load(open('$work/l.json'))['steps']])"; }
[ "$(losses --num-workers 0)" = "$(losses --num-workers 3)" ] || fail "losses depend on --num-workers"
echo "all runs are well"
