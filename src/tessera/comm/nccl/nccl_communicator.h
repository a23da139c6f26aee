// Sums and messages of GPUs by NCCL, which moves them from GPU to GPU without the host.
#pragma once

#include <memory>
#include <string>

#include "tessera/comm/communicator.h"

namespace tessera {

/// Whether this program was built with NCCL; without it, none of the rest may be called.
bool nccl_built();
/// "2.28.9"
std::string nccl_version();

/// To be called before CUDA is used in this process: leaves in the environment what NCCL and CUDA have to know, unless
/// the user did. Nothing to do without NCCL, or with more ranks on this machine than it has GPUs.
void prepare_for_nccl(int ranks_on_machine);

/// The same ranks as `world`, which must outlive it: collectives on tensors of GPUs go by NCCL, messages of such
/// tensors do between ranks that connect() has named (see NcclMessages), and all the rest goes by `world`. Each rank is
/// a process with a GPU of its own, the current one. Collective.
///
/// Each group, also each made by split(), is a communicator of NCCL with a stream of its own, set up when it is made.
/// A collective is queued there, behind what the caller's stream holds so far; done means that the caller's stream goes
/// on behind it. Ranks call the collectives of a group in the same order, so its stream holds them in the same order;
/// groups do not wait for each other.
std::unique_ptr<Communicator> with_nccl(Communicator& world);

}  // namespace tessera
