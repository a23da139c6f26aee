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
# Norms of each tile for itself are another network, so the check checks.
if "$tessera" verify "${small[@]}" --grid 2x1 --batch-norm local >"$work/log" 2>&1; then fail "a norm per tile passed"; fi
grep -q "NOT EQUAL.* where rounding makes" "$work/log" || fail "no verdict"
# What is beyond the tolerance is laid beside what rounding does.
says "^equal: .* what changing the last bits" "$tessera" verify "${small[@]}" --steps 1 --grid 2x1 --tolerance 1e-30
# A micro of one image: float32 cannot tell, float64 can.
says "^equal: .* what changing the last bits" "$tessera" verify --steps 1 --seed 8 --model amoebanet --num-layers 3 \
  --num-filters 16 --image-size 64 --batch-size 8 --parts 8

# The document alone on standard output.
for name in - /dev/stdout; do
  "$tessera" verify "${small[@]}" --steps 1 --json $name 2>"$work/log" | python3 -m json.tool >/dev/null || fail "--json $name"
  grep -q "^equal" "$work/log" || fail "--json $name: no text on standard error"
done
echo "before" >"$work/both"
"$tessera" plan "${small[@]}" --json - 2>/dev/null >>"$work/both"
[ "$(head -1 "$work/both")" = before ] || fail "--json - wrote over what was there"
[ ! -e - ] || fail "--json - made a file"

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

# One file serves all commands: what another one knows is passed over.
printf 'model = "resnet_v1"\ndepth = 8\nimage-size = "16"\nbatch-size = 4\nnum-epochs = 1\ncheckpoint-dir = "%s"\ntolerance = 1e-9\n' \
  "$work/served" >"$work/all.toml"
says "step 1/1" "$tessera" train --config "$work/all.toml" --steps 1 # in place of the file's --num-epochs
says "^equal" "$tessera" verify --config "$work/all.toml" --steps 1
says "batch 4" "$tessera" plan --config "$work/all.toml"
says "accuracy" "$tessera" eval "$work/served" --config "$work/all.toml" --synthetic-images 8

# The same losses with and without micros' boundaries in the data loader, and for any number of loader threads.
losses() { "$tessera" train "${small[@]}" --steps 3 --quiet --dtype float64 --json "$work/l.json" "$@" &&
  python3 -c "import json; print([s['loss'] for s in json.load(open('$work/l.json'))['steps']])"; }
[ "$(losses --num-workers 0)" = "$(losses --num-workers 3)" ] || fail "losses depend on --num-workers"
# A trace of five ranks (four tiles and one behind them) has every action of every step once, and the predicted ones.
"$tessera" train --model resnet_v1 --depth 8 --image-size 32 --batch-size 4 --steps 2 --parts 2 --split-size 2 --num-spatial-parts 4 --quiet \
  --trace "$work/trace.json"
python3 - "$work/trace.json" <<'P'
import collections, json, sys
every = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
events = [e for e in every if e["cat"] != "not computing"]
parts = collections.Counter((e["tid"], e["name"]) for e in every if e["cat"] == "not computing")
assert all(parts[rank, "margin exchange"] and parts[rank, "norm agreement"] for rank in range(4)) and parts[4, "waiting"], parts
def count(process):
    return collections.Counter((e["tid"], e["args"]["step"], e["cat"], e["args"]["micro"]) for e in events if e["pid"] == process)
def wanted(steps):
    return collections.Counter({(rank, step, kind, micro): 1 for rank in range(5) for step in steps
                                for kind, micros in (("forward", 2), ("backward", 2), ("step", 1)) for micro in range(micros)})
assert count(1) == wanted([1, 2]), count(1) - wanted([1, 2]) or wanted([1, 2]) - count(1)
assert count(2) == wanted([2]), count(2)
assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["args"]["stage"] == (e["tid"] == 4) for e in events if e["cat"] != "step")
for rank in range(5):  # a rank does one thing after the other
    mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["pid"] == 1 and e["tid"] == rank)
    assert all(a[1] <= b[0] + 1 for a, b in zip(mine, mine[1:])), mine
P

# An estimate of memory is printed, and a limit holds.
says "activations " "$tessera" plan "${small[@]}" --split-size 2 --schedule gems-mast
says "activations " "$tessera" plan "${small[@]}" --memory-limit 1GiB
# A run on GPUs can be planned on a machine that has none, and the document has what the text says.
[ -z "$("$tessera" plan "${small[@]}" --parts 2 --split-size 2 --device cuda --dtype bfloat16 --quiet --json "$work/plan.json")" ] ||
  fail "plan --quiet prints"
python3 - "$work/plan.json" <<'P'
import json, sys
plan = json.load(open(sys.argv[1]))
assert [m["bytes"] > m["activation_bytes"] > 0 for m in plan["memory"]] == [True, True], plan
assert plan["of_a_micro"][1]["exchanged_bytes"] > 0 and plan["of_a_micro"][0]["forward_flops"] > 0, plan
assert 0 < plan["bubble"] < 1, plan
P

echo "all runs are well"
