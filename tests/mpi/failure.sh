#!/bin/sh
# failure.sh MPIEXEC PROGRAM throws|times_out: a rank that fails takes the job down, soon, with its own message.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMP_NUM_THREADS=1
case $3 in
  throws) status=3 message="tessera: rank 1 on host $(hostname) failed: the disk is on fire" ;;
  times_out)
    status=1
    message="tessera: rank 0 on host $(hostname) has waited 0.6 s for rank 2 on host $(hostname): receive of 64 bytes"
    later="failed: rank 0 on host $(hostname) waited 3.0 s for rank 2 on host $(hostname): receive of 64 bytes" ;;
  *) echo "unknown failure $3"; exit 2 ;;
esac
output=$(timeout 150 "$1" -np 3 "$2" "$3" 2>&1)
got=$?
if [ $got -ne $status ]; then
  echo "the job ended with $got, not with $status:"
  echo "$output"
  exit 1
fi
for words in "$message" "${later:-$message}"; do
  case $output in
    *"$words"*) ;;
    *)
      echo "the output lacks '$words':"
      echo "$output"
      exit 1 ;;
  esac
done
