#!/usr/bin/env python3
"""How well --auto knows a run: expected over measured images/s, plan by plan.

usage: bench/forecasts.py TESSERA [--steps N] [--json FILE] [--match TEXT] [--mpiexec mpirun] [--before "COMMAND"]
                          [--device cuda]

Rows whose name ends in "mpi" are processes of mpirun, the others threads. --json keeps what is measured row by row, and
rows that are in the file are not measured again; --before puts a command before each, such as a lock on the machine.

Each plan is given whole, so that the search has nothing to choose: what is measured first (cells, stages, links, and on a
CPU the plan itself for some steps) and then run are the same. "From its parts" is what was expected before that. Networks and sizes are not those that the model was written with. Run it on an idle machine.
With --device cuda: other networks, some of them imported from torchvision, on one GPU in bfloat16.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile

NETWORKS = {
    "resnet18 224": ["--model", "resnet18", "--image-size", "224", "--batch-size", "4"],
    "resnet50 192": ["--model", "resnet50", "--image-size", "192", "--batch-size", "4"],
    "resnet_v2-29 160": ["--model", "resnet_v2", "--depth", "29", "--image-size", "160", "--batch-size", "4"],
    "amoebanet 128": ["--model", "amoebanet", "--num-layers", "3", "--num-filters", "32", "--image-size", "128",
                      "--batch-size", "4"],
    "unet 192": ["--model", "unet", "--num-layers", "3", "--num-filters", "16", "--image-size", "192",
                 "--batch-size", "4"],
}
PLANS = {
    "1 rank": ["--ranks", "1", "--parts", "1"],
    "1x2 tiles": ["--ranks", "2", "--grid", "1x2", "--parts", "1"],
    "2x2 tiles": ["--ranks", "4", "--grid", "2x2", "--parts", "1"],
    "2 replicas": ["--ranks", "2", "--replicas", "2", "--parts", "1"],
    "2 stages, 1f1b": ["--ranks", "2", "--split-size", "2", "--parts", "4", "--schedule", "1f1b"],
    "3 stages, gpipe": ["--ranks", "3", "--split-size", "3", "--parts", "2", "--schedule", "gpipe"],
    "1x2 tiles + 1": ["--ranks", "3", "--split-size", "2", "--spatial-size", "1", "--grid", "1x2", "--parts", "2",
                      "--schedule", "1f1b"],
    "2x4 tiles": ["--ranks", "8", "--grid", "2x4", "--parts", "1"],
    "2 of 1x2 tiles": ["--ranks", "4", "--replicas", "2", "--grid", "1x2", "--parts", "1"],
    "4 stages, zero-bubble": ["--ranks", "4", "--split-size", "4", "--parts", "4", "--schedule", "zero-bubble"],
    "2 stages, chimera": ["--ranks", "2", "--split-size", "2", "--parts", "2", "--schedule", "chimera"],
}


ON_A_GPU = {
    "resnet50 1024": ["--model", "resnet50", "--image-size", "1024", "--batch-size", "4"],
    "resnet_v2-110 512": ["--model", "resnet_v2", "--depth", "110", "--image-size", "512", "--batch-size", "4"],
    "unet 768": ["--model", "unet", "--num-layers", "4", "--num-filters", "64", "--image-size", "768",
                 "--batch-size", "4"],
    "amoebanet 768": ["--model", "amoebanet", "--num-layers", "6", "--num-filters", "128", "--image-size", "768",
                      "--batch-size", "4"],
    "convnext_tiny 512": ["--model", "{convnext_tiny}", "--image-size", "512", "--batch-size", "8"],
    "mobilenet_v3_large 512": ["--model", "{mobilenet_v3_large}", "--image-size", "512", "--batch-size", "16"],
}
PLANS_OF_A_GPU = {
    "1 micro": ["--ranks", "1", "--parts", "1"],
    "4 micros": ["--ranks", "1", "--parts", "4"],
    "blocks again": ["--ranks", "1", "--parts", "2", "--recompute", "block"],
}


PARTS = ["computing", "data", "margin exchange", "norm agreement", "transfers", "waiting", "gradient sync", "optimizer"]


def rows_on_a_gpu(folder):
    for network, flags in ON_A_GPU.items():
        for plan, more in PLANS_OF_A_GPU.items():
            name = flags[1].strip("{}")
            path = os.path.join(folder, name + ".pt") if name != flags[1] else name
            yield f"{network}, {plan}", [], ["--model", path, *flags[2:], *more, "--device", "cuda", "--dtype", "bfloat16"]


def save_networks(folder):
    import torch
    import torchvision
    for flags in ON_A_GPU.values():
        if flags[1].startswith("{"):
            name = flags[1].strip("{}")
            network = getattr(torchvision.models, name)(weights=None, num_classes=10).train()
            torch.jit.script(network).save(os.path.join(folder, name + ".pt"))


def rows():
    for network, flags in NETWORKS.items():
        for plan, more in PLANS.items():
            yield f"{network}, {plan}", [], flags + more
            if more[1] != "1":  # "--ranks", N
                yield f"{network}, {plan}, mpi", ["-np", more[1]], flags + more[2:]


def by_part(document):
    """Milliseconds of a step, in the mean over ranks: expected and measured."""
    out = {}
    expected, seconds, parts = document["expected"], document["rank_seconds"], document["rank_parts"]
    for part in PARTS:
        if part == "computing":
            e = [r["computing"] for r in expected]
            m = [s - sum(p.values()) for s, p in zip(seconds, parts)]
        else:
            e, m = [r["parts"].get(part, 0) for r in expected], [p.get(part, 0) for p in parts]
        out[part] = [1e3 * statistics.mean(e), 1e3 * statistics.mean(m)]
    return out


def summary(ratios):
    errors = sorted(abs(r - 1) for r in ratios)
    if errors:
        near = sum(e <= 0.15 for e in errors)
        print(f"{len(errors)} plans: median error {100 * statistics.median(errors):.1f} %, "
              f"90 % within {100 * errors[int(0.9 * (len(errors) - 1))]:.0f} %, {near} within 15 %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--json")
    parser.add_argument("--match", default="", help="rows whose names match this regular expression")
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--before", default="", help="a command to put before each run")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.device == "cuda":
            save_networks(folder)
        measure(arguments, rows_on_a_gpu(folder) if arguments.device == "cuda" else rows())


def measure(arguments, rows):
    done = {}
    if arguments.json and os.path.exists(arguments.json):
        with open(arguments.json, encoding="utf-8") as file:
            done = json.load(file)
    for name, processes, flags in rows:
        if not re.search(arguments.match, name):
            continue
        if name not in done:
            launcher = [*shlex.split(arguments.mpiexec), *processes] if processes else []
            command = [*shlex.split(arguments.before), *launcher, arguments.tessera, "train", *flags, "--auto",
                       *([] if ".pt" in flags[1] else ["--num-classes", "10"]), "--steps", str(arguments.steps), "--synthetic-images", "64", "--quiet",
                       "--json", "-"]
            run = subprocess.run(command, capture_output=True, text=True, timeout=900)
            try:
                document = json.loads(run.stdout)
            except json.JSONDecodeError:
                print(f"{name:42} failed: {run.stderr.strip()[-160:]}", flush=True)
                continue
            batch = document["plan"]["global_batch"]
            done[name] = {"expected": document["expected_images_per_second"],
                          "from parts": batch / document["expected"][0]["seconds"], "measured": document["images_per_second"]["median"],
                          "spread": [document["images_per_second"]["p10"], document["images_per_second"]["p90"]],
                          "memory": [document["predicted_bytes"][0], document["peak_bytes"][0]],
                          "parts": by_part(document)}
            if arguments.json:
                with open(arguments.json, "w", encoding="utf-8") as out:
                    json.dump(done, out, indent=1)
        row = done[name]
        apart = max(row["parts"].items(), key=lambda item: abs(item[1][0] - item[1][1]))
        predicted, peak = row.get("memory", [0, 1])
        print(f"{name:42} {row['expected']:7.2f} images/s expected, {row['expected'] / row['measured']:.2f} of measured "
              f"({row.get('from parts', row['expected']) / row['measured']:.2f} from its parts); "
              f"memory {predicted / peak:.2f} of {peak / 2**30:.2f} GiB; most apart: {apart[0]} {apart[1][0]:.0f} of {apart[1][1]:.0f} ms", flush=True)
    for kind, wanted in (("threads", False), ("processes", True)):
        ratios = [r["expected"] / r["measured"] for n, r in done.items() if n.endswith("mpi") == wanted]
        if ratios:
            print(kind, end=": ")
            summary(ratios)
    summary([r["expected"] / r["measured"] for r in done.values()])
    print("from their parts", end=": ")
    summary([r.get("from parts", r["expected"]) / r["measured"] for r in done.values()])


main()
