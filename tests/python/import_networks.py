"""Networks from PyTorch's files: imported, verified against the module itself, trained, exported and loaded again.

Usage: import_networks.py TESSERA     exit code 77: there is no torch or torchvision
"""
import csv
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile

try:
    import torch
    import torchvision
except ImportError as missing:
    print("skipped: %s; install python3-torch and python3-torchvision" % missing)
    sys.exit(77)
import safetensors_lite
import small_networks as small

warnings.filterwarnings("ignore")
failures = []


def tessera(*arguments):
    return subprocess.run([sys.argv[1], *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def expect(code, words, *arguments):
    """Like expect.sh: the exit code, and every one of these words in the output."""
    done = tessera(*arguments)
    lacking = [w for w in words if w not in done.stdout]
    if done.returncode != code or lacking:
        print("FAILED: tessera", " ".join(arguments), flush=True)
        failures.append("tessera %s\n  wanted exit code %d and %s\n  got exit code %d and\n%s" %
                        (" ".join(arguments), code, words, done.returncode, done.stdout))
    return done.stdout


def verify(path, flags, folder):
    """The largest difference; in float64."""
    report = os.path.join(folder, "verify.json")
    if os.path.exists(report):
        os.remove(report)
    expect(0, ["equal"], "verify", "--model", path, "--steps", "2", "--json", report, *flags)
    return json.load(open(report))["largest"] if os.path.exists(report) else float("inf")


def check_networks(folder):
    """One rank beside the module itself, and tiles and stages beside one rank."""
    networks = [
        ("resnet18", torchvision.models.resnet18(num_classes=5), None, "--image-size 48x64 --batch-size 4"),
        ("mobilenet_v3_small", torchvision.models.mobilenet_v3_small(num_classes=5), None,
         "--image-size 64 --batch-size 8 --lr 1e-4"),
        ("convnext", small.convnext(), None, "--image-size 64x48 --batch-size 4"),
        ("convnext_traced", small.convnext(), 32, "--image-size 64x48 --batch-size 4"),
        ("shufflenet", small.shufflenet(), None, "--image-size 64 --batch-size 6 --lr 1e-4"),
        ("shufflenet_traced", small.shufflenet(), 64, "--image-size 64 --batch-size 6 --lr 1e-4"),
        ("densenet", small.densenet(), None, "--image-size 64 --batch-size 4"),
        ("attention_unet", small.AttentionUNet(), None, "--image-size 43x57 --batch-size 2"),
        ("mixed", small.Mixed(), None, "--image-size 37x41 --batch-size 4 --parts 2"),
        ("two_heads", small.TwoHeads(), None, "--image-size 37x41 --batch-size 4 --parts 2 --auxiliary-weight 0.4 "
         "--label-smoothing 0.1 --class-weights 1,2,0.5,1,3"),
        ("two_planes", small.TwoPlanes(), None, "--image-size 37x41 --batch-size 2 --auxiliary-weight 0.5"),
    ]
    for name, network, traced, flags in networks:
        path = os.path.join(folder, name + ".pt")
        # A trace holds the data type of the numbers that decide what is dropped; in float32 they would be rounded.
        example = None if traced is None else torch.randn(2, 3, traced, traced, dtype=torch.float64)
        small.save(network.train() if traced is None else network.double().train(), path, example)
        grid = "3x2" if name == "attention_unet" else "2x2"
        one = verify(path, flags.split(), folder)
        many = verify(path, flags.split() + ["--grid", grid, "--split-size", "2"], folder)
        print("%-20s one rank %.1e, %s tiles in two stages %.1e" % (name, one, grid, many))


def check_refusals(folder):
    def path(name):
        return os.path.join(folder, name)

    def saved(name, network):
        small.save(network, path(name))
        return path(name)

    show = lambda file, *flags: ("show", file, "--image-size", "32", *flags)
    whole = saved("whole.pt", small.Mixed().train())
    data = open(whole, "rb").read()
    open(path("cut.pt"), "wb").write(data[:len(data) // 2])
    open(path("text.pt"), "w").write("no network\n")
    with zipfile.ZipFile(path("other.pt"), "w") as other:
        other.writestr("archive/readme.txt", "no network")
    torch.save(small.Mixed().state_dict(), path("weights.pt"))
    expect(2, ["no such file"], *show(path("none.pt")))
    expect(2, ["is a folder"], *show(folder + "/"))
    expect(2, ["cut off, damaged", "torch.jit.script"], *show(path("cut.pt")))
    expect(2, ["not a file of PyTorch"], *show(path("text.pt")))
    expect(2, ["--model", "archive"], *show(path("other.pt")))
    expect(2, ["torch.save", "torch.jit.script"], *show(path("weights.pt")))
    expect(2, ["depends on"], *show(saved("loop.pt", small.DataLoop())))
    expect(2, ["aten::softmax", "'first.1'", "aten::softplus", "'second.1'", "aten::cumsum", "the network itself"], *show(saved("unknown.pt", small.Unknown())))
    expect(2, ["volumes are not supported", "'conv'"], *show(saved("volume.pt", small.Volume())))
    expect(2, ["share", "conv.weight"], *show(saved("shared.pt", small.Shared())))
    fixed = saved("fixed.pt", small.Fixed())
    expect(0, ["trainable parameters"], *show(fixed))
    expect(2, ["head.weight", "--image-size"], "show", fixed, "--image-size", "48")
    expect(2, ["--model-output", "main, other"], *show(whole, "--model-output", "third"))
    expect(2, ["--auxiliary-weight", "no output beside"], "plan", "--model", fixed, "--image-size", "32",
           "--auxiliary-weight", "0.4")
    expect(2, ["--class-weights has 2 numbers", "4 classes"], "plan", "--model", whole, "--class-weights", "1,2")
    expect(2, ["--num-classes"], "plan", "--model", whole, "--num-classes", "7")
    expect(2, ["--depth"], "plan", "--model", whole, "--depth", "20")
    expect(2, ["--init means nothing"], "plan", "--model", "resnet18", "--init", "random")


def check_modes(folder):
    """What is frozen stays; what was exported in evaluation mode is said to be."""
    path = os.path.join(folder, "frozen.pt")
    network = torchvision.models.resnet18(num_classes=3).train()
    for p in network.layer1.parameters():
        p.requires_grad = False
    network.layer1.eval()
    small.save(network, path)
    run, out = os.path.join(folder, "frozen"), os.path.join(folder, "frozen.safetensors")
    flags = ["--model", path, "--image-size", "64", "--batch-size", "4"]
    expect(0, ["not trained"], "train", *flags, "--steps", "2", "--checkpoint-dir", run, "--weight-decay", "0.1")
    expect(0, ["equal"], "verify", *flags, "--steps", "2", "--weight-decay", "0.1")
    expect(0, ["tensors"], "export", run, "-o", out)
    before, after = network.state_dict(), safetensors_lite.load(out)
    for name in before:
        same = torch.equal(before[name], after[name])
        if same != name.startswith("layer1"):
            failures.append("%s is %s after training" % (name, "the same" if same else "another one"))
    # Afresh: what is trained starts from random values, what is not from those of the file.
    afresh = os.path.join(folder, "afresh")
    expect(0, ["not trained"], "train", *flags, "--steps", "1", "--lr", "0", "--init", "random", "--checkpoint-dir", afresh)
    expect(0, ["tensors"], "export", afresh, "-o", out)
    after = safetensors_lite.load(out)
    for name in before:
        if before[name].dim() == 4 and torch.equal(before[name], after[name]) != name.startswith("layer1"):
            failures.append("%s with --init random" % name)
    path = os.path.join(folder, "evaluating.pt")
    small.save(torchvision.models.resnet18(num_classes=3).eval(), path)
    expect(0, ["evaluation mode", ".train()"], "train", "--model", path, "--image-size", "32", "--batch-size", "4",
           "--steps", "1")


def check_beside_built_in(folder):
    """The same network from a file and built in: the same losses to the bit, and the same stages."""
    torch.manual_seed(2)
    network = torchvision.models.resnet50(num_classes=5).train()
    path, weights = os.path.join(folder, "resnet50.pt"), os.path.join(folder, "resnet50.safetensors")
    small.save(network, path)
    safetensors_lite.save(network.state_dict(), weights)
    flags = ["--image-size", "64", "--batch-size", "4", "--split-size", "4"]
    losses, stages = [], []
    for which in (["--model", path], ["--model", "resnet50", "--num-classes", "5", "--init-from", weights]):
        report = os.path.join(folder, "beside.json")
        expect(0, ["loss"], "train", *which, *flags, "--dtype", "float64", "--steps", "3", "--lr", "1e-3", "--json", report)
        document = json.load(open(report))
        losses.append([step["loss"] for step in document["steps"]])
        stages.append([cell["stage"] for cell in document["cells"]])
    if losses[0] != losses[1] or stages[0] != stages[1]:
        failures.append("resnet50 imported and built in: %s, %s" % (losses, stages))


def check_way_back(folder):
    """Trained on four tiles, continued, evaluated, exported, and loaded by Python under the module's own names."""
    path, run = os.path.join(folder, "net.pt"), os.path.join(folder, "run")
    torch.manual_seed(1)
    network = torchvision.models.googlenet(num_classes=5, init_weights=False)
    small.save(network.train(), path)
    flags = ["--image-size", "64", "--batch-size", "4", "--synthetic-images", "16"]
    expect(0, ["loss"], "train", "--model", path, *flags, "--steps", "3", "--grid", "2x2", "--run", run)
    expect(0, ["goes on from"], "train", "--model", path, *flags, "--steps", "4", "--run", run, "--resume", "auto")
    os.remove(path)  # the run has a copy
    out, table = os.path.join(folder, "net.safetensors"), os.path.join(folder, "predictions.csv")
    expect(0, ["accuracy"], "eval", run)
    expect(0, [], "predict", run, "--logits", "-o", table)
    expect(0, ["tensors"], "export", run, "-o", out)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.load_state_dict(safetensors_lite.load(out))
    # The auxiliary heads are not trained, and come along.
    for name, tensor in network.state_dict().items():
        if torch.equal(tensor, before[name]) != name.startswith("aux"):
            failures.append("%s after training" % name)
    if not list(csv.DictReader(open(table))):
        failures.append("no predictions")


def check_auxiliary_run(folder):
    """A run with an auxiliary head goes on, is evaluated and exported without saying so again."""
    path, run = os.path.join(folder, "heads.pt"), os.path.join(folder, "heads")
    network = small.TwoHeads().train()
    small.save(network, path)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    flags = ["--image-size", "32", "--batch-size", "4", "--synthetic-images", "8"]
    expect(0, ["loss"], "train", "--model", path, *flags, "--steps", "2", "--run", run, "--auxiliary-weight", "0.4",
           "--class-weights", "1,2,1,1,1")
    expect(0, ["goes on from"], "train", "--model", path, *flags, "--steps", "3", "--run", run, "--resume", "auto")
    expect(2, ["--auxiliary-weight 0.3 contradicts", "--auxiliary-weight 0.4"], "train", "--model", path, *flags,
           "--steps", "4", "--run", run, "--resume", "auto", "--auxiliary-weight", "0.3")
    expect(0, ["accuracy"], "eval", run)
    # Where it looked: the auxiliary head plays no part, though the weights have it.
    expect(0, ["accuracy"], "predict", run, "-o", os.path.join(folder, "heads.csv"), "--heatmap",
           os.path.join(folder, "heads_maps"), "--num-spatial-parts", "4")
    out = os.path.join(folder, "heads.safetensors")
    expect(0, ["tensors"], "export", run, "-o", out)
    after = safetensors_lite.load(out)
    for name in ("side.weight", "head.weight"):
        if torch.equal(before[name], after[name]):
            failures.append("%s is the same after training" % name)
    expect(2, ["--auxiliary-weight -1"], "plan", "--model", path, "--image-size", "32", "--auxiliary-weight", "-1")
    expect(2, ["at least one must be more than 0"], "plan", "--model", path, "--image-size", "32",
           "--class-weights", "0,0,0,0,0")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_refusals, check_modes, check_beside_built_in, check_way_back,
                      check_auxiliary_run, check_networks):
            check(folder)
    for failure in failures:
        print("FAILED:", failure)
    sys.exit(1 if failures else 0)


main()
