"""Imports the networks of torchvision, verifies each, and writes the table of docs/pytorch.md.

Every network has random weights and five classes, is scripted in training mode, and is trained for a step in float64:
one rank beside the module itself (libtorch's autograd), then a 2x2 grid of tiles in two stages beside one rank. A figure
is the largest difference; in brackets, how many tensors were left out of it. A NAME may also be a file: net.pt2.

Usage: every_network.py TESSERA [--device cuda] [--jobs N] [--size N] [--batch N] [NAME...]
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

import torch
import torchvision

warnings.filterwarnings("ignore")

# Rows and columns of networks that want larger images than the others.
LARGER = {"alexnet": 160, "inception_v3": 299}
SEGMENTATION = ["fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101",
                "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"]
FAMILIES = ("alexnet", "vgg", "resnet", "resnext", "wide_resnet", "densenet", "googlenet", "inception_v3", "mobilenet",
            "mnasnet", "shufflenet", "squeezenet", "efficientnet", "regnet", "convnext")


def names():
    found = [n for n in sorted(vars(torchvision.models)) if n.startswith(FAMILIES) and n.islower()
             and callable(getattr(torchvision.models, n))]
    return found + SEGMENTATION


def network(name):
    if name in SEGMENTATION:
        return getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return getattr(torchvision.models, name)(weights=None, num_classes=5, **options)


def tessera(options, *arguments):
    return subprocess.run([options.tessera, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def verified(options, path, flags, folder):
    """The largest difference of what is trained, and how many tensors were left out as zero except for rounding: those
    that a change in the last bit of the images moves by more than a thousandth of their size, such as the gradient of a
    shift that the next norm takes away again. verify judges these. In bold: what verify did not call equal.
    """
    report = os.path.join(folder, "report.json")
    if os.path.exists(report):
        os.remove(report)
    done = tessera(options, "verify", "--model", path, "--steps", "1", "--device", options.device, "--json", report, *flags)
    last = (done.stdout.strip().splitlines() or ["nothing"])[-1][:160]
    if not os.path.exists(report):
        return "**" + last + "**"
    all_of_them = json.load(open(report))["differences"]
    compared = [d["relative"] for d in all_of_them if (d["rounding"] or 0) < 1e-3]
    zero = len(all_of_them) - len(compared)
    found = "%.0e" % max(compared) + (f" ({zero} of {len(all_of_them)})" if zero else "")
    return found if done.returncode == 0 else "**" + found + "**: " + last


def row(options, name):
    with tempfile.TemporaryDirectory() as folder:
        size = LARGER.get(name, options.size)
        path = name if os.path.exists(name) else os.path.join(folder, "net.pt")
        if path != name:
            torch.manual_seed(0)
            torch.jit.script(network(name).train()).save(path)
        flags = ["--image-size", str(size), "--batch-size", str(options.batch)]
        shown = (tessera(options, "show", path, "--image-size", str(size)).stdout.strip().splitlines() or [""])[-1]
        cells = shown.split()[0] if " cells, " in shown else "**" + shown[:120] + "**"
        count = re.search(r"([0-9.]+ \w?) trainable parameters", shown)
        one = verified(options, path, flags, folder)
        many = verified(options, path, flags + ["--grid", "2x2", "--split-size", "2"], folder)
        label = os.path.basename(name)
        return "| %s | %s | %d | %s | %s | %s |" % (label, count[1] if count else "", size, cells, one, many)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    print("| network | parameters | image | cells | one rank | 2x2 tiles, 2 stages |\n|---|---|---|---|---|---|", flush=True)
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for line in concurrent.futures.as_completed([pool.submit(row, options, n) for n in options.names or names()]):
            print(line.result() if not line.exception() else f"| **{line.exception()}** |", flush=True)


if __name__ == "__main__":
    main()
