# To be sourced: several hosts on one machine, each a network namespace with a name and an address of its own.
#
#     make_hosts 3               hosts h1, h2 and h3, joined by a bridge; exits with 77 (skipped) where that is not allowed
#     on_hosts h1:2,h2:2 ...     mpirun of the command on these hosts, started from h1
#     link h2 down               takes the host off the net; up puts it back
#     limit h2 100mbit           how fast it can send
#
# Needs $mpirun. Everything made here goes with the script.
hosts_work=$(mktemp -d)
hosts_tag=t$$
hosts=()
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1

remove_hosts() {
  local host
  for host in "${hosts[@]}"; do
    ip netns pids "$hosts_tag$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns del "$hosts_tag$host" 2>/dev/null
  done
  ip netns del "${hosts_tag}net" 2>/dev/null
  rm -rf "$hosts_work"
}
trap remove_hosts EXIT

skip() { echo "skipped: $*"; exit 77; }

make_hosts() {
  local i host bridge="ip -n ${hosts_tag}net"
  for tool in ip tc unshare nsenter; do command -v $tool >/dev/null || skip "there is no $tool"; done
  ip netns add "${hosts_tag}net" 2>/dev/null || skip "network namespaces are not allowed here (they need the superuser)"
  ip netns exec "${hosts_tag}net" unshare -u -m true 2>/dev/null || skip "unshare is not allowed here"
  # The bridge has a namespace of its own, so that no two tests meet.
  $bridge link add bridge type bridge && $bridge link set bridge up || skip "there are no bridges"
  echo "127.0.0.1 localhost" >"$hosts_work/hosts"
  for i in $(seq "$1"); do
    host=h$i
    hosts+=("$host")
    echo "10.77.0.$i $host" >>"$hosts_work/hosts"
    ip netns add "$hosts_tag$host"
    ip -n "$hosts_tag$host" link add eth type veth peer name "to$host" netns "${hosts_tag}net" || skip "there are no veth pairs"
    ip -n "$hosts_tag$host" addr add "10.77.0.$i/24" dev eth
    ip -n "$hosts_tag$host" link set eth up
    ip -n "$hosts_tag$host" link set lo up
    $bridge link set "to$host" master bridge
    $bridge link set "to$host" up
  done
  # What mpirun calls in place of ssh: HOST COMMAND...
  cat >"$hosts_work/enter" <<SCRIPT
#!/bin/sh
host=\$1
shift
exec ip netns exec $hosts_tag\$host unshare -u -m sh -c 'hostname "\$1"; mount --bind $hosts_work/hosts /etc/hosts; shift; exec sh -c "\$*"' sh "\$host" "\$@"
SCRIPT
  chmod +x "$hosts_work/enter"
}

on_hosts() {
  local list=$1 ranks=0 part
  shift
  for part in ${list//,/ }; do ranks=$((ranks + ${part#*:})); done
  "$hosts_work/enter" "${list%%:*}" "exec $(printf '%q ' "$mpirun" -np $ranks --host "$list" \
    --mca plm_rsh_agent "$hosts_work/enter" --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 "$@")"
}

link() { ip -n "${hosts_tag}net" link set "to$1" "$2"; }
limit() { tc -n "$hosts_tag$1" qdisc replace dev eth root tbf rate "$2" burst 64kb latency 200ms; }
