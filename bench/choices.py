#!/usr/bin/env python3
"""Whether --auto takes the right plan: what it chose beside all sensible plans, each of them run.

usage: bench/choices.py TESSERA [--steps N] [--json FILE] [--match TEXT]

For each problem (a network, a size, a batch, so many ranks): train --auto, then every plan of a list that the batch and
the network allow. All are run twice, in turn, and the better half counts, for a machine is sometimes disturbed. Run it on
an idle machine.
"""
import argparse
import json
import os
import re
import statistics
import subprocess

PROBLEMS = {
    "resnet18 160, batch 4, 2 ranks": (["--model", "resnet18", "--image-size", "160"], 4, 2),
    "resnet18 320, batch 1, 2 ranks": (["--model", "resnet18", "--image-size", "320"], 1, 2),
    "resnet_v2-29 128, batch 4, 2 ranks": (["--model", "resnet_v2", "--depth", "29", "--image-size", "128"], 4, 2),
    "resnet50 192, batch 4, 2 ranks": (["--model", "resnet50", "--image-size", "192"], 4, 2),
    "unet 192, batch 2, 2 ranks": (["--model", "unet", "--num-layers", "3", "--num-filters", "16", "--image-size", "192"],
                                   2, 2),
    "amoebanet 128, batch 4, 2 ranks": (["--model", "amoebanet", "--num-layers", "3", "--num-filters", "32",
                                         "--image-size", "128"], 4, 2),
    "resnet_v1-20 96, batch 8, 4 ranks": (["--model", "resnet_v1", "--depth", "20", "--image-size", "96"], 8, 4),
    "resnet18 160, batch 4, 4 ranks": (["--model", "resnet18", "--image-size", "160"], 4, 4),
}


def sensible(ranks, batch):
    """Flags of every plan of so many ranks that somebody would try."""
    for copies in (c for c in (1, 2, 4) if ranks % c == 0 and batch % c == 0):
        rest = ranks // copies
        base = ["--replicas", str(copies), "--batch-size", str(batch // copies)]
        if rest == 1:
            yield base
        for rows in range(1, rest + 1):
            if rest > 1 and rest % rows == 0:
                yield [*base, "--grid", f"{rows}x{rest // rows}"]
        for parts in (p for p in (1, 2, 4) if rest > 1 and (batch // copies) % p == 0):
            for schedule in ("gpipe", "1f1b", "zero-bubble", "chimera"):
                yield [*base, "--split-size", str(rest), "--parts", str(parts), "--schedule", schedule]
        if rest == 4:
            yield [*base, "--split-size", "2", "--grid", "1x2", "--parts", "2", "--schedule", "1f1b"]


def run(tessera, flags, steps):
    """The document of a run, or None if there is no such plan."""
    command = [tessera, "train", *flags, "--num-classes", "10", "--steps", str(steps), "--synthetic-images", "64", "--quiet",
               "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode == 2:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json")
    parser.add_argument("--match", default="", help="problems whose names match this regular expression")
    arguments = parser.parse_args()
    found = {}
    if arguments.json and os.path.exists(arguments.json):
        with open(arguments.json, encoding="utf-8") as file:
            found = json.load(file)
    shares = []
    for name, (network, batch, ranks) in PROBLEMS.items():
        if not re.search(arguments.match, name):
            continue
        if name not in found:
            chosen = run(arguments.tessera, [*network, "--batch-size", str(batch), "--auto", "--ranks", str(ranks)], 2)
            flags = [w for key, value in chosen["flags"].items() for w in (f"--{key}", value)]
            plans = {"chosen": flags}
            plans.update({" ".join(p): p for p in sensible(ranks, batch)})
            speeds = {}
            for _ in range(2):
                for plan, words in plans.items():
                    document = run(arguments.tessera, [*network, *words], arguments.steps)
                    if document:
                        speeds.setdefault(plan, []).append(document["images_per_second"]["median"])
            best = {plan: max(all) for plan, all in speeds.items()}
            found[name] = {"chosen": " ".join(flags), "speeds": best, "share": best["chosen"] / max(best.values())}
            if arguments.json:
                with open(arguments.json, "w", encoding="utf-8") as out:
                    json.dump(found, out, indent=1)
        shares.append(found[name]["share"])
        speeds = dict(found[name]["speeds"])
        mine = speeds.pop("chosen")
        best = max(speeds, key=speeds.get)
        print(f"{name:36} {mine:7.2f} images/s, {found[name]['share']:.2f} of the best of {len(speeds)} plans "
              f"(the median plan {statistics.median(speeds.values()) / mine:.2f}); chosen: {found[name]['chosen']}; "
              f"best: {best}", flush=True)
    print(f"{sum(share >= 0.95 for share in shares)} of {len(shares)} within 5 %")


main()
