#!/bin/sh
# failure.sh MPIEXEC PROGRAM throws|times_out: a rank that fails takes the job down, soon, with its own message.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMP_NUM_THREADS=1
case $3 in
  throws) status=3 message='tessera: rank 1 failed: the disk is on fire' ;;
  times_out)
    status=1
    message='tessera: rank 0 failed: receive of 64 bytes on rank 0 of world from rank 2, tag 7: still not done after 3 s' ;;
  *) echo "unknown failure $3"; exit 2 ;;
esac
output=$(timeout 150 "$1" -np 3 "$2" "$3" 2>&1)
got=$?
if [ $got -ne $status ]; then
  echo "the job ended with $got, not with $status:"
  echo "$output"
  exit 1
fi
case $output in
  *"$message"*) ;;
  *)
    echo "the output lacks '$message':"
    echo "$output"
    exit 1 ;;
esac
