"""Imports the networks of torchvision, verifies each, and writes the table of docs/pytorch.md.

Every network has random weights and five classes, is scripted in training mode, and is trained for two steps in float64:
one rank beside the module itself (libtorch's autograd), then a 2x2 grid of tiles in two stages beside one rank.

Usage: every_network.py TESSERA [NAME...]
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

import torch
import torchvision

warnings.filterwarnings("ignore")

# Rows and columns, and images of a batch; where a norm sees one pixel of each image, more of them.
USUAL = (64, 4)
OTHERS = {"alexnet": (96, 4), "inception_v3": (299, 2), "squeezenet1_0": (64, 4)}
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


def tessera(*arguments):
    return subprocess.run([sys.argv[1], *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def verified(path, flags, report):
    if os.path.exists(report):
        os.remove(report)
    done = tessera("verify", "--model", path, "--steps", "2", "--json", report, *flags)
    if done.returncode != 0 or not os.path.exists(report):
        return "**" + done.stdout.strip().splitlines()[-1][:120] + "**"
    return "%.0e" % json.load(open(report))["largest"]


def main():
    print("| network | parameters | image, batch | cells | one rank | 2x2 tiles, 2 stages |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path, report = os.path.join(folder, "net.pt"), os.path.join(folder, "report.json")
        for name in sys.argv[2:] or names():
            torch.manual_seed(0)
            size, batch = OTHERS.get(name, USUAL)
            net = network(name).train()
            count = sum(p.numel() for p in net.parameters())
            torch.jit.script(net).save(path)
            del net
            flags = ["--image-size", str(size), "--batch-size", str(batch)]
            shown = tessera("show", path, "--image-size", str(size)).stdout.strip().splitlines()[-1]
            cells = shown.split()[0] if " cells, " in shown else "**" + shown[:120] + "**"
            one = verified(path, flags, report)
            many = verified(path, flags + ["--grid", "2x2", "--split-size", "2"], report)
            print("| %s | %.1f M | %d, %d | %s | %s | %s |" % (name, count / 1e6, size, batch, cells, one, many),
                  flush=True)


main()
