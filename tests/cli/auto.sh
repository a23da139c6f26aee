#!/usr/bin/env bash
# --auto finds a plan for the ranks and the memory that there are, says why, and runs it; --plan takes one from a file.
#
# usage: auto.sh TESSERA MPIEXEC MACHINES
set -u
tessera=$1 mpiexec=$2 machines=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/expect.sh"
net=(--model resnet_v1 --depth 8 --image-size 48 --num-classes 3)
few=(--synthetic-images 16 --steps 2 --num-workers 0)

# A table of the best, and the flags of the first; the same as a document.
expect 0 "images/s" "costs measured" "chosen: --batch-size" -- "$tessera" plan "${net[@]}" --batch-size 8 --auto --ranks 4
expect 0 "chosen:" -- "$tessera" plan "${net[@]}" --batch-size 4 --auto --ranks 2 --parts 1 --json "$work/plan.json"
expect 0 "2 steps" "2 ranks" -- "$tessera" train "${net[@]}" "${few[@]}" --plan "$work/plan.json"
expect 0 "equal" -- "$tessera" verify "${net[@]}" --plan "$work/plan.json" --steps 2

# It tries the best, runs on as many ranks as there are, and says how good the guess was.
expect 0 "tried: " "chosen:" "2 steps" "--auto expected" -- "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto
# Where its time goes: expected beside measured, as a table, in the document and in the trace.
expect 0 "expected" "--auto expected" -- "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto --ranks 2 \
  --split-size 2 --parts 2 --schedule 1f1b -v --json "$work/run.json" --trace "$work/trace.json"
python3 - "$work" <<'P' || { echo "FAILED: what --auto expects, by part"; failures=$((failures + 1)); }
import json, sys
run, trace = json.load(open(sys.argv[1] + "/run.json")), json.load(open(sys.argv[1] + "/trace.json"))
assert run["expected_images_per_second"] > 0, run["expected_images_per_second"]
assert len(run["expected"]) == 2 == len(run["rank_parts"]), run["expected"]
for rank in run["expected"]:
    assert abs(rank["computing"] + sum(rank["parts"].values()) - rank["seconds"]) < 1e-9 * rank["seconds"], rank
predicted = [e["name"] for e in trace["traceEvents"] if e["pid"] == 2 and e["ph"] == "X" and e["tid"] == 1]
assert predicted == ["F0", "B0", "F1", "B1"], predicted
P
expect 0 "equal" -- "$tessera" verify "${net[@]}" --batch-size 6 --auto --ranks 6 --steps 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
expect 0 "tried: " "2 ranks" "--auto expected" -- "$mpiexec" -np 2 "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto
expect 2 "--batch-size 32 is more than the 16 images" -- "$tessera" train "${net[@]}" "${few[@]}" --batch-size 32 --auto
expect 2 "disagree" -- "$mpiexec" -np 2 "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto --ranks 3

# Flags that are given stay; a run that is resumed goes on with the plan that was found.
expect 0 "chosen: " "--grid 1x2" -- "$tessera" plan "${net[@]}" --batch-size 4 --auto --ranks 2 --grid 1x2
expect 0 "2 steps" -- "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto --ranks 2 --checkpoint-dir "$work/run"
expect 0 "2 ranks" -- "$tessera" train --resume auto --checkpoint-dir "$work/run" --steps 3

# A plan that is looked for takes the place of the stored one.
expect 0 "2 ranks" "chosen: " "--split-size 2" -- "$tessera" train --resume auto --checkpoint-dir "$work/run" --steps 4 \
  --auto --ranks 2 --split-size 2
# The batch of a step stays, however many copies share it.
expect 0 "2 ranks" -- "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto --ranks 2 --replicas 2 \
  --checkpoint-dir "$work/copies"
expect 0 "step 3/3" "batch 4" -- "$tessera" train --resume auto --checkpoint-dir "$work/copies" --steps 3 --auto --ranks 2 --grid 1x2

# Machines that are not here.
expect 0 "costs estimated" "chosen: " -- "$tessera" plan --model resnet50 --image-size 2048 --batch-size 64 --auto \
  --ranks 64 --device cuda --dtype bfloat16 --machine "$machines/dgx_h100.json"

# Thousands of ranks take seconds, whatever has to be cut: copies, or tiles of a few images.
far=(--auto --device cuda --dtype bfloat16 --machine "$machines/dgx_h100.json" --model resnet152 --image-size 4096)
for batch in 4096 16; do
  expect 0 "costs estimated" "chosen: " -- timeout 60 "$tessera" plan "${far[@]}" --ranks 4096 --batch-size $batch
done
expect 0 "65536 " "chosen: " -- timeout 30 "$tessera" plan "${far[@]}" --ranks 65536 --batch-size 1024 \
  --replicas 1024 --grid 8x8 --parts 1

# Curves over ranks, as tables, as a document and as a page.
curve=(--device cuda --dtype bfloat16 --machine "$machines/dgx_h100.json" --model resnet50 --image-size 2048 --batch-size 16)
expect 0 "strong scaling" "weak scaling" "limited by" -- "$tessera" plan "${curve[@]}" --scaling 1..32 \
  --json "$work/scaling.json"
expect 0 "1 run" -- "$tessera" report "$work/scaling.json" -o "$work/scaling.html"
python3 - "$work" <<'P' || { echo "FAILED: the document of --scaling"; failures=$((failures + 1)); }
import json, sys
scaling = json.load(open(sys.argv[1] + "/scaling.json"))["scaling"]
for kind in ("strong", "weak"):
    assert [p["ranks"] for p in scaling[kind]] == [1, 2, 4, 8, 16, 32], scaling
assert all(p["batch"] == 16 for p in scaling["strong"]) and scaling["weak"][-1]["batch"] == 512
assert scaling["strong"][0]["efficiency"] == 1 and "grid" not in scaling["weak"][-1]["flags"]
assert "Images per second by ranks" in open(sys.argv[1] + "/scaling.html").read()
P
expect 0 "costs measured" "weak scaling" -- "$tessera" plan "${net[@]}" --batch-size 4 --scaling 1..2
expect 2 "--scaling 8..1" -- "$tessera" plan "${net[@]}" --scaling 8..1
expect 2 "--scaling many" -- "$tessera" plan "${net[@]}" --scaling many
expect 2 "--machine" -- "$tessera" plan "${net[@]}" --scaling 1..4096
expect 2 "--batch-at-most" -- "$tessera" plan "${net[@]}" --scaling 1..2 --batch-at-most 8
expect 2 "leave out --ranks" -- "$tessera" plan "${net[@]}" --scaling 1..2 --ranks 2

# What cannot be.
expect 2 "no plan fits" -- "$tessera" plan "${net[@]}" --batch-size 4 --auto --ranks 2 --memory-limit 1500KiB
# With tiles in turn, it does.
expect 0 "no plan fits as it is" "tried: " "chosen: " "--turns" "2 steps" -- "$tessera" train --model resnet_v1 --depth 8 --image-size 256 \
  --num-classes 3 "${few[@]}" --batch-size 1 --threads 1 --auto --ranks 1 --memory 14MiB --scratch "$work"
expect 2 "/nowhere" -- "$mpiexec" -np 2 "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto --memory 1GiB --scratch /nowhere
expect 2 "no plan fits" "--memory" -- "$tessera" plan "${net[@]}" --batch-size 4 --auto --ranks 2 --memory 100KiB
expect 2 "--ranks is for --auto" -- "$tessera" plan "${net[@]}" --ranks 2
expect 2 "give one of them" -- "$tessera" plan "${net[@]}" --auto --plan "$work/plan.json"
echo '{"plan": 1}' >"$work/other.json"
expect 2 "no document of a plan" -- "$tessera" plan "${net[@]}" --plan "$work/other.json"
echo '{"flags": {"grid": 2}}' >"$work/wrong.json"
expect 2 "'grid'" "a text as its value" -- "$tessera" plan "${net[@]}" --plan "$work/wrong.json"
echo '{"flags": {"lr": "9"}}' >"$work/wrong.json"
expect 2 "'lr' is not a flag about how a run is divided" -- "$tessera" plan "${net[@]}" --plan "$work/wrong.json"
# Said before anything is measured.
expect 2 "--schedule 1f1bb" -- "$tessera" plan "${net[@]}" --auto --ranks 2 --split-size 2 --schedule 1f1bb
expect 2 "give that too" -- "$tessera" plan "${net[@]}" --auto --ranks 2 --slice-method vertical
expect 2 "can be tried out here" -- "$tessera" plan "${net[@]}" --auto --ranks 65
# What a file of flags adds nothing to is read all the same.
echo 'model = "resnet_v1"' >"$work/flags.toml"
expect 0 "2 ranks" -- "$tessera" train "${net[@]}" "${few[@]}" --config "$work/flags.toml" --plan "$work/plan.json"
expect 2 "--turns" -- "$tessera" plan "${net[@]}" --auto --ranks 2 --turns 2x2
expect 2 "must be from 1 to 65536" -- "$tessera" plan "${net[@]}" --auto --ranks 0
expect 2 "--batch-at-most" -- "$tessera" plan "${net[@]}" --auto --ranks 2 --batch-at-most 9223372036854775807
expect 2 "at most 1024" -- "$tessera" train "${net[@]}" "${few[@]}" --batch-size 4 --auto --ranks 5000
sed 's/"bytes_per_second": 2.6e12/"bytes_per_second": 0/' "$machines/dgx_h100.json" >"$work/machine.json"
expect 2 "'bytes_per_second' must be" -- "$tessera" plan "${net[@]}" --auto --ranks 2 --machine "$work/machine.json"
sed 's/"ranks_per_node": 8/"ranks_per_node": 0.5/' "$machines/dgx_h100.json" >"$work/machine.json"
expect 2 "whole number" -- "$tessera" plan "${net[@]}" --auto --ranks 2 --machine "$work/machine.json"
expect 2 "--dtype bfloat16" -- "$tessera" plan "${net[@]}" --auto --ranks 2 --device cuda --dtype bfloat16 \
  --machine "$machines/v100_16gb.json"
expect 2 "is for tessera plan" -- "$tessera" train "${net[@]}" --auto --ranks 2 --machine "$machines/dgx_h100.json"

[ $failures = 0 ] && echo "all as wanted"
exit $((failures > 0))
