#!/usr/bin/env bash
# Convolutions are chosen by measurement, once: the second run of a shape takes what the first has found, on all ranks,
# and --conv-choice fixed takes nothing from anybody.
# Usage: conv_choice.sh TESSERA MPIRUN
set -u
tessera=$1 mpirun=$2
. "$(dirname "$0")/expect.sh"
unset TESSERA_WAYS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
ways=$work/cache/tessera/ways
train=("$tessera" train --model resnet_v1 --depth 8 --image-size 32 --batch-size 4 --steps 3 --threads 1 --quiet)

fail() { failures=$((failures + 1)); echo "FAILED: $*"; }
# losses FILE: as many digits as there are.
losses() { sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' "$1"; }

expect 0 "conv       measured, kept in $ways" -- "$tessera" --version
expect 0 "conv       fixed, by TESSERA_WAYS" -- env TESSERA_WAYS=fixed "$tessera" --version
expect 2 "--conv-choice" -- "${train[@]}" --conv-choice quick
expect 2 "TESSERA_WAYS=quick is no way to choose" -- env TESSERA_WAYS=quick "${train[@]}"

# Nothing is looked up and nothing left behind by those who do not measure.
expect 0 -- "${train[@]}" --conv-choice fixed --json "$work/fixed.json"
expect 0 -- env TESSERA_WAYS=fixed "${train[@]}" --json "$work/fixed_too.json"
expect 0 -- "${train[@]}" --dtype float64
expect 0 -- "$tessera" plan --model resnet_v1 --depth 8 --image-size 32 --batch-size 4
[ -e "$ways" ] && fail "a run that does not measure has written $ways"
[ -n "$(losses "$work/fixed.json")" ] || fail "no losses in the run's JSON"
[ "$(losses "$work/fixed.json")" = "$(losses "$work/fixed_too.json")" ] || fail "fixed rules gave other bits"

# The first measured run writes, the second reads, and repeats its bits.
expect 0 -- "${train[@]}" --json "$work/first.json"
[ -s "$ways" ] || fail "no measurement was kept"
grep -q 'conv 3x3/1x1.*, forward, 1 threads' "$ways" || fail "no 3x3 convolution in $ways"
grep -q 'weight gradient, 1 threads' "$ways" || fail "no weight gradient in $ways"
before=$(cat "$ways")
expect 0 -- "${train[@]}" --json "$work/second.json"
[ "$before" = "$(cat "$ways")" ] || fail "a second run has measured again"
[ "$(losses "$work/first.json")" = "$(losses "$work/second.json")" ] || fail "a second run has other bits"

# The file decides: a way that it names is taken, and what is wrong in it is measured anew.
sed 's|\t[a-z]*\t|\tconvolution\t|' <<<"$before" > "$ways"
expect 0 -- "${train[@]}"
grep -q $'\tdirect\|\twinograd' "$ways" && fail "a known way was measured again"
head -c 300 /dev/urandom > "$ways"
expect 0 -- "${train[@]}"
grep -q 'conv 3x3/1x1.*, forward, 1 threads' "$ways" || fail "a spoilt file was not written anew"

# Where nothing can be kept, the run goes on all the same.
expect 0 -- env XDG_CACHE_HOME=/dev/null/nowhere "${train[@]}"
expect 0 -- env -u XDG_CACHE_HOME -u HOME "${train[@]}"

# With fewer threads than cores, as the environment says: oneDNN waits for ever for threads that it does not get.
expect 0 -- env OMP_THREAD_LIMIT=1 XDG_CACHE_HOME="$work/other" "$tessera" train --model resnet_v1 --depth 8 --image-size 16 \
  --num-classes 3 --batch-size 4 --synthetic-images 8 --steps 1

# Ranks of several processes: one measures for all, in the number of threads of each.
rm -rf "$work/cache"
spatial=(--split-size 2 --num-spatial-parts 2 --slice-method vertical)
expect 0 -- "$mpirun" -np 3 "${train[@]}" "${spatial[@]}"
grep -q 'conv 3x3.*, 4x32x16, forward, 1 threads' "$ways" || fail "no tile was measured"
grep -c . "$ways" > "$work/lines"
[ "$(cut -f 1 "$ways" | sort | uniq -d)" = "" ] || fail "two answers to one question"
[ "$(ls "$work/cache/tessera")" = ways ] || fail "files are left beside $ways"

[ $failures = 0 ] && echo "chosen once, kept, and left alone when fixed" || { echo "$failures lines failed"; exit 1; }
