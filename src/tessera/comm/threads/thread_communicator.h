// Ranks as threads of one process: no set-up, debuggable, and the sanitizers see everything.
#pragma once

#include <functional>

#include "tessera/comm/communicator.h"

namespace tessera {

/// Runs body(communicator of rank r) on one thread for each rank and returns when all are done. The first exception on
/// any rank wakes all others, which unwind with Aborted, and is thrown here.
///
/// A message is copied once, from the sender's tensor into the receiver's, by whichever of the two comes second.
void run_thread_ranks(int ranks, const std::function<void(Communicator&)>& body, CommunicatorOptions options = {});

}  // namespace tessera
