#!/usr/bin/env bash
# Installs a build tree to a folder of its own, builds examples/own_model against the installed package as a user would,
# and runs it: verify must find it equal to torch's autograd, train must give the losses of its steps.
#
#   own_model.sh BUILD_FOLDER EXAMPLE_FOLDER
set -euo pipefail

build=${1:?own_model.sh BUILD_FOLDER EXAMPLE_FOLDER}
example=${2:?own_model.sh BUILD_FOLDER EXAMPLE_FOLDER}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "own_model.sh: $*" >&2; exit 1; }
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
quietly configure.log cmake -S "$example" -B "$scratch/build" -G "$(cached CMAKE_GENERATOR)" \
  -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" -DCMAKE_C_COMPILER="$(cached CMAKE_C_COMPILER)" \
  -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" -DTorch_DIR="$(cached Torch_DIR)" \
  -DCMAKE_PREFIX_PATH="$scratch/installed;$(cached CMAKE_PREFIX_PATH)"
quietly build.log cmake --build "$scratch/build"
program=$scratch/build/own_model
small=(--threads 1 --batch-size 4)

# An odd size, and two micros.
quietly verify.log "$program" verify --model slide_net --image-size 45x37 --parts 2 --steps 2 "${small[@]}"
grep -q '^equal: ' "$scratch/verify.log" || { cat "$scratch/verify.log"; fail "verify does not say 'equal'"; }

quietly train.log "$program" train --model slide_net --image-size 96 --steps 5 "${small[@]}" --json "$scratch/run.json"
grep -Eq '^5 steps, loss [0-9.]+ -> [0-9.]+, ' "$scratch/train.log" ||
  { cat "$scratch/train.log"; fail "train does not end with its summary"; }
grep -q '"model": "slide_net"' "$scratch/run.json" || fail "the report does not name the model"
quietly dropout.log "$program" verify --model slide_net_dropout --image-size 32 --steps 2 "${small[@]}"

# The own network is refused and listed like any other.
code=0
"$program" train --model nonsense >"$scratch/refused.log" 2>&1 || code=$?
((code == 2)) || fail "an unknown model gives exit code $code, not 2"
grep -q 'slide_net' "$scratch/refused.log" || { cat "$scratch/refused.log"; fail "slide_net is not among the models"; }
echo "own_model was built against the installed package, verified and trained"
