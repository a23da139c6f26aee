#!/usr/bin/env bash
# two_hosts.sh RATE MPIRUN -np N COMMAND...: as mpirun, but half of the ranks are on another host, behind a link of this
# rate ("1gbit"): hosts are network namespaces, so this needs root. For bench/forecasts.py --mpiexec "bench/two_hosts.sh 1gbit mpirun".
set -u
rate=$1 mpirun=$2 ranks=$4
shift 4
. "$(dirname "$0")/../tests/hosts/hosts.sh"
make_hosts 2
limit h1 "$rate"
limit h2 "$rate"
on_hosts "h1:$(((ranks + 1) / 2)),h2:$((ranks / 2))" "$@"
