#!/usr/bin/env bash
# Installs a build tree to a folder of its own, builds examples/own_model and examples/own_operation against the installed
# package as a user would, and runs them: verify must find them equal to torch's autograd and on tiles, stages and two
# directions equal to one device, train must give the losses of its steps.
#
#   own_code.sh BUILD_FOLDER EXAMPLES_FOLDER
set -euo pipefail

build=${1:?own_code.sh BUILD_FOLDER EXAMPLES_FOLDER}
examples=${2:?own_code.sh BUILD_FOLDER EXAMPLES_FOLDER}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "own_code.sh: $*" >&2; exit 1; }
# quietly LOG COMMAND...: shows the output only if the command fails.
quietly() {
  local log=$scratch/$1
  shift
  "$@" >"$log" 2>&1 || { cat "$log" >&2; fail "failed: $*"; }
}
# The example is built with the tools and the torch of the build tree.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

quietly install.log cmake --install "$build" --prefix "$scratch/installed"
quietly version.log "$scratch/installed/bin/tessera" --version
for example in own_model own_operation; do
  quietly configure.log cmake -S "$examples/$example" -B "$scratch/$example" -G "$(cached CMAKE_GENERATOR)" \
    -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" -DCMAKE_C_COMPILER="$(cached CMAKE_C_COMPILER)" \
    -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" -DTorch_DIR="$(cached Torch_DIR)" \
    -DCMAKE_PREFIX_PATH="$scratch/installed;$(cached CMAKE_PREFIX_PATH)"
  quietly build.log cmake --build "$scratch/$example"
done
program=$scratch/own_model/own_model
small=(--threads 1 --batch-size 4)

# verified NAME PROGRAM FLAGS...: verify says that all numbers are equal.
verified() {
  local log=$1
  shift
  quietly "$log.log" "$@"
  grep -q '^equal: ' "$scratch/$log.log" || { cat "$scratch/$log.log"; fail "verify does not say 'equal': $*"; }
  printf '%s: %s\n' "$log" "$(tail -1 "$scratch/$log.log")"
}

# An odd size, and two micros.
verified own_model "$program" verify --model slide_net --image-size 45x37 --parts 2 --steps 2 "${small[@]}"

# The operation of its own, on every kind of plan.
contrast=("$scratch/own_operation/own_operation" verify --model contrast_net --image-size 45x37 --steps 2 "${small[@]}")
verified operation_on_one_rank "${contrast[@]}" --parts 2
verified operation_on_tiles "${contrast[@]}" --grid 2x2
verified operation_in_fused_margins "${contrast[@]}" --grid 2x2 --fused-layers 2 --halo-D2
verified operation_in_two_stages "${contrast[@]}" --parts 2 --split-size 2 --recompute block
verified operation_in_two_directions "${contrast[@]}" --parts 2 --split-size 2 --schedule gems-mast

quietly train.log "$program" train --model slide_net --image-size 96 --steps 5 "${small[@]}" --json "$scratch/run.json"
grep -Eq '^5 steps, loss [0-9.]+ -> [0-9.]+, ' "$scratch/train.log" ||
  { cat "$scratch/train.log"; fail "train does not end with its summary"; }
grep -q '"model": "slide_net"' "$scratch/run.json" || fail "the report does not name the model"
verified dropout "$program" verify --model slide_net_dropout --image-size 32 --steps 2 "${small[@]}"

# The own network is refused and listed like any other.
code=0
"$program" train --model nonsense >"$scratch/refused.log" 2>&1 || code=$?
((code == 2)) || fail "an unknown model gives exit code $code, not 2"
grep -q 'slide_net' "$scratch/refused.log" || { cat "$scratch/refused.log"; fail "slide_net is not among the models"; }
echo "own_model and own_operation were built against the installed package, verified and trained"
