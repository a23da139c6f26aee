#!/usr/bin/env bash
# Files of torch.export, made by make_pt2.py with torch 2.11: one rank against the graph run operator by operator, and
# tiles and stages against one rank. Usage: pt2.sh TESSERA NAME[@SIZE]...     of images of 64 pixels, as at their export
set -u
tessera=$1
shift
folder=$(dirname "$0")/pt2
failed=0
for which in "$@"; do
  name=${which%@*} size=64
  [[ $which == *@* ]] && size=${which#*@}
  for plan in "" "--grid 2x2,1x1 --split-size 2"; do
    # shellcheck disable=SC2086
    said=$("$tessera" verify --model "$folder/$name.pt2" --image-size "$size" --batch-size 4 --steps 1 $plan 2>&1)
    status=$?
    echo "$which ${plan:-one rank}: $(tail -1 <<<"$said")"
    ((status == 0)) || { failed=1; echo "$said" | head -20; }
  done
done
exit $failed
