#include "tessera/comm/mpi_communicator.h"

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

namespace tessera {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(concat(call, ": ", std::string(text, static_cast<std::size_t>(length))));
}

/// Ranks may outnumber cores. A test that finds nothing yields inside MPI where mpirun saw that, so yielding here as
/// well is for the other libraries, and seldom. A wait of milliseconds is a wait for computation: sleeping leaves it
/// the core.
class Patience {
 public:
  explicit Patience(std::chrono::duration<double> timeout) : start_(Clock::now()), timeout_(timeout) {}

  /// False when the time is up.
  bool pause() {
    if (++tests_ % tests_between_yields != 0) return true;
    const auto waited = Clock::now() - start_;
    if (waited > timeout_) return false;
    if (waited < std::chrono::milliseconds(2)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap_);
      nap_ = std::min(nap_ * 5 / 4, Nap(500));
    }
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Nap = std::chrono::microseconds;
  Clock::time_point start_;
  std::chrono::duration<double> timeout_;
  Nap nap_{20};
  static constexpr int tests_between_yields = 16;
  int tests_ = 0;
};

/// What a request is for, and says when it takes too long.
struct Operation {
  const char* name;
  bool sends = false, receives = false;  ///< neither: a collective
  Rank peer{};
  Tag tag{};
};

class MpiRequest final : public Request {
 public:
  MpiRequest(const Communicator& communicator, Operation operation, Wire wire, std::vector<MPI_Request> pieces)
      : communicator_(communicator), operation_(operation), wire_(std::move(wire)), pieces_(std::move(pieces)) {}

  ~MpiRequest() override {
    bool idle = true;
    for (MPI_Request& piece : pieces_) {
      if (piece == MPI_REQUEST_NULL) continue;
      int complete = 0;
      if (operation_.receives) MPI_Cancel(&piece);
      MPI_Test(&piece, &complete, MPI_STATUS_IGNORE);
      idle = idle && complete;
    }
    // What MPI may still read or write must stay where it is; a leak is the lesser evil.
    if (!idle) new Wire(std::move(wire_));
  }

  bool test() override {
    for (; pieces_done_ < pieces_.size(); ++pieces_done_) {
      int complete = 0, bytes = 0;
      MPI_Status status;
      check(MPI_Test(&pieces_[pieces_done_], &complete, &status), "MPI_Test");
      if (!complete) return false;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      bytes_received_ += bytes;
    }
    if (operation_.receives && bytes_received_ != wire_.region().bytes())
      throw Error(concat(describe(), " got ", bytes_received_, " bytes"));
    if (!operation_.sends) wire_.unpack();
    return true;
  }

  void wait() override {
    if (test()) return;
    for (Patience patience(communicator_.options().timeout); !test();)
      if (!patience.pause()) throw timed_out(describe(), communicator_.options());
  }

 private:
  std::string describe() const {
    std::string text = concat(operation_.name, " of ", wire_.region().bytes(), " bytes on ", communicator_.rank(),
                              " of ", communicator_.name());
    if (operation_.sends) text += concat(" to ", operation_.peer, ", ", operation_.tag);
    if (operation_.receives) text += concat(" from ", operation_.peer, ", ", operation_.tag);
    return text;
  }

  const Communicator& communicator_;
  Operation operation_;
  Wire wire_;
  std::vector<MPI_Request> pieces_;
  std::size_t pieces_done_ = 0;
  std::int64_t bytes_received_ = 0;
};

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

class MpiCommunicator final : public Communicator {
 public:
  /// Takes ownership of `handle`.
  MpiCommunicator(MPI_Comm handle, Rank rank, int size, std::string name, CommunicatorOptions options)
      : Communicator(rank, size, std::move(name), options), handle_(handle) {
    MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN);
  }
  ~MpiCommunicator() override { MPI_Comm_free(&handle_); }

  Pending send(const Region& region, Rank to, Tag tag) override {
    check_peer(to, tag);
    return start({"send", true, false, to, tag}, packed(region), [&](std::byte* data, int bytes, MPI_Request* request) {
      check(MPI_Isend(data, bytes, MPI_BYTE, to.value, tag.value, handle_, request), "MPI_Isend");
    });
  }
  Pending receive(const Region& into, Rank from, Tag tag) override {
    check_peer(from, tag);
    return start({"receive", false, true, from, tag}, Wire(buffers(), into),
                 [&](std::byte* data, int bytes, MPI_Request* request) {
                   check(MPI_Irecv(data, bytes, MPI_BYTE, from.value, tag.value, handle_, request), "MPI_Irecv");
                 });
  }

  Pending all_reduce(at::Tensor in_place, Reduce op) override {
    const Region region = region_of(in_place);
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
           " bytes a rank from ", size(), " ranks into ", out.bytes(),
           " bytes, or into a tensor that is not contiguous");
    Wire wire(buffers(), out);
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
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(handle_, &request), "MPI_Ibarrier");
    MpiRequest(*this, {"barrier"}, {}, {request}).wait();
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    barrier();  // so that a rank which does not come is named: MPI_Comm_split has no time-out
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(handle_, color < 0 ? MPI_UNDEFINED : color, key, &part), "MPI_Comm_split");
    if (part == MPI_COMM_NULL) return nullptr;
    return owner_of(part, concat(name(), '/', color), options());
  }

  void abort(const std::string& message, ExitCode code) override {
    int world_rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    std::fprintf(stderr, "tessera: rank %d failed: %s\n", world_rank, message.c_str());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
    std::abort();
  }

  static std::unique_ptr<Communicator> owner_of(MPI_Comm handle, std::string name, const CommunicatorOptions& options) {
    int rank = 0, size = 1;
    MPI_Comm_rank(handle, &rank);
    MPI_Comm_size(handle, &size);
    return std::make_unique<MpiCommunicator>(handle, Rank{rank}, size, std::move(name), options);
  }

 private:
  Pending pending(const Operation& operation, Wire wire, std::vector<MPI_Request> pieces) const {
    return Pending(std::make_unique<MpiRequest>(*this, operation, std::move(wire), std::move(pieces)));
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

  MPI_Comm handle_;
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
  return MpiCommunicator::owner_of(copy, "world", options);
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
