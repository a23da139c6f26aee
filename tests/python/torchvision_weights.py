"""Weights to Python and back: torchvision's resnet18 and Tessera's are the same network under the same names.

torchvision's weights go to a safetensors file and by --init-from into Tessera, which trains one step on image files;
torchvision trains the same step, both in float64. The loss, and every parameter and statistic of the exported file,
must be the same. In evaluation mode, in float32, both give the same logits for either file.

Usage: torchvision_weights.py TESSERA     exit code 77: there is no torch or torchvision to compare with
"""
import csv
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torchvision
    from PIL import Image
except ImportError as missing:
    print("skipped: %s; install python3-torch and python3-torchvision" % missing)
    sys.exit(77)
import safetensors_lite

CLASSES, SIZE, IMAGES, RATE = 5, 64, 8, 0.01


def tessera(*arguments):
    subprocess.run([sys.argv[1], *arguments], check=True)


def make_images(folder):
    """Random pixels as PNG files, and as the tensor that Tessera makes of them: ImageNet's mean and deviation."""
    pixels = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
    labels = torch.arange(IMAGES) % CLASSES
    with open(os.path.join(folder, "data.csv"), "w", newline="") as file:
        rows = csv.writer(file)
        for i in range(IMAGES):
            name = "%d.png" % i
            Image.fromarray(pixels[i].permute(1, 2, 0).numpy()).save(os.path.join(folder, name))
            rows.writerow([name, int(labels[i])])
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).view(3, 1, 1)
    return (pixels.double() / 255 - mean) / deviation, labels


def make_network(images):
    """With running statistics that are not those of the start."""
    network = torchvision.models.resnet18(num_classes=CLASSES)
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network((images + torch.randn_like(images)).float())
    return network


def train_one_step(network, images, labels):
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    loss = torch.nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def largest_difference(ours, theirs):
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    worst = 0.0, ""
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        if expected.dtype == torch.int64:
            assert torch.equal(ours[name], expected), name
            continue
        difference = (ours[name] - expected).norm() / max(expected.norm().item(), 1e-2)
        worst = max(worst, (difference.item(), name))
    return worst


def network_flags(folder):
    return ["--model", "resnet18", "--num-classes", str(CLASSES), "--image-size", str(SIZE), "--batch-size",
            str(IMAGES), "--app", "medical", "--datapath", os.path.join(folder, "data.csv")]


def compare_logits(folder, weights, images):
    """Up to a constant an image: `tessera predict` writes probabilities."""
    table = os.path.join(folder, "predictions.csv")
    tessera("predict", *network_flags(folder), "--split", "train", "--weights", weights, "--output", table)
    ours = torch.empty(IMAGES, CLASSES, dtype=torch.float64)
    for row in csv.DictReader(open(table)):
        index = int(os.path.basename(row["path"]).split(".")[0])
        ours[index] = torch.tensor([float(row["p_%d" % k]) for k in range(CLASSES)], dtype=torch.float64).log()
    network = torchvision.models.resnet18(num_classes=CLASSES)
    network.load_state_dict(safetensors_lite.load(weights))
    with torch.no_grad():
        expected = network.eval()(images.float()).double().log_softmax(1)
    difference = (ours - expected).abs().max().item()
    assert difference < 1e-5, difference
    print("logits of %s differ by %.1e at most" % (os.path.basename(weights), difference))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        images, labels = make_images(folder)
        network = make_network(images)
        safetensors_lite.save(network.state_dict(), path("torchvision.safetensors"))

        tessera("train", *network_flags(folder), "--steps", "1", "--dtype", "float64", "--lr", str(RATE),
                "--momentum", "0", "--init-from", path("torchvision.safetensors"), "--checkpoint-dir", path("run"),
                "--json", path("run.json"))
        loss = json.load(open(path("run.json")))["steps"][0]["loss"]
        network.double()
        expected = train_one_step(network, images, labels)
        assert abs(loss - expected) < 1e-10 * expected, (loss, expected)

        tessera("export", path("run"), "--output", path("tessera.safetensors"))
        exported = safetensors_lite.load(path("tessera.safetensors"))
        torchvision.models.resnet18(num_classes=CLASSES).load_state_dict(exported)
        difference, name = largest_difference(exported, network.state_dict())
        assert difference < 1e-10, (difference, name)
        print("loss %.6f and %.6f; after a step %d tensors, the largest difference is %.1e (%s)" %
              (loss, expected, len(exported), difference, name))
        if "predict" not in subprocess.run([sys.argv[1], "--help"], stdout=subprocess.PIPE, text=True).stdout:
            print("no logits were compared: this tessera has no command 'predict'")
            return
        for weights in ("torchvision.safetensors", "tessera.safetensors"):
            compare_logits(folder, path(weights), images)


main()
