#!/usr/bin/env python3
"""compare_curves.py FIRST.json SECOND.json: two runs of `tessera train --json`, loss against loss.

Means of 20 steps are compared, because single steps jump. Fails when they differ by more than 2 % of the first run's.
"""
import json
import sys

allowed, window = 0.02, 20
curves = [[step["loss"] for step in json.load(open(path, encoding="utf-8"))["steps"]] for path in sys.argv[1:3]]
worst = 0.0
for at in range(0, len(curves[0]) - window + 1, window):
    first, second = (sum(curve[at:at + window]) / window for curve in curves)
    worst = max(worst, abs(second / first - 1))
    print(f"steps {at + 1:4} to {at + window:4}: {first:.4f} {second:.4f} {second / first - 1:+.2%}")
print(f"{'within' if worst <= allowed else 'beyond'} {allowed:.0%}: the largest difference is {worst:.2%}")
sys.exit(worst > allowed)
