#!/usr/bin/env bash
# `tessera report` as a user meets it, opened in a browser without a network: a run of five ranks with evaluation, three
# runs beside each other, benchmarks, and a page that follows a run.
# Usage: report.sh TESSERA [CHROMIUM]
set -u
tessera=$1
browser=${2:-}
. "$(dirname "$0")/expect.sh"
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# has FILE PATTERN...: every pattern is in the file.
has() {
  local file=$1
  shift
  for pattern in "$@"; do grep -qF -e "$pattern" "$file" || fail "no «$pattern» in $file"; done
}
# opened FILE: the page as the browser has it after its script ran.
opened() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --dump-dom "$@" 2>browser.log
}

small=(--model resnet_v1 --depth 8 --image-size 24x32 --batch-size 4 --num-classes 3 --synthetic-images 40)
expect 0 "step 12/12" -- "$tessera" train "${small[@]}" --steps 12 --parts 2 --split-size 2 --num-spatial-parts 4 \
  --eval-every 6 --log-dir tiles
expect 0 "step 12/12" -- "$tessera" train "${small[@]}" --steps 12 --lr 0.002 --eval-every 6 --log-dir slow
expect 0 "step 8/8" -- "$tessera" train "${small[@]}" --steps 8 --seed 3 --run whole
[ -d whole/step-000008 ] && [ -f whole/log/metrics.jsonl ] || fail "--run leaves: $(ls whole whole/log)"
for document in run.json evaluation.json timeline.json samples.json; do
  [ -s "tiles/$document" ] || fail "the log has no $document"
done
python3 - <<'P' || fail "the documents of a log"
import json
run, timeline = json.load(open("tiles/run.json")), json.load(open("tiles/timeline.json"))
assert run["state"] == "finished" and len(run["rank_parts"]) == 5 == len(run["predicted_bytes"]), run
assert {c["stage"] for c in run["cells"]} == {0, 1}, run["cells"]
assert len(timeline["ranks"]) == 5 == len(timeline["parts"]) == len(timeline["simulated"]["ranks"])
names = [e["name"] for e in timeline["ranks"][4]]
assert names == ["F0", "B0", "F1", "B1", "S"], names
assert any(p["part"] == "margin exchange" for p in timeline["parts"][0]), "no margins"
assert all(0 <= e["begin"] <= e["end"] <= timeline["seconds"] + 1e-9 for r in timeline["ranks"] for e in r)
P

# Masks: what is true and what was predicted, over the image.
expect 0 "step 4/4" -- "$tessera" train --model unet --num-layers 2 --num-filters 4 --image-size 24x32 --batch-size 2 \
  --num-classes 3 --synthetic-images 16 --steps 4 --eval-every 2 --num-spatial-parts 4 --log-dir masks
expect 0 "masks.html: 1 run" -- "$tessera" report masks -o masks.html
if "$tessera" --version | grep -qE "libvips +[0-9]"; then
  [ "$(ls masks/samples | wc -l)" = 12 ] || fail "pictures of masks: $(ls masks/samples)"
  [ "$(grep -o "<figcaption>truth</figcaption>" masks.html | wc -l)" = 4 ] || fail "truths in the page"
  [ "$(grep -o "<figcaption>prediction</figcaption>" masks.html | wc -l)" = 4 ] || fail "predictions in the page"
fi

expect 0 "one.html: 1 run" -- "$tessera" report tiles -o one.html
expect 0 "all.html: 3 runs" -- "$tessera" report tiles slow whole -o all.html
expect 0 -- "$tessera" bench spatial "${small[@]}" --steps 3 --json spatial.json
expect 0 -- "$tessera" bench layer "${small[@]}" --steps 3 --json layer.json
expect 0 "bench.html: 2 runs" -- "$tessera" report spatial.json layer.json -o bench.html
for page in *.html; do
  [ "$(wc -c <$page)" -lt 2000000 ] || fail "$page has $(wc -c <$page) bytes"
  ! grep -qE 'https?://' $page || fail "$page asks for the network"
done
expect 2 "no run nowhere" "--log-dir" -- "$tessera" report nowhere
expect 2 "no log of a run in $work" -- "$tessera" report "$work"
expect 2 "--port is for --watch" -- "$tessera" report tiles --port 80
expect 2 "required" -- "$tessera" report

if [ -n "$browser" ]; then
  opened "file://$work/one.html" >one.dom
  # The script ran, and the figures are those of the documents.
  has one.dom '<div id="tip"' 'class="chart"' '4 tiles, 2 stages' 'Confusion matrix' 'id="timeline"' 'data:image/jpeg' \
    'finished'
  python3 - <<'P' || fail "the figures in the page"
import json, html, re
dom = open("one.dom").read()
metrics = [json.loads(line) for line in open("tiles/metrics.jsonl")]
charts = [json.loads(html.unescape(c)) for c in re.findall(r'data-series="([^"]*)"', dom)]
loss = [c for c in charts if any("training" in s["name"] for s in c["series"])][0]
shown = [s for s in loss["series"] if "training" in s["name"]][0]
wanted = [m["train/loss"] for m in metrics if "train/loss" in m]
assert len(shown["y"]) == 12 and all(abs(a - b) < 1e-4 * b for a, b in zip(shown["y"], wanted)), (shown, wanted)
run, evaluation = json.load(open("tiles/run.json")), json.load(open("tiles/evaluation.json"))
assert [int(b) for b in re.findall(r'data-bytes="(\d+)"', dom)] == run["peak_bytes"], dom
counts = [int(c) for c in re.findall(r'data-count="(\d+)"', dom)]
assert counts == [c for row in evaluation["confusion"] for c in row], counts
assert len(re.findall('data-part="compute"', dom)) == 5
assert len(re.findall("<figure", dom)) == min(18, evaluation["images"])
P
  opened "file://$work/all.html" >all.dom
  [ "$(grep -o '<article>' all.dom | wc -l)" = 3 ] || fail "three runs are not side by side"
  opened "file://$work/bench.html" >bench.dom
  has bench.dom 'Benchmarks' 'data-way="spatial: ' 'data-way="layer: ' '24x32'

  # A page that follows a run, for this machine only.
  "$tessera" report tiles --watch >watch.log 2>&1 &
  server=$!
  for ((i = 0; i < 200; ++i)); do grep -q http watch.log && break; sleep 0.1; done
  address=$(grep -o 'http://127.0.0.1:[0-9]*/' watch.log)
  cp tiles/metrics.jsonl saved
  printf '{"step": 13, "time": 9e9, "train/loss": 0.125, "speed/step_seconds": 1}\n' >>tiles/metrics.jsonl
  opened --virtual-time-budget=1000 "$address" >watch.dom
  has watch.dom 'data-watch="1"' '0.125'
  mv saved tiles/metrics.jsonl
  python3 - "$address" <<'P' || fail "the server answers others"
import sys, urllib.request, urllib.error
for path, headers in (("etc/passwd", {}), ("", {"Host": "evil.example"})):
    try: urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path, headers=headers)); sys.exit(1)
    except urllib.error.HTTPError as error: assert error.code == 404
P
fi

[ $failures = 0 ] && echo "reports show what happened" || { echo "$failures checks failed"; exit 1; }
