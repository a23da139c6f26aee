#!/usr/bin/env python3
"""Training on one GPU beside PyTorch: images a second and peak memory, batch of one, bfloat16.

    gpu_compare.py BENCH_GPU [--cases resnet50:2048,resnet_v2-110:1024] [--no-compile] [--largest]

PyTorch runs the same networks, eager and with torch.compile, under bfloat16 autocast, channels-last, with cuDNN's
algorithms tried out. Each contender is a process of its own. With --largest, the largest square image (in steps of
512) that each trains; Tessera with --recompute block. There both take cuDNN's
first guess: trying algorithms takes minutes on such images.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time


def networks():
    import torch
    from torch import nn

    def conv(cin, cout, kernel=1, stride=1):
        return nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)

    class Bottleneck(nn.Module):
        def __init__(self, cin, width, stride):
            super().__init__()
            self.main = nn.Sequential(
                conv(cin, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                conv(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                conv(width, 4 * width), nn.BatchNorm2d(4 * width))
            self.short = None
            if stride != 1 or cin != 4 * width:
                self.short = nn.Sequential(conv(cin, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

        def forward(self, x):
            return torch.relu_(self.main(x) + (self.short(x) if self.short else x))

    def resnet50():
        layers = [conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        cin = 64
        for group, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                layers.append(Bottleneck(cin, 64 << group, 2 if group and not i else 1))
                cin = 256 << group
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 10))

    class PreActivation(nn.Module):
        def __init__(self, cin, width, cout, stride, project):
            super().__init__()
            self.before = nn.Sequential(nn.BatchNorm2d(cin), nn.ReLU(inplace=True))
            self.main = nn.Sequential(
                conv(cin, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                conv(width, width, 3), nn.BatchNorm2d(width), nn.ReLU(inplace=True), conv(width, cout))
            self.short = conv(cin, cout, 1, stride) if project else None

        def forward(self, x):
            active = self.before(x)
            return self.main(active) + (self.short(active) if self.short else x)

    def resnet_v2(depth):
        layers, cin = [conv(3, 16, 3)], 16
        for group, (width, cout) in enumerate(((16, 64), (64, 128), (128, 256))):
            for i in range((depth - 2) // 9):
                layers.append(PreActivation(cin, width, cout, 2 if group and not i else 1, i == 0))
                cin = cout
        return nn.Sequential(*layers, nn.BatchNorm2d(cin), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
                             nn.Flatten(), nn.Linear(cin, 10))

    return {"resnet50": resnet50, "resnet_v2-110": lambda: resnet_v2(110)}


def run_torch(name, size, compiled, steps, search):
    import torch

    torch.backends.cudnn.benchmark = search
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(1)
    model = networks()[name]().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    image = torch.randn(1, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
    label = torch.tensor([1], device="cuda")
    forward = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(forward(image), label)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(3 if search else 1):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return {"images_per_second": 1 / statistics.median(seconds), "peak_bytes": torch.cuda.max_memory_allocated()}


def ours(bench, name, size, steps, recompute, warmup=3, search=True):
    model, _, depth = name.partition("-")
    command = [bench, "--model", model, "--image-size", str(size), "--steps", str(steps), "--recompute", recompute,
               "--warmup", str(warmup)] + (["--depth", depth] if depth else [])
    return child(command + ([] if search else ["--no-search"]))


def torch_child(name, size, compiled, steps, search=True):
    return child([sys.executable, __file__, "--torch", f"{name}:{size}", "--steps", str(steps)]
                 + (["--compiled"] if compiled else []) + ([] if search else ["--no-search"]))


def child(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or "failed").splitlines()
        return {"error": next((line for line in lines if "memory" in line), lines[-1])[:150]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def largest(run, guess, unit=512):
    """The largest multiple of `unit` that run(size) manages; what it took says where to look next."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    memory = int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) * 2**20
    works, fails, size = 0, None, guess
    while fails is None or fails - works > unit:
        result = run(size)
        print(f"    {size}: {result.get('error') or '%.2f GiB' % (result['peak_bytes'] / 2**30)}", flush=True)
        if "error" in result:
            fails = size
        else:
            works = size
            fits = int(size * (0.96 * memory / result["peak_bytes"]) ** 0.5) // unit * unit
        if fails is None:
            size = max(works + unit, fits)
        elif works:
            size = (works + fails) // 2 // unit * unit
        else:
            size = fails - 2 * unit
    return works


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="?")
    parser.add_argument("--cases", default="resnet50:2048,resnet50:4096,resnet_v2-110:1024,resnet_v2-110:2048")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--largest", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-search", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        name, size = args.torch.rsplit(":", 1)
        print(json.dumps(run_torch(name, int(size), args.compiled, args.steps, not args.no_search)))
        return
    rows = []
    head = f"{'network':<20}{'':<20}{'images/s':>10}{'tessera':>9}{'peak GiB':>10}{'tessera':>9}"
    if not args.largest:
        print(head + "\n" + "-" * len(head))
        for case in args.cases.split(","):
            name, size = case.rsplit(":", 1)
            size = int(size)
            mine = ours(args.bench, name, size, args.steps, "norm")
            contenders = [("tessera", mine), ("PyTorch eager", torch_child(name, size, False, args.steps))]
            if not args.no_compile:
                contenders.append(("torch.compile", torch_child(name, size, True, args.steps)))
            contenders.append(("tessera, block", ours(args.bench, name, size, args.steps, "block")))
            for title, result in contenders:
                rows.append({"case": case, "contender": title, **result})
                if "error" in result or "error" in mine:
                    print(f"{case:<20}{title:<20}{result.get('error', result)}")
                    continue
                speed, peak = result["images_per_second"], result["peak_bytes"]
                print(f"{case:<20}{title:<20}{speed:>10.1f}{mine['images_per_second'] / speed:>8.2f}x"
                      f"{peak / 2**30:>10.2f}{mine['peak_bytes'] / peak:>8.2f}x", flush=True)
    else:
        guesses = {"resnet50": (12288, 21504), "resnet_v2-110": (3584, 6656)}
        for case in sorted({c.rsplit(":", 1)[0] for c in args.cases.split(",")}):
            theirs = largest(lambda size: torch_child(case, size, False, 1, search=False), guesses[case][0])
            mine = largest(lambda size: ours(args.bench, case, size, 1, "block", 1, search=False), guesses[case][1])
            rows.append({"case": case, "largest_torch": theirs, "largest_tessera": mine})
            print(f"{case:<20}largest image: PyTorch eager {theirs}, tessera --recompute block {mine}: "
                  f"{mine / theirs:.2f} times the side", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(rows, out, indent=2)


if __name__ == "__main__":
    main()
