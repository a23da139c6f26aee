#!/usr/bin/env bash
# What a careless user types: each gets one clear message that names the flag, and the right exit code, at once.
# Usage: bad_input.sh TESSERA [MPIRUN]
set -u
tessera=$1
mpirun=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/expect.sh"

train=("$tessera" train --steps 2 --batch-size 4 --model resnet_v1 --depth 8 --image-size 16)

expect 2 "--frobnicate" -- "${train[@]}" --frobnicate
expect 2 "no flag --bach-size" "did you mean --batch-size?" -- "$tessera" train --bach-size 4
expect 2 "no command trian" "did you mean train?" -- "$tessera" trian --model resnet18
expect 2 "no flag --rank; did you mean --ranks?" -- "$tessera" train --rank 3
expect 2 "--lr is given 2 times" -- "$tessera" train --lr 0.1 --lr 0.2
expect 2 "no command foo" "tessera bench --help" -- "$tessera" bench foo
expect 2 "which weights" "tessera eval" -- "$tessera" predict --model resnet18
expect 2 "--json /dev/null" "not a file" -- "${train[@]}" --json /dev/null
expect 1 "output could not be written" -- bash -c "'$tessera' plan >/dev/full"
expect 2 "no model 'resnet19'" "resnet18" -- "$tessera" train --model resnet19
expect 2 "--num-layers 4" "--num-layers 6" -- "$tessera" train --model amoebanet --num-layers 4
expect 2 "--depth 21" "--depth 20" -- "$tessera" train --model resnet_v1 --depth 21
expect 2 "--depth" "resnet50" -- "$tessera" train --model resnet50 --depth 20
expect 2 "--batch-size 10" "--parts 4" -- "$tessera" train --batch-size 10 --parts 4
expect 2 "--image-size 0" -- "$tessera" train --image-size 0
expect 2 "--image-size 12y7" -- "$tessera" train --image-size 12y7
expect 2 "--image-size" "CIFAR-10" -- "$tessera" train --app cifar --image-size 64 --datapath "$work"
expect 2 "--datapath" "$work/none" -- "$tessera" train --app 2 --datapath "$work/none"
expect 2 "--app" -- "$tessera" train --app imagenet
expect 2 "--dtype" -- "$tessera" train --dtype float8
expect 2 "--lr" -- "$tessera" train --lr fast
expect 2 "--steps 0" -- "$tessera" train --steps 0
# Values that cannot be meant, and flags that would do nothing.
expect 2 "--lr inf" "--weight-decay inf" "--clip-norm inf" -- "${train[@]}" --lr inf --weight-decay inf --clip-norm inf
expect 2 "--lr-step-factor -1" "--lr-step-factor is for --lr-schedule step" -- "${train[@]}" --lr-step-factor -1
expect 2 "--lr-step-every is for --lr-schedule step" -- "${train[@]}" --lr-step-every 10
expect 2 "--seed -1" -- "${train[@]}" --seed -1
expect 2 "--num-classes 1" -- "${train[@]}" --num-classes 1
expect 2 "--steps 2 and --num-epochs 3" -- "${train[@]}" --num-epochs 3
expect 2 "--momentum is for --optimizer sgd" -- "${train[@]}" --optimizer adam --momentum 0.5
expect 2 "--mean is for image files" "--std" -- "${train[@]}" --mean 0.5,0.5,0.5 --std 1,1,1
expect 2 "--datapath $work" "--app synthetic" -- "${train[@]}" --app synthetic --datapath "$work"
expect 2 "--threads 0" -- "${train[@]}" --threads 0
# A finger that stayed on a key.
expect 2 "--threads 2" "OMP_THREAD_LIMIT" -- env OMP_THREAD_LIMIT=1 "${train[@]}" --threads 2
expect 2 "--threads 10000" "this machine has" -- "${train[@]}" --threads 10000
expect 2 "--num-workers 100000" -- "${train[@]}" --num-workers 100000
expect 2 "--steps 99999999999" "--channels 99999999" -- "$tessera" train --steps 99999999999 --channels 99999999
expect 2 "--num-epochs 99999999999" -- "$tessera" train --num-epochs 99999999999
expect 2 "--parts 1000000000000" -- "${train[@]}" --parts 1000000000000
expect 2 "--timeout nan" -- "${train[@]}" --timeout nan
expect 2 "--timeout 0" -- "${train[@]}" --timeout 0
expect 2 "--host-memory is for what waits beside a GPU" -- "${train[@]}" --host-memory 1GiB
expect 2 "--tolerance -1" -- "$tessera" verify --model resnet_v1 --depth 8 --image-size 16 --tolerance -1
expect 2 "--tolerance inf" -- "$tessera" verify --model resnet_v1 --depth 8 --image-size 16 --tolerance inf
expect 2 "--channels" -- "$tessera" show resnet18 --channels 99999999
expect 2 "--halo-len 99999999" "--iterations 0" -- "$tessera" bench halo --halo-len 99999999 --iterations 0 --no-compute
expect 2 "--num-classes 10000000000" -- "${train[@]}" --num-classes 10000000000
expect 2 "--depth 60000002" -- "$tessera" train --model resnet_v1 --depth 60000002
expect 2 "--num-layers 3000000" "--num-filters 800000000" -- \
  "$tessera" train --model amoebanet --num-layers 3000000 --num-filters 800000000
for flag in --split-size --replicas --times --local-DP --num-hp --ranks-per-node; do
  expect 2 "$flag 1000000000000 is more than the 65536" -- "${train[@]}" $flag 1000000000000
done
expect 2 "--grid" "65536 ranks" -- "${train[@]}" --grid 1000000x1000000
expect 2 "65536 ranks" -- "${train[@]}" --replicas 60000 --grid 2x2
expect 2 "4096 ranks" "mpirun -np 4096" -- "${train[@]}" --replicas 4096 --synthetic-images 100000
expect 2 "--batch-size 8192" "--synthetic-images" -- "$tessera" train --batch-size 8192
expect 2 "--json" -- "${train[@]}" --json "$work/no/such/folder/run.json"
# A network whose last feature map is one pixel has nothing to normalise over with a batch of one.
expect 2 "--batch-size" "--image-size" -- "$tessera" train --model resnet18 --image-size 8 --batch-size 1 --steps 1
# Everything that is wrong comes in one message.
expect 2 "4 problems" "--batch-size 10" "--spatial-size" "--num-layers 4" "--lr -1" -- \
  "$tessera" train --model amoebanet --num-layers 4 --batch-size 10 --parts 4 --spatial-size 2 --lr -1
# A GPU that is not there: the program was built without CUDA, or sees none.
expect 2 "--device cuda" "--device cpu" -- env CUDA_VISIBLE_DEVICES= "${train[@]}" --device cuda
expect 2 "--dtype bfloat16" "--device cuda" "--dtype float32" -- "${train[@]}" --dtype bfloat16
expect 2 "--tf32" "--device cuda" -- "${train[@]}" --tf32
expect 2 "--transport nccl" "--device cuda" -- "${train[@]}" --transport nccl
expect 2 "--cudnn-search on" "--device cuda" -- "${train[@]}" --cudnn-search on
expect 2 "--transport" "pigeon" -- "${train[@]}" --transport pigeon
expect 0 "step 2/2" -- "${train[@]}" --transport mpi
# Networks that label pixels, and those that do not.
unet=("$tessera" train --model unet --num-layers 2 --num-filters 4 --image-size 16 --batch-size 4 --steps 2)
expect 2 "--upsampling nearest" "bilinear" -- "${unet[@]}" --upsampling nearest
expect 2 "--upsampling" "resnet_v1" -- "${train[@]}" --upsampling bilinear
expect 2 "255 classes" "--num-classes" -- "${unet[@]}" --num-classes 300
expect 2 "CIFAR-10 has none" "--app" -- "${unet[@]}" --app cifar --datapath "$work"
expect 2 "--mask-values" -- "${train[@]}" --mask-values 0,255
expect 2 "--mask-ignore" -- "${unet[@]}" --mask-ignore 7
expect 2 "leaves a tile empty" "3x3" -- \
  "$tessera" train --model unet --num-layers 2 --image-size 12 --batch-size 4 --grid 5x5
# Plans that cannot be.
expect 2 "--spatial-size 3" "--split-size 3" -- "${train[@]}" --num-spatial-parts 2 --spatial-size 3 --split-size 2
expect 2 "leaves a tile empty" "layer" "4x4" -- "${train[@]}" --grid 5x5
expect 2 "leaves a tile empty" "input" -- "${train[@]}" --num-spatial-parts 17 --slice-method vertical
expect 2 "--fused-layers 0" -- "${train[@]}" --num-spatial-parts 4 --halo-D2 --fused-layers 0
expect 2 "--halo-D2" -- "${train[@]}" --halo-D2
expect 2 "--slice-method" -- "${train[@]}" --slice-method vertical
expect 2 "--balance 3,3" -- "${train[@]}" --split-size 2 --balance 3,3
expect 2 "--split-size 9" -- "${train[@]}" --split-size 9
expect 2 "--local-DP 2" -- "${train[@]}" --local-DP 2
expect 2 "--local-DP 3" "--batch-size" -- "${train[@]}" --num-spatial-parts 2 --split-size 2 --local-DP 3
expect 2 "--times" -- "${train[@]}" --schedule gpipe --times 2
expect 2 "--times 0" -- "${train[@]}" --split-size 2 --times 0
expect 2 "--schedule gems-mast" "--split-size 2" -- "${train[@]}" --schedule gems-mast
expect 2 "--schedule chimera" "--split-size 2" -- "${train[@]}" --schedule chimera
# A mirror that puts two heavy stages on one rank; one direction alone would fit.
mirror=("$tessera" plan --model resnet18 --image-size 128 --batch-size 16 --split-size 2 --memory-limit 150MiB)
expect 2 "rank 0 needs" "stage 0 and stage 1 of the direction up" "--memory-limit" "--schedule" -- "${mirror[@]}" --schedule gems-mast
expect 0 "activations" -- "${mirror[@]}"
expect 2 "--memory-limit" -- "${train[@]}" --memory-limit plenty
# Zero-bubble keeps more than 1f1b does, and what helps is named.
expect 2 "rank 2 needs 11" "--recompute block" -- "$tessera" plan --model resnet_v2 --depth 29 --image-size 128 --batch-size 8 \
  --parts 8 --split-size 3 --schedule zero-bubble --balance 2,3,6 --memory-limit 95MiB

# CIFAR files that are missing, cut short or not CIFAR.
mkdir "$work/cifar"
expect 2 "data_batch_1.bin" -- "$tessera" train --app cifar --datapath "$work/cifar"
for i in 1 2 3 4 5; do head -c $((3073 * 4)) /dev/zero >"$work/cifar/data_batch_$i.bin"; done
expect 0 "step 2/2" -- "$tessera" train --steps 2 --batch-size 4 --model resnet_v1 --depth 8 --app cifar --datapath "$work/cifar"
head -c 5000 /dev/zero >"$work/cifar/data_batch_3.bin"
expect 2 "data_batch_3.bin" "5000" -- "$tessera" train --app cifar --datapath "$work/cifar"
head -c 3073 /dev/zero | tr '\0' '\377' >"$work/cifar/data_batch_3.bin"
expect 2 "data_batch_3.bin" "255" -- "$tessera" train --app cifar --datapath "$work/cifar"

# Image files: lists with holes, a broken one, and what is evaluated.
mkdir -p "$work/data/train/a" "$work/data/train/b" "$work/data/val/a" "$work/data/val/b"
for folder in "$work"/data/*/*; do
  for i in 1 2 3 4; do
    { printf 'P6\n20 18\n255\n'; head -c $((20 * 18 * 3)) /dev/zero | tr '\0' "\\1${i}0"; } >"$folder/$i.ppm"
  done
done
# The kind of the data, the size of its images and its classes are found; what cannot be found is asked for.
expect 0 "2 classes" "as 3x18x20" "step 2/2" -- "$tessera" train --steps 2 --batch-size 4 --model resnet_v1 --depth 8 \
  --datapath "$work/data"
{ printf 'P6\n4 4\n255\n'; head -c 48 /dev/zero; } >"$work/data/train/b/9.ppm"
expect 2 "which --image-size?" "b/9.ppm' 4x4" "18x20" -- "$tessera" train --steps 2 --batch-size 4 --datapath "$work/data"
rm "$work/data/train/b/9.ppm"
expect 2 "does not exist" "--datapath $work/none" -- "$tessera" train --datapath "$work/none"
touch "$work/x.npz" && expect 2 "x.npz is a file of arrays" -- "$tessera" train --datapath "$work/x.npz"
expect 2 "CIFAR-10" -- "$tessera" train --datapath "$work/cifar" --image-size 64
expect 2 "all of one class" "--model unet" -- "$tessera" train --datapath "$work/data/train/a" --image-size 16 --model resnet_v1 --depth 8
mkdir -p "$work/many"
for i in 0 1 2 3 4 5 6 7 8 9; do mkdir "$work/many/$i" && cp "$work/data/train/a/1.ppm" "$work/many/$i"; done
expect 2 "has 10 classes (0, 1, 2, 3, ...), and --num-classes is 3" "use --num-classes 10" -- \
  "$tessera" train --datapath "$work/many" --num-classes 3 --image-size 16
head -c 400 /dev/zero | { printf 'PK\003\004\000\000\010\010'; cat; } >"$work/old.pth"
expect 2 "PyTorch checkpoint" "save_file" -- "${train[@]}" --init-from "$work/old.pth"

files=("$tessera" train --steps 2 --batch-size 4 --model resnet_v1 --depth 8 --image-size 16 --num-classes 2 --app medical)
expect 0 "step 2/2" "accuracy" "as b" -- "${files[@]}" --datapath "$work/data" --eval-every 1
printf 'path,label\ndata/train/a/1.ppm,0\ndata/train/a/9.ppm,1\n' >"$work/list.csv"
expect 2 "list.csv' line 3" "9.ppm' does not exist" -- "${files[@]}" --datapath "$work/list.csv"
printf 'path,label\ndata/train/a/1.ppm,0\ndata/train/a/2.ppm,\n' >"$work/list.csv"
expect 2 "list.csv' line 3: no label" -- "${files[@]}" --datapath "$work/list.csv"
printf 'data/train/a/1.ppm,a\ndata/train/b/1.ppm,b\ndata/train/a/2.ppm,a\ndata/train/b/2.ppm,b\n' >"$work/list.csv"
expect 2 "--val-datapath" -- "${files[@]}" --datapath "$work/list.csv" --eval-every 1
expect 0 "validation" "(8 images" -- "${files[@]}" --datapath "$work/list.csv" --eval-every 1 --val-datapath "$work/data/val" \
  --class-names a,b
expect 2 "--val-datapath" -- "${files[@]}" --datapath "$work/data/train" --eval-every 1
expect 2 "$work/none' does not exist" "--val-datapath" -- "${files[@]}" --datapath "$work/data" --eval-every 1 \
  --val-datapath "$work/none"
expect 2 "--eval-every 0" -- "${files[@]}" --datapath "$work/data" --eval-every 0
expect 2 "--class-names" "--num-classes 2" -- "${files[@]}" --datapath "$work/data" --class-names a,b,c
expect 2 "--on-bad-image" -- "${train[@]}" --on-bad-image skip
# A file that may not be read. The superuser may read all of them, so somebody else looks.
as=()
[ "$(id -u)" != 0 ] || as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
chmod 755 "$work" && chmod 000 "$work/data/train/a/2.ppm"
if "${as[@]}" "$tessera" --version >/dev/null 2>&1; then
  expect 1 "a/2.ppm' cannot be read: Permission denied" -- "${as[@]}" "${files[@]}" --datapath "$work/data"
fi
chmod 644 "$work/data/train/a/2.ppm"
head -c 500 "$work/data/train/b/3.ppm" >"$work/cut" && mv "$work/cut" "$work/data/train/b/3.ppm"
echo "no image" >"$work/data/val/a/4.ppm"
expect 1 "train/b/3.ppm'" "--on-bad-image skip" -- "${files[@]}" --datapath "$work/data"
expect 0 "left out: image '$work/data/train/b/3.ppm'" "left out 1 of 8" "val/a/4.ppm'" "7 images" "(7 images" "step 2/2" -- \
  "${files[@]}" --datapath "$work/data" --eval-every 2 --on-bad-image skip --num-spatial-parts 2
expect 2 "which weights" -- "$tessera" eval
expect 2 "--weights" "nowhere" -- "$tessera" eval --weights "$work/nowhere"
expect 2 "--weights" "list.csv" -- "$tessera" eval --weights "$work/list.csv"
expect 2 "--weights" "nowhere" -- "$tessera" predict --weights "$work/nowhere"

# A loss that is not a number: the step, and an exit code of its own.
expect 3 "at step" "--lr" -- "$tessera" train --steps 20 --batch-size 4 --model resnet_v1 --depth 8 --image-size 16 \
  --lr 1e30

# No flags at all: help, and no success.
expect 2 "train" "verify" -- "$tessera"
expect 0 "Parallelism" "--num-spatial-parts" -- "$tessera" train --help
for command in train plan verify eval predict bench export show report; do
  expect 0 "Example: tessera $command" -- "$tessera" $command --help
done
expect 0 "libtorch" "MPI" "NCCL" -- "$tessera" --version

if [ -n "$mpirun" ]; then
  expect 2 "there are 3 ranks" "mpirun -np 1" -- "$mpirun" -np 3 "${train[@]}"
  expect 0 "step 2/2" -- "$mpirun" -np 1 "${train[@]}"
  expect 2 "there are 3 ranks" "mpirun -np 4" -- "$mpirun" -np 3 "${train[@]}" --num-spatial-parts 4
  expect 2 "leaves a tile empty" -- "$mpirun" -np 3 "${train[@]}" --grid 1x17
fi

[ $failures = 0 ] && echo "every careless line got its message" || { echo "$failures lines failed"; exit 1; }
