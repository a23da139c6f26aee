#!/usr/bin/env bash
# The pages say what the program does: every flag that they name is one that it knows, every page that they point to is
# there, and `make bench` builds benchmarks alone.
# Usage: docs.sh TESSERA SOURCE BUILD
set -euo pipefail
tessera=$1 source=$2 build=$3
cd "$source"

python3 - "$tessera" <<'P'
import glob, os, re, subprocess, sys
tessera = sys.argv[1]
pages = ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/*.md"))]
commands = [["train"], ["plan"], ["verify"], ["eval"], ["predict"], ["export"], ["show"], ["report"], ["bench", "layer"], ["bench", "halo"], []]
known = set()
for command in commands:
    known |= set(re.findall(r"--[A-Za-z0-9][A-Za-z0-9-]*", subprocess.run([tessera, *command, "--help"], capture_output=True, text=True, check=True).stdout))
# Of other programs (mpirun, cmake, ctest, tensorboard, our benchmarks and scripts) and of the published system.
other = set()
for path in [*glob.glob("bench/*"), *glob.glob("scripts/*"), *glob.glob("tests/plans/*"), *glob.glob("tests/*/*.py"), *glob.glob("tests/*/*.sh")]:
    if os.path.isfile(path):
        text = open(path, errors="replace").read()
        other |= set(re.findall(r"--[A-Za-z0-9][A-Za-z0-9-]*", text))
        other |= {"--" + name for name in re.findall(r"[\"'](?:-\w,)?-?-?([a-z0-9-]+)[\"'],", text)}
other |= {"--mca", "--oversubscribe", "--map-by", "--hostfile", "--preset", "--build", "--install", "--prefix", "--parallel", "--target",
          "--gtest_filter", "--logdir", "--rank", "--IP", "--world-size", "--modela", "--gpus-per-node", "--gpus-per-task",
          "--ntasks-per-node", "--mpi", "--with-cuda"}
problems = []
for page in pages:
    text = open(page).read()
    drawn = re.sub(r".*--+>.*", "", text)  # an arrow is no flag
    for flag in sorted(set(re.findall(r"(?<![\w-])--[A-Za-z0-9][A-Za-z0-9-]*", drawn)) - known - other):
        problems.append(f"{page} names {flag}, which tessera does not know")
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in link and not os.path.exists(os.path.join(os.path.dirname(page), link)):
            problems.append(f"{page} points to {link}, which is not there")
print("\n".join(problems))
sys.exit(bool(problems))
P

grep -q -- '--target benchmarks' Makefile || { echo "FAILED: make bench builds more than benchmarks"; exit 1; }
if [ -f "$build/build.ninja" ] && grep -q '^build benchmarks' "$build/build.ninja"; then
  if ninja -C "$build" -t inputs benchmarks | grep '_test\.dir\|gtest'; then echo "FAILED: benchmarks depend on tests"; exit 1; fi
fi
echo "the pages name what is there"
