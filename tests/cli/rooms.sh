#!/usr/bin/env bash
# Holds the rooms of src/tessera to the order in which data walks through them: no room includes one that it may not
# know, rooms made of integers include neither torch nor MPI, and only comm includes mpi.h.
#
#   rooms.sh SOURCE_ROOT               checks SOURCE_ROOT (src/tessera); 1 and a line for each violation
#   rooms.sh --self-test SOURCE_ROOT   plants violations in copies of SOURCE_ROOT; 1 unless each of them is caught
set -euo pipefail

# room: the rooms that it may include, besides itself.
allowed='
base:
geometry: base
graph: base geometry
models: base geometry graph
import: base geometry graph
program: base geometry graph
plan: base geometry graph models program
schedule: base geometry graph program plan
planner: base geometry graph models program plan schedule
comm: base geometry
ops: base geometry graph program
archive: base geometry graph import
data: base geometry
runtime: base geometry graph models program plan schedule comm ops data
trials: base geometry graph models program plan schedule planner comm ops runtime
oracle: base geometry graph program comm archive data runtime ops plan
io: base geometry graph program plan schedule runtime
report: base
'
integer_rooms=' base geometry graph models import program plan schedule planner report '

check() {
  local root=$1
  [[ -d "$root/base" ]] || { echo "rooms.sh: '$root' has no room 'base'; give the path of src/tessera" >&2; return 2; }
  (cd "$root" && find . -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -printf '%P\n' |
    sort | tr '\n' '\0' | ALLOWED="$allowed" INTEGER_ROOMS="$integer_rooms" xargs -0 awk '
      BEGIN {
        rooms = split(ENVIRON["ALLOWED"], lines, "\n")
        for (i = 1; i <= rooms; ++i) {
          colon = index(lines[i], ":")
          if (colon) may[substr(lines[i], 1, colon - 1)] = substr(lines[i], colon + 1) " "
        }
      }
      function violation(rule) { printf "%s:%d: %s\n    %s\n", FILENAME, FNR, rule, $0; ++violations }
      FNR == 1 {
        room = FILENAME
        sub("/.*", "", room)
        known = room in may
        if (!known) violation("\"" room "\" is not a room; the rooms are listed in tests/cli/rooms.sh")
      }
      !known || !/^[ \t]*#[ \t]*include[ \t]*["<]/ { next }
      {
        target = $0
        sub("^[^\"<]*[\"<]", "", target)
        sub("[\">].*", "", target)
      }
      target ~ "(^|/)\\.\\./" { violation("an include goes up a folder; write the path from tessera/ on") }
      target ~ "^tessera/" {
        other = target
        sub("^tessera/", "", other)
        sub("/.*", "", other)
        if (other != room && index(may[room], " " other " ") == 0)
          violation(room " may not include " other "; it may include:" (may[room] == " " ? " nothing" : may[room]))
      }
      target == "mpi.h" && room != "comm" { violation("only comm may include mpi.h") }
      target ~ "^(ATen|torch|c10|caffe2)/" && index(ENVIRON["INTEGER_ROOMS"], " " room " ") {
        violation(room " may not include torch (ATen, torch, c10)")
      }
      END { if (violations) { printf "%d violations of the order of rooms\n", violations; exit 1 } }
    ')
}

# plant FILE INCLUDE RULE: the check of a copy with `INCLUDE` at the end of FILE must fail and name file and rule.
plant() {
  local file=$1 include=$2 rule=$3 copy=$scratch/tessera output line
  rm -rf "$copy"
  cp -R "$source_root" "$copy"
  mkdir -p "$(dirname "$copy/$file")"
  printf '#pragma once\n\n%s\n' "$include" >"$copy/$file"
  if output=$(check "$copy"); then
    echo "not caught: $include in $file"
    failed=1
  elif line="$file:3: $rule"; [[ "$output" != *"$line"* ]]; then
    printf 'caught %s in %s, but the message lacks "%s":\n%s\n' "$include" "$file" "$line" "$output"
    failed=1
  fi
}

self_test() {
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  failed=0
  plant base/planted.h '#include "tessera/geometry/box.h"' 'base may not include geometry'
  plant geometry/planted.h '#  include <tessera/graph/graph.h>' 'geometry may not include graph'
  plant graph/inner/planted.cpp '#include "tessera/plan/plan.h"' 'graph may not include plan'
  plant schedule/planted.h '#include "tessera/models/resnet.h"' 'schedule may not include models'
  plant ops/planted.h '#include "tessera/plan/plan.h"' 'ops may not include plan'
  plant data/planted.h '#include "tessera/comm/exchange.h"' 'data may not include comm'
  plant runtime/planted.h '#include "tessera/io/trace.h"' 'runtime may not include io'
  plant io/planted.h '#include "tessera/data/loader.h"' 'io may not include data'
  plant report/planted.h '#include "tessera/io/file.h"' 'report may not include io'
  plant plan/planted.h '#include <ATen/core/Tensor.h>' 'plan may not include torch'
  plant models/planted.cpp '#include <c10/util/Exception.h>' 'models may not include torch'
  plant import/planted.cpp '#include <torch/script.h>' 'import may not include torch'
  plant archive/planted.h '#include "tessera/plan/plan.h"' 'archive may not include plan'
  plant base/planted.cpp '#include <torch/torch.h>' 'base may not include torch'
  plant runtime/planted.cpp '#include <mpi.h>' 'only comm may include mpi.h'
  plant data/planted.cpp '#include "../comm/exchange.h"' 'an include goes up a folder'
  rm -rf "$scratch/tessera"
  cp -R "$source_root" "$scratch/tessera"
  mkdir "$scratch/tessera/cellar"
  echo '#pragma once' >"$scratch/tessera/cellar/planted.h"
  if check "$scratch/tessera" >"$scratch/output" ||
    ! grep -q 'cellar/planted.h:1: "cellar" is not a room' "$scratch/output"; then
    echo "not caught: a room that is not in the list"
    failed=1
  fi
  if ((failed)); then return 1; fi
  echo "every planted violation was caught"
}

case "${1:-}" in
  --self-test) source_root=${2:?rooms.sh --self-test SOURCE_ROOT}; self_test ;;
  '') echo "usage: rooms.sh [--self-test] SOURCE_ROOT" >&2; exit 2 ;;
  *) check "$1" ;;
esac
