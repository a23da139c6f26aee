"""Makes the .pt2 files of tests/import/pt2 with a torch that has torch.export (2.5 or newer) and torchvision.

The networks are torchvision's own, in training mode, with weights that repeat themselves, so that the files are small
once their zip archives are compressed.

Usage: make_pt2.py FOLDER
"""
import os
import re
import sys
import zipfile

import torch
import torchvision

NETWORKS = ["resnet18", "resnext50_32x4d", "densenet121", "googlenet", "mobilenet_v2", "mobilenet_v3_small",
            "mnasnet0_5", "shufflenet_v2_x0_5", "squeezenet1_1", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny",
            "lraspp_mobilenet_v3_large"]


def fill(network):
    """Values as random initialisation would have them, but with a period."""
    pattern = torch.randn(251, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, p in network.named_parameters():
            if p.dim() > 1:
                values = pattern.repeat(p.numel() // 251 + 1)[:p.numel()].reshape(p.shape)
                p.copy_(values * (2.0 / p[0].numel()) ** 0.5)


def compress(path):
    """Also without the example images, and without the folders of the machine that it was made on."""
    with zipfile.ZipFile(path) as old:
        records = [(name, old.read(name)) for name in old.namelist() if "sample_inputs" not in name]
    records = [(name, re.sub(rb'/[^" ]*/site-packages/', b"", data) if name.endswith("model.json") else data)
               for name, data in records]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for name, data in records:
            new.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    for name in NETWORKS:
        make = getattr(torchvision.models, name, None) or getattr(torchvision.models.segmentation, name)
        options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        if name.startswith("lraspp"):
            options = {"weights_backbone": None}
        network = make(weights=None, num_classes=5, **options).train()
        fill(network)
        exported = torch.export.export(network, (torch.randn(2, 3, 64, 64),))
        path = os.path.join(folder, name + ".pt2")
        torch.export.save(exported, path)
        compress(path)
        print(name, os.path.getsize(path), flush=True)


main(sys.argv[1])
