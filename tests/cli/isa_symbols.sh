#!/usr/bin/env bash
# Objects that are compiled for one instruction set define only what is in the namespace of that name. Anything else
# that the linker may share (an inline function of the standard library, say) could be the copy that all of the program
# uses, and other machines would stop at its instructions.
#
#   isa_symbols.sh OBJECT...              1 and a line for each foreign symbol
#   isa_symbols.sh --self-test COMPILER   compiles an object that leaks; 1 unless it is caught
set -u

# Weak, unique and global definitions outside of tessera::{portable,avx2,avx512}.
foreign() { nm -C --defined-only "$1" | grep -E '^[0-9a-f]+ [A-Zuvw] ' | grep -v -E 'tessera::(portable|avx2|avx512)::'; }

if [ "$1" = --self-test ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cat > "$work/leak.cpp" <<'C'
inline int shared(int x) { return x + 1; }
namespace tessera::avx2 {
int (*const of_ours)(int) = shared;
int use() { return of_ours(1); }
}
C
  "$2" -O0 -c "$work/leak.cpp" -o "$work/leak.o" || exit 1
  foreign "$work/leak.o" | grep -q 'shared(int)' || { echo "a shared function was not seen"; exit 1; }
  exit 0
fi

[ $# -ge 1 ] || { echo "no objects to look at"; exit 1; }
failures=0
for object in "$@"; do
  if found=$(foreign "$object"); then
    echo "$object defines what is not its own:"
    echo "$found"
    failures=1
  fi
done
exit $failures
