#!/usr/bin/env bash
# TESSERA_CPU limits the instruction set, of the libraries too, and tessera --version says so.
# Usage: instruction_sets.sh TESSERA
set -u
tessera=$1
. "$(dirname "$0")/expect.sh"
unset TESSERA_CPU ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA ATEN_CPU_CAPABILITY OPENBLAS_CORETYPE

machine=$("$tessera" --version | sed -n 's/^CPU *\([a-z0-9]*\);.*/\1/p')
case $machine in
  avx512 | avx2 | portable) ;;
  *) echo "FAILED: --version says nothing of the CPU"; exit 1 ;;
esac
expect 0 "CPU        portable" -- env TESSERA_CPU=portable "$tessera" --version
if [ "$machine" != portable ]; then
  expect 0 "limited by TESSERA_CPU" "ONEDNN_MAX_CPU_ISA=SSE41" -- env TESSERA_CPU=portable "$tessera" --version
fi
if [ "$machine" = avx512 ]; then
  expect 0 "CPU        avx2; ATen AVX2" "OPENBLAS_CORETYPE=Haswell" -- env TESSERA_CPU=avx2 "$tessera" --version
  expect 0 "CPU        avx512" -- env TESSERA_CPU=avx512 "$tessera" --version
fi
expect 2 "TESSERA_CPU=sse9 is not an instruction set; use avx512, avx2 or portable" -- \
  env TESSERA_CPU=sse9 "$tessera" --version

[ $failures = 0 ] && echo "the limit holds and is told" || { echo "$failures lines failed"; exit 1; }
