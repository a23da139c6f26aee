#include "tessera/comm/mpi/mpi_communicator.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>

#include "tessera/comm/mpi/launcher_watch.h"
#include "tessera/comm/mpi/mpi_request.h"
#include "tessera/comm/staging.h"

namespace tessera {
namespace {

using mpi::check;
using mpi::LetterCollective;
using mpi::Node;
using mpi::Operation;

MPI_Datatype mpi_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kLong:
      return MPI_INT64_T;
    case at::kByte:
      return MPI_UINT8_T;
    default:
      throw Error(concat("all_reduce cannot combine elements of dtype ", dtype));
  }
}

std::vector<std::string> host_names(MPI_Comm world, int size) {
  constexpr int longest = MPI_MAX_PROCESSOR_NAME;
  std::vector<char> mine(longest), all(static_cast<std::size_t>(size) * longest);
  int length = 0;
  check(MPI_Get_processor_name(mine.data(), &length), "MPI_Get_processor_name");
  check(MPI_Allgather(mine.data(), longest, MPI_CHAR, all.data(), longest, MPI_CHAR, world), "MPI_Allgather");
  std::vector<std::string> names;
  for (int r = 0; r < size; ++r) names.emplace_back(all.data() + static_cast<std::ptrdiff_t>(r) * longest);
  return names;
}

/// Called by all ranks of the world.
std::shared_ptr<Node> find_node(MPI_Comm world) {
  struct Part {
    std::int64_t world_rank, process, file;
    std::uint64_t mark;
  };
  int world_rank = 0, world_size = 0, me = 0, size = 0;
  MPI_Comm_rank(world, &world_rank);
  MPI_Comm_size(world, &world_size);
  MPI_Comm here = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here), "MPI_Comm_split_type");
  MPI_Comm_rank(here, &me);
  MPI_Comm_size(here, &size);

  std::random_device random;
  const std::uint64_t mark = std::uint64_t{random()} << 32 | random();
  std::vector<std::unique_ptr<SharedPart>> parts(static_cast<std::size_t>(size));
  auto& own = parts[static_cast<std::size_t>(me)];
  own = SharedPart::make(mark);
  const Part mine{world_rank, getpid(), own ? own->file() : -1, mark};
  std::vector<Part> all(static_cast<std::size_t>(size));
  check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, here), "MPI_Allgather");

  auto node = std::make_shared<Node>();
  node->numbers.assign(static_cast<std::size_t>(world_size), -1);
  node->hosts = host_names(world, world_size);
  int open_here = 1, open = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    node->numbers[static_cast<std::size_t>(all[i].world_rank)] = static_cast<int>(i);
    if (!parts[i] && all[i].file >= 0)
      parts[i] = SharedPart::open(all[i].process, static_cast<int>(all[i].file), all[i].mark);
    if (!parts[i]) open_here = 0;
  }
  // All ranks of the machine or none. Then nobody needs the files any more.
  check(MPI_Allreduce(&open_here, &open, 1, MPI_INT, MPI_MIN, here), "MPI_Allreduce");
  MPI_Comm_free(&here);
  if (open == 0) return node;
  for (const auto& part : parts) part->close_file();
  node->post = std::make_unique<NodePost>(std::move(parts), me);
  return node;
}

/// Of tensors in host memory; of a GPU's only messages in one piece, where the library can read them. staged() sees to
/// that.
class MpiCommunicator final : public Communicator {
 public:
  /// Takes ownership of `handle`. Called by all its ranks.
  MpiCommunicator(MPI_Comm handle, Rank rank, int size, std::string name, CommunicatorOptions options,
                  std::shared_ptr<Node> node)
      : Communicator(rank, size, std::move(name), options), handle_(handle), node_(std::move(node)) {
    MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN);
    find_neighbours();
  }
  ~MpiCommunicator() override { MPI_Comm_free(&handle_); }

  std::string title(Rank rank) const override {
    const int in_world = world_ranks_[static_cast<std::size_t>(rank.value)];
    return concat(Rank{in_world}, " on host ", node_->hosts[static_cast<std::size_t>(in_world)]);
  }
  Pending send(const Region& region, Rank to, Tag tag) override {
    check_peer(to, tag);
    const Operation operation{"send", true, false, to, tag, region.bytes()};
    if (by_post(to, region)) return send_letter(operation, region);
    return start(operation, packed(region), [&](std::byte* data, int bytes, MPI_Request* request) {
      check(MPI_Isend(data, bytes, MPI_BYTE, to.value, tag.value, handle_, request), "MPI_Isend");
    });
  }
  Pending receive(const Region& into, Rank from, Tag tag) override {
    check_peer(from, tag);
    const Operation operation{"receive", false, true, from, tag, into.bytes()};
    if (by_post(from, into))
      return Pending(std::make_unique<mpi::LetterReceive>(*this, *node_, operation, handle_, number_of(from),
                                                          Address{group_, from.value, tag.value}, into));
    return start(operation, Wire(buffers(), into), [&](std::byte* data, int bytes, MPI_Request* request) {
      check(MPI_Irecv(data, bytes, MPI_BYTE, from.value, tag.value, handle_, request), "MPI_Irecv");
    });
  }

  Pending all_reduce(at::Tensor in_place, Reduce op) override {
    const Region region = region_of(in_place);
    if (by_letters(region)) {
      Wire wire = packed(region);
      const Region mine = wire.region();
      return collective("all_reduce", op == Reduce::sum ? LetterCollective::Kind::sum : LetterCollective::Kind::max,
                        mine, std::move(wire));
    }
    // MPI knows no bfloat16.
    Wire wire(buffers(), region, region.dtype == at::kBFloat16 ? at::kFloat : region.dtype);
    wire.pack();
    const MPI_Datatype type = mpi_type(wire.region().dtype);
    const auto unit = static_cast<int>(wire.region().element_bytes());
    return start({"all_reduce"}, std::move(wire), [&](std::byte* data, int bytes, MPI_Request* request) {
      check(MPI_Iallreduce(MPI_IN_PLACE, data, bytes / unit, type, op == Reduce::sum ? MPI_SUM : MPI_MAX, handle_,
                           request),
            "MPI_Iallreduce");
    });
  }
  Pending broadcast(at::Tensor tensor, Rank root) override {
    const Region region = region_of(tensor);
    Wire wire = root == rank() ? packed(region) : Wire(buffers(), region);
    return start({"broadcast"}, std::move(wire), [&](std::byte* data, int bytes, MPI_Request* request) {
      check(MPI_Ibcast(data, bytes, MPI_BYTE, root.value, handle_, request), "MPI_Ibcast");
    });
  }
  Pending all_gather(const at::Tensor& mine, at::Tensor into) override {
    const Region in = region_of(mine), out = region_of(into.flatten());
    ensure(into.is_contiguous() && out.bytes() == in.bytes() * size(), "all_gather of ", in.bytes(),
           " bytes per rank from ", size(), " ranks into ", out.bytes(),
           " bytes, or into a tensor that is not contiguous");
    Wire wire(buffers(), out);
    if (by_letters(in)) return collective("all_gather", LetterCollective::Kind::gather, in, std::move(wire));
    const Region all = wire.region();
    copy_region(all.slice(rank().value * in.count(), in.count()), in);
    std::vector<MPI_Request> pieces;
    if (in.bytes() <= options().max_piece_bytes) {
      check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, all.data, static_cast<int>(in.bytes()), MPI_BYTE, handle_,
                           &pieces.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Iallgather");
    } else {
      for (int root = 0; root < size(); ++root)
        add_pieces(all.slice(root * in.count(), in.count()), pieces,
                   [&](std::byte* data, int bytes, MPI_Request* request) {
                     check(MPI_Ibcast(data, bytes, MPI_BYTE, root, handle_, request), "MPI_Ibcast");
                   });
    }
    return pending({"all_gather"}, std::move(wire), std::move(pieces));
  }
  void barrier() override {
    if (by_letters({})) return collective("barrier", LetterCollective::Kind::gather, {}, {}).wait();
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(handle_, &request), "MPI_Ibarrier");
    pending({"barrier"}, {}, {request}).wait();
  }
  void progress() override {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle_, &found, MPI_STATUS_IGNORE);
    if (node_->post) node_->post->all_sent();
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    barrier();  // so that a rank which does not come is named: MPI_Comm_split has no time-out
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(handle_, color < 0 ? MPI_UNDEFINED : color, key, &part), "MPI_Comm_split");
    if (part == MPI_COMM_NULL) return nullptr;
    return owner_of(part, concat(name(), '/', color), options(), node_);
  }

  void abort(const std::string& message, ExitCode code) override {
    int world_rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    std::fprintf(stderr, "tessera: rank %d on host %s failed: %s\n", world_rank,
                 node_->hosts[static_cast<std::size_t>(world_rank)].c_str(), message.c_str());
    std::fflush(stderr);
    alarm(seconds_to_abort);  // the launcher may be out of reach, and MPI wait for it
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
    std::abort();
  }

  static std::unique_ptr<Communicator> owner_of(MPI_Comm handle, std::string name, const CommunicatorOptions& options,
                                                std::shared_ptr<Node> node) {
    int rank = 0, size = 1;
    MPI_Comm_rank(handle, &rank);
    MPI_Comm_size(handle, &size);
    return std::make_unique<MpiCommunicator>(handle, Rank{rank}, size, std::move(name), options, std::move(node));
  }

 private:
  void find_neighbours() {
    std::vector<int> ranks;
    std::vector<int>& in_world = world_ranks_;
    in_world.resize(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) ranks.push_back(r);
    MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
    MPI_Comm_group(handle_, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_translate_ranks(group, size(), ranks.data(), world, in_world.data());
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    for (const int r : in_world) numbers_.push_back(node_->numbers[static_cast<std::size_t>(r)]);
    all_here_ = std::all_of(numbers_.begin(), numbers_.end(), [](int number) { return number >= 0; });
    // The first rank names the group: by its number in the world, and by how many it has named.
    group_ = std::int64_t{in_world.front()} << 32 | node_->groups_made;
    if (rank() == Rank{0}) ++node_->groups_made;
    check(MPI_Bcast(&group_, 1, MPI_INT64_T, 0, handle_), "MPI_Bcast");
  }
  int number_of(Rank rank) const { return numbers_[static_cast<std::size_t>(rank.value)]; }

  /// Whether a message between this rank and `peer` goes by the machine's own post; both ends find the same. MPI copies
  /// long ones once where the post copies twice, through memory.
  bool by_post(Rank peer, const Region& region) const {
    return node_->post && number_of(peer) >= 0 && region.on_host() && options().max_shared_bytes > 0 &&
           region.bytes() <= options().max_shared_bytes;
  }
  /// Whether a collective does; all ranks find the same.
  bool by_letters(const Region& region) const {
    return node_->post && all_here_ &&
           region.bytes() * size() <= std::min(longest_collective_bytes, options().max_shared_bytes) &&
           options().max_shared_bytes > 0;
  }
  Pending send_letter(const Operation& operation, const Region& region) {
    const int to = number_of(operation.peer);
    Letter letter{{group_, rank().value, operation.tag.value}, -1, region.bytes()};
    if (letter.bytes > 0) {
      letter.block = node_->post->take_block(letter.bytes, 1);
      copy_region(dense_region(node_->post->data(number_of(rank()), letter.block), region.dtype, region.sizes), region);
    }
    node_->post->send(to, letter);
    if (node_->post->sent(to)) return {};
    return Pending(std::make_unique<mpi::LetterSend>(*this, *node_, operation, handle_, to));
  }
  Pending collective(const char* name, LetterCollective::Kind kind, const Region& mine, Wire out) {
    // Tags below zero are for collectives, by number of the call.
    const Address address{group_, rank().value, static_cast<std::int32_t>(-1 - collectives_++ % (1 << 30))};
    const Operation operation{name, false, false, {}, {}, mine.bytes()};
    return Pending(std::make_unique<LetterCollective>(*this, *node_, operation, handle_, numbers_, address, kind, mine,
                                                      std::move(out)));
  }
  Pending pending(Operation operation, Wire wire, std::vector<MPI_Request> pieces) const {
    operation.bytes = wire.region().bytes();
    return Pending(std::make_unique<mpi::WireRequest>(*this, *node_, operation, std::move(wire), std::move(pieces)));
  }
  Wire packed(const Region& region) {
    Wire wire(buffers(), region);
    wire.pack();
    return wire;
  }
  /// Calls begin(data, bytes, request) for each piece of a dense region; an empty region is one empty piece. Pieces of
  /// one message match in order, because MPI does not let messages of one sender and tag overtake each other.
  template <class Begin>
  void add_pieces(const Region& region, std::vector<MPI_Request>& pieces, const Begin& begin) const {
    std::int64_t at = 0;
    do {
      const std::int64_t bytes = std::min(options().max_piece_bytes, region.bytes() - at);
      begin(region.data + at, static_cast<int>(bytes), &pieces.emplace_back(MPI_REQUEST_NULL));
      at += bytes;
    } while (at < region.bytes());
  }
  template <class Begin>
  Pending start(const Operation& operation, Wire wire, const Begin& begin) const {
    std::vector<MPI_Request> pieces;
    add_pieces(wire.region(), pieces, begin);
    return pending(operation, std::move(wire), std::move(pieces));
  }

  static constexpr std::int64_t longest_collective_bytes = 1 << 16;
  static constexpr unsigned seconds_to_abort = 20;
  MPI_Comm handle_;
  std::shared_ptr<Node> node_;
  std::int64_t group_ = 0;        ///< its name in addresses
  std::vector<int> world_ranks_;  ///< by rank: the number in the whole job
  std::vector<int> numbers_;      ///< by rank: the number on this machine, or -1
  bool all_here_ = false;         ///< on this machine
  std::int64_t collectives_ = 0;
};

}  // namespace

MpiSession::MpiSession() : exceptions_at_start_(std::uncaught_exceptions()) {
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  require(provided >= MPI_THREAD_SERIALIZED, "this MPI library allows calls from the main thread only; ",
          "use one that was built with thread support");
  MPI_Comm local = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local), "MPI_Comm_split_type");
  MPI_Comm_rank(local, &local_rank_);
  MPI_Comm_size(local, &local_size_);
  MPI_Comm_free(&local);
  if (started_by_launcher()) launcher_ = std::make_unique<LauncherWatch>();
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_at_start_) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::failure));
  MPI_Finalize();
}

bool MpiSession::started_by_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return true;
  return false;
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

std::unique_ptr<Communicator> mpi_world(CommunicatorOptions options) {
  require(options.max_piece_bytes >= 8 && options.max_piece_bytes <= INT32_MAX && options.max_piece_bytes % 8 == 0,
          "max_piece_bytes is ", options.max_piece_bytes, "; it must be a multiple of 8 below 2^31");
  void* bound = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found), "MPI_Comm_get_attr");
  require(found && *static_cast<int*>(bound) >= Tag::limit - 1, "this MPI library has tags below 2^28");
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  auto world = MpiCommunicator::owner_of(copy, "world", options, find_node(copy));
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return world;
  return staged(std::move(world), mpi_reads_gpu_memory() ? MessageMemory::gpu : MessageMemory::pinned);
}

void run_mpi_ranks(const MpiSession&, const std::function<void(Communicator&)>& body, CommunicatorOptions options) {
  const auto world = mpi_world(options);
  try {
    body(*world);
  } catch (const Error& error) {
    world->abort(error.what(), error.code());
  } catch (const std::exception& error) {
    world->abort(error.what());
  }
}

}  // namespace tessera
