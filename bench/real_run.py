#!/usr/bin/env python3
"""Times `tessera train` on files beside bench_gpu, which has its images on the GPU.

    real_run.py TESSERA BENCH_GPU [--sizes 2048,4096,8192] [--model resnet50] [--flags "flags of train"]

Images are arrays (.npy, uint8) of random bytes in a folder that is removed afterwards. Rates are of all steps but the
first ten, waits included.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from gpu_compare import ours


def write_images(folder, size, count):
    """numpy.save() by hand, so that it need not be there."""
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size}, {size}, 3), }}"
    head += " " * (64 - (10 + len(head) + 1) % 64) + "\n"
    for i in range(count):
        os.makedirs(f"{folder}/class{i % 2}", exist_ok=True)
        with open(f"{folder}/class{i % 2}/{i}.npy", "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
            file.write(os.urandom(size * size * 3))


def real(tessera, folder, model, size, steps, more):
    name, _, depth = model.partition("-")
    report = f"{folder}/report.json"
    command = [tessera, "train", "--datapath", f"{folder}/images", "--model", name, "--device", "cuda", "--dtype",
               "bfloat16", "--batch-size", "1", "--lr", "0.001", "--steps", str(steps), "--quiet", "--json", report]
    done = subprocess.run(command + (["--depth", depth] if depth else []) + more, capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": (done.stderr.strip() or "failed").splitlines()[-1][:200]}
    with open(report) as file:
        timed = json.load(file)["steps"][10:]
    seconds = sum(s["seconds"] for s in timed)
    return {"images_per_second": len(timed) / seconds, "median": 1 / statistics.median(s["seconds"] for s in timed),
            "waited": sum(s["data_seconds"] for s in timed) / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("bench")
    parser.add_argument("--sizes", default="2048,4096,8192")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--flags", default="", help="more flags of train, in one word")
    args = parser.parse_args()
    print(f"{'image':>12} {'bench_gpu':>10} {'train':>10} {'ratio':>6} {'waiting':>8}  images/s, batch 1, bfloat16")
    for size in map(int, args.sizes.split(",")):
        folder = tempfile.mkdtemp(prefix="tessera_real_")
        try:
            write_images(f"{folder}/images", size, max(8, min(64, 2**31 // (3 * size * size))))
            bench = ours(args.bench, args.model, size, 20, "norm")
            run = real(args.tessera, folder, args.model, size, args.steps, args.flags.split())
        finally:
            shutil.rmtree(folder)
        if "error" in bench or "error" in run:
            print(f"{size:>11}²  {bench.get('error', '')} {run.get('error', '')}", flush=True)
            continue
        rate, limit = run["images_per_second"], bench["images_per_second"]
        print(f"{size:>11}² {limit:10.2f} {rate:10.2f} {rate / limit:6.2f} {100 * run['waited']:7.1f}%", flush=True)


if __name__ == "__main__":
    sys.exit(main())
