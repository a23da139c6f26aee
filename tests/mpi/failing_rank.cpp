// A job in which something goes wrong; failure.sh looks at how it ends.
#include <ATen/ops/zeros.h>

#include <string>

#include "tessera/comm/mpi/mpi_communicator.h"

using namespace tessera;

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  const MpiSession session;
  if (how == "throws")
    run_mpi_ranks(session, [](Communicator& c) {
      if (c.rank() == Rank{1}) throw NumericError("the disk is on fire");
      c.barrier();
    });
  if (how == "times_out")
    run_mpi_ranks(session,
                  [](Communicator& c) {
                    if (c.rank() == Rank{0}) c.receive(at::zeros({16}, at::kFloat), Rank{2}, Tag{7}).wait();
                    c.split(0, 0);  // waits longer than rank 0 does, because it comes first
                  },
                  {.timeout = std::chrono::duration<double>(session.local_rank() == 0 ? 3 : 100)});
  return 0;
}
