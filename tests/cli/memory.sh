#!/usr/bin/env bash
# --memory finds a way that fits, keeps to it, and says what it costs; what nothing fits into is refused with the least
# that would do.
#
# usage: memory.sh TESSERA
set -u
tessera=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/expect.sh"
net=(--model resnet_v1 --depth 8 --image-size 512 --batch-size 1 --num-classes 3 --threads 1)
train=("$tessera" train "${net[@]}" --synthetic-images 4 --steps 2 --num-workers 0)

# Plenty: nothing is chosen. Less and less: within the limit each time, and the last is refused.
expect 0 "2 steps" -- "${train[@]}" --memory 1GiB --scratch "$work"
for limit in 100 70 45 32 24 18 13 9 6; do
  output=$("${train[@]}" --memory ${limit}MiB --scratch "$work" 2>&1)
  status=$?
  taken=$(sed -n 's/.*peak memory \([0-9.]*\) MiB.*/\1/p' <<<"$output" | tail -1)
  if [ $status = 2 ] && grep -q "use --memory [0-9]*MiB or more" <<<"$output"; then
    refused=$limit
    least=$(sed -n 's/.*use --memory \([0-9]*\)MiB or more.*/\1/p' <<<"$output")
    break
  fi
  if [ $status != 0 ] || ! awk -v t="$taken" -v l=$limit 'BEGIN {exit !(t > 0 && t <= l * 1.03)}'; then
    failures=$((failures + 1))
    printf 'FAILED: --memory %sMiB took %s MiB, exit code %s:\n%s\n' $limit "$taken" $status "$output"
  fi
done
if [ -z "${refused:-}" ]; then
  failures=$((failures + 1))
  echo "FAILED: no limit was refused; the last took $taken MiB"
else
  expect 0 "memory: " "--store file" "times as long" -- "${train[@]}" --memory "${least}MiB" --scratch "$work"
fi

# Flags that are given stay: the search fills in the rest.
expect 0 "--turns 2x2" -- "${train[@]}" --memory 60MiB --scratch "$work" --turns 2x2
expect 2 "nothing fits" "--scratch DIR" -- "${train[@]}" --memory 8MiB
expect 2 "--scratch is for --store file" -- "${train[@]}" --store device --scratch "$work"
expect 2 "--memory" -- "${train[@]}" --memory plenty
# The same numbers, in company and in evaluation too.
expect 0 "equal" -- "$tessera" verify "${net[@]}" --memory 40MiB --scratch "$work" --steps 2
expect 0 "equal" -- "$tessera" verify "${net[@]}" --grid 1x2 --memory 38MiB --scratch "$work" --steps 2
# Evaluation and prediction (which needs libvips to write masks): fewer images at a time, then tiles in turn; what comes out is the same.
unet=(--model unet --num-layers 2 --num-filters 4 --num-classes 3 --dtype float64)
"$tessera" --version | grep -qE "libvips +[0-9]" && predicts=1
cd "$work"
expect 0 "2 steps" -- "$tessera" train "${unet[@]}" --image-size 256 --batch-size 1 --synthetic-images 4 --steps 2 --checkpoint-dir c
for limit in 1GiB 30MiB 5MiB; do
  low=(--synthetic-images 20 --dtype float64 --threads 1 --memory $limit --scratch .)
  expect 0 "loss" -- "$tessera" eval c "${low[@]}" --json eval.$limit.json
  [ -z "${predicts:-}" ] || expect 0 "loss" -- "$tessera" predict c "${low[@]}" -o predictions.$limit
done
python3 - <<'P' || { echo "FAILED: evaluation in little memory"; failures=$((failures + 1)); }
import json
runs = {limit: json.load(open(f"eval.{limit}.json")) for limit in ("1GiB", "30MiB", "5MiB")}
batches = [run["plan"]["global_batch"] for run in runs.values()]
assert batches[0] == 32 > batches[1] > batches[2] == 1, batches
for run in runs.values():
    assert abs(run["evaluation"]["loss"] - runs["1GiB"]["evaluation"]["loss"]) < 1e-12, run["evaluation"]["loss"]
P
for limit in 30MiB 5MiB; do
  [ -z "${predicts:-}" ] || diff -r predictions.1GiB predictions.$limit >/dev/null || { echo "FAILED: masks with --memory $limit"; failures=$((failures + 1)); }
done
expect 2 "nothing fits" -- "$tessera" eval c --synthetic-images 20 --threads 1 --memory 500KiB --scratch .
# What the flags of the plan need of a batch stays.
expect 0 "loss" -- "$tessera" eval c --synthetic-images 20 --split-size 2 --parts 4 --threads 1 --memory 20MiB --scratch .
expect 0 "memory" -- "$tessera" plan "${net[@]}" --memory 40MiB --scratch "$work"

[ $failures = 0 ] && echo "all as wanted"
exit $((failures > 0))
