#!/usr/bin/env bash
# What a careless user types: each gets one clear message that names the flag, and the right exit code, at once.
# Usage: bad_input.sh TESSERA [MPIRUN]
set -u
tessera=$1
mpirun=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect CODE PATTERN... -- COMMAND...: runs the command, wants the exit code and every pattern in its output.
expect() {
  local code=$1 patterns=()
  shift
  while [ "$1" != -- ]; do patterns+=("$1"); shift; done
  shift
  local output status
  output=$(timeout 60 "$@" 2>&1)
  status=$?
  local good=1
  [ "$status" = "$code" ] || good=0
  for pattern in "${patterns[@]}"; do grep -qF -e "$pattern" <<<"$output" || good=0; done
  if [ $good = 0 ]; then
    failures=$((failures + 1))
    printf 'FAILED: %s\n  wanted exit code %s and: %s\n  got exit code %s and:\n%s\n' "$*" "$code" \
      "$(printf '«%s» ' "${patterns[@]}")" "$status" "$(sed 's/^/    /' <<<"$output")"
  fi
}

train=("$tessera" train --steps 2 --batch-size 4 --model resnet_v1 --depth 8 --image-size 16)

expect 2 "--frobnicate" -- "${train[@]}" --frobnicate
expect 2 "no model 'resnet19'" "resnet18" -- "$tessera" train --model resnet19
expect 2 "--num-layers 4" "--num-layers 6" -- "$tessera" train --model amoebanet --num-layers 4
expect 2 "--depth 21" "--depth 20" -- "$tessera" train --model resnet_v1 --depth 21
expect 2 "--depth" "resnet50" -- "$tessera" train --model resnet50 --depth 20
expect 2 "--batch-size 10" "--parts 4" -- "$tessera" train --batch-size 10 --parts 4
expect 2 "--image-size 0" -- "$tessera" train --image-size 0
expect 2 "--image-size 12y7" -- "$tessera" train --image-size 12y7
expect 2 "--image-size" "CIFAR-10" -- "$tessera" train --app cifar --image-size 64 --datapath "$work"
expect 2 "--datapath" "$work/none" -- "$tessera" train --app 2 --datapath "$work/none"
expect 2 "--app" -- "$tessera" train --app imagenet
expect 2 "--dtype" -- "$tessera" train --dtype float8
expect 2 "--lr" -- "$tessera" train --lr fast
expect 2 "--steps 0" -- "$tessera" train --steps 0
expect 2 "--threads 0" -- "${train[@]}" --threads 0
expect 2 "--batch-size 8192" "--synthetic-images" -- "$tessera" train --batch-size 8192
expect 2 "--json" -- "${train[@]}" --json "$work/no/such/folder/run.json"
# A network whose last feature map is one pixel has nothing to normalise over with a batch of one.
expect 2 "--batch-size" "--image-size" -- "$tessera" train --model resnet18 --image-size 8 --batch-size 1 --steps 1
# Everything that is wrong comes in one message.
expect 2 "4 problems" "--batch-size 10" "--spatial-size" "--num-layers 4" "--lr -1" -- \
  "$tessera" train --model amoebanet --num-layers 4 --batch-size 10 --parts 4 --spatial-size 2 --lr -1
# A GPU that is not there: the program was built without CUDA, or sees none.
expect 2 "--device cuda" "--device cpu" -- env CUDA_VISIBLE_DEVICES= "${train[@]}" --device cuda
expect 2 "--dtype bfloat16" "--device cuda" "--dtype float32" -- "${train[@]}" --dtype bfloat16
expect 2 "--tf32" "--device cuda" -- "${train[@]}" --tf32
# Plans that cannot be.
expect 2 "--spatial-size 3" "--split-size 3" -- "${train[@]}" --num-spatial-parts 2 --spatial-size 3 --split-size 2
expect 2 "leaves a tile empty" "layer" "4x4" -- "${train[@]}" --grid 5x5
expect 2 "leaves a tile empty" "input" -- "${train[@]}" --num-spatial-parts 17 --slice-method vertical
expect 2 "--fused-layers 0" -- "${train[@]}" --num-spatial-parts 4 --halo-D2 --fused-layers 0
expect 2 "--halo-D2" -- "${train[@]}" --halo-D2
expect 2 "--slice-method" -- "${train[@]}" --slice-method vertical
expect 2 "--balance 3,3" -- "${train[@]}" --split-size 2 --balance 3,3
expect 2 "--split-size 9" -- "${train[@]}" --split-size 9
expect 2 "--local-DP 2" -- "${train[@]}" --local-DP 2
expect 2 "--local-DP 3" "--batch-size" -- "${train[@]}" --num-spatial-parts 2 --split-size 2 --local-DP 3
expect 2 "--times" -- "${train[@]}" --schedule gpipe --times 2

# CIFAR files that are missing, cut short or not CIFAR.
mkdir "$work/cifar"
expect 2 "data_batch_1.bin" -- "$tessera" train --app cifar --datapath "$work/cifar"
for i in 1 2 3 4 5; do head -c $((3073 * 4)) /dev/zero >"$work/cifar/data_batch_$i.bin"; done
expect 0 "step 2/2" -- "$tessera" train --steps 2 --batch-size 4 --model resnet_v1 --depth 8 --app cifar --datapath "$work/cifar"
head -c 5000 /dev/zero >"$work/cifar/data_batch_3.bin"
expect 2 "data_batch_3.bin" "5000" -- "$tessera" train --app cifar --datapath "$work/cifar"
head -c 3073 /dev/zero | tr '\0' '\377' >"$work/cifar/data_batch_3.bin"
expect 2 "data_batch_3.bin" "255" -- "$tessera" train --app cifar --datapath "$work/cifar"

# A loss that is not a number: the step, and an exit code of its own.
expect 3 "at step" "--lr" -- "$tessera" train --steps 20 --batch-size 4 --model resnet_v1 --depth 8 --image-size 16 \
  --lr 1e30

# No flags at all: help, and no success.
expect 2 "train" "verify" -- "$tessera"
expect 0 "Parallelism" "--num-spatial-parts" -- "$tessera" train --help
expect 0 "libtorch" "MPI" -- "$tessera" --version

if [ -n "$mpirun" ]; then
  expect 2 "started 3 ranks" "mpirun -np 1" -- "$mpirun" -np 3 "${train[@]}"
  expect 0 "step 2/2" -- "$mpirun" -np 1 "${train[@]}"
  expect 2 "started 3 ranks" "mpirun -np 4" -- "$mpirun" -np 3 "${train[@]}" --num-spatial-parts 4
  expect 2 "leaves a tile empty" -- "$mpirun" -np 3 "${train[@]}" --grid 1x17
fi

[ $failures = 0 ] && echo "every careless line got its message" || { echo "$failures lines failed"; exit 1; }
