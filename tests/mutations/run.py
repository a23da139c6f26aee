#!/usr/bin/env python3
"""Plants one fault after the other and shows that the checks find each.

    tests/mutations/run.py BUILD [--only WORDS] [--after COUNT]

BUILD is the build folder of a *copy* of the tree that may be changed: its sources are edited and put back. For every
fault the program random_plans is built again and given plans, first a short list of one of each kind, then random ones;
a fault is caught when a plan is not equal, dies or hangs. Prints the table of docs/trust.md and fails if one is missed.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

from mutations import FAULTS

SMALL = "--model resnet_v2 --depth 11 --image-size 19x17 --num-classes 3 --timeout 20 "
PLANS = {
    "one rank against torch": SMALL + "--batch-size 4 --parts 2 --weight-decay 0.01 --clip-norm 0.5",
    "tiles": SMALL + "--batch-size 2 --grid 3x2",
    "fused tiles": SMALL + "--batch-size 2 --grid 2x2 --halo-D2 --fused-layers 2",
    "turns": SMALL + "--batch-size 2 --turns 3x2",
    "turns in a file": SMALL + "--batch-size 2 --turns 2x2 --recompute block:2 --store file --scratch /tmp",
    "stages, 1f1b": SMALL + "--batch-size 6 --parts 3 --split-size 3",
    "stages, gpipe": SMALL + "--batch-size 6 --parts 3 --split-size 3 --schedule gpipe",
    "stages, zero-bubble": SMALL + "--batch-size 6 --parts 3 --split-size 3 --schedule zero-bubble",
    "tiles and ways": SMALL + "--batch-size 4 --parts 2 --split-size 2 --grid 1x2 --local-DP 2 --clip-norm 0.1",
    "replicas, norm global": SMALL + "--batch-size 4 --parts 2 --replicas 2 --batch-norm global",
    "replicas, hierarchical": SMALL + "--batch-size 4 --replicas 4 --grad-sync hierarchical --ranks-per-node 2",
    "gems-master": SMALL + "--batch-size 4 --parts 2 --split-size 2 --schedule gems-master --times 2",
    "chimera": SMALL + "--batch-size 6 --parts 3 --split-size 2 --schedule chimera",
    "chimera, several buckets": "--model resnet18 --image-size 40 --num-classes 3 --batch-size 2 --split-size 2 "
                                "--schedule chimera --timeout 20",
    "two buckets, two micros": "--model resnet18 --image-size 40 --num-classes 3 --batch-size 4 --parts 2 --replicas 2 "
                               "--timeout 20",
    "dropout": "--model random --depth 13 --num-layers 8 --image-size 14x15 --num-classes 3 --batch-size 4 --parts 2 "
               "--timeout 20",
    "unet, tiles": "--model unet --num-layers 2 --num-filters 3 --image-size 21x18 --num-classes 3 --batch-size 2 "
                   "--grid 2x2 --timeout 20",
    "amoebanet, tiles": "--model amoebanet --num-layers 3 --num-filters 16 --image-size 64x70 --num-classes 3 "
                        "--batch-size 2 --grid 2x2 --timeout 20",
}


def verdict(program, flags):
    """None if the plan is equal, else what happened, in a word."""
    try:
        run = subprocess.run([program, "verify", *flags.split()], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "hangs"
    if run.returncode == 0:
        return None
    if "NOT EQUAL" in run.stdout:
        return "not equal"
    return "waits too long" if "--timeout" in run.stderr else "dies"


def caught_by(program):
    for name, flags in PLANS.items():
        what = verdict(program, flags)
        if what:
            return name, what
    # The first plan that fails is enough: what would make it smaller takes its time.
    with subprocess.Popen([program, "fuzz", "60", "5", "--jobs", str(os.cpu_count())], stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as fuzz:
        for line in fuzz.stdout:
            what, _, command = line.partition(": ")
            if re.match(r"(tessera|random_plans) verify ", command):
                os.killpg(fuzz.pid, signal.SIGKILL)
                return "random plans", what
    return ("random plans", "too many are refused") if fuzz.returncode else None


def failing_test(program):
    run = subprocess.run([program], capture_output=True, text=True)
    failed = re.findall(r"\[  FAILED  \] (\S+)", run.stdout)
    return (os.path.basename(program), f"{failed[0]} fails" if failed else "dies") if run.returncode else None


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("build")
    arguments.add_argument("--only", default="", help="faults whose name has these words")
    arguments.add_argument("--after", type=int, default=0, help="leave out the first so many, and the check of the tree")
    options = arguments.parse_args()
    tree = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    program = os.path.join(options.build, "tests/plans/random_plans")
    build = ["cmake", "--build", options.build, "--target", "random_plans", "--parallel", "2"]
    missed = []
    subprocess.run(build, check=True, capture_output=True)
    clean = None if options.after else caught_by(program)
    if clean:
        sys.exit(f"the tree without a fault does not pass: {clean}")
    print("| fault | file | caught by | how |\n|---|---|---|---|")
    for fault in [f for f in FAULTS[options.after:] if options.only in f.name]:
        path = os.path.join(tree, fault.file)
        with open(path) as source:
            text = source.read()
        if text.count(fault.before) != 1:
            missed.append(fault.name)
            print(f"| {fault.name} | `{fault.file}` | the text to change stands there {text.count(fault.before)} times | |")
            continue
        try:
            with open(path, "w") as source:
                source.write(text.replace(fault.before, fault.after))
            built = subprocess.run(build if not fault.test else [fault.test if w == "random_plans" else w for w in build],
                                   capture_output=True, text=True)
            found = None
            if built.returncode == 0:
                found = failing_test(os.path.join(options.build, "tests/golden", fault.test)) if fault.test \
                    else caught_by(program)
            if built.returncode != 0:
                found = ("the compiler: this is no fault to test with", built.stdout[-300:])
                missed.append(fault.name)
            elif not found:
                missed.append(fault.name)
                found = ("NOTHING", "")
        finally:
            with open(path, "w") as source:
                source.write(text)
        print(f"| {fault.name} | `{fault.file.removeprefix('src/tessera/')}` | {found[0]} | {found[1]} |", flush=True)
    subprocess.run(build, capture_output=True)
    if missed:
        sys.exit(f"{len(missed)} of {len(FAULTS)} faults are not caught or not planted: {', '.join(missed)}")


if __name__ == "__main__":
    start = time.time()
    main()
    print(f"all caught, {time.time() - start:.0f} s")
