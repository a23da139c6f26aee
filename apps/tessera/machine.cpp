#include "machine.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    std::ifstream in(path);
    all_ = Json::parse(in, nullptr, /*allow_exceptions=*/false);
    require(all_.is_object(), "--machine ", path,
            " is no description of a machine in JSON; see machines/dgx_h100.json");
  }
  const Json& object(const Json& in, const char* name) const {
    require(in.contains(name) && in[name].is_object(), "--machine ", path_, " does not say '", name,
            "'; see machines/dgx_h100.json");
    return in[name];
  }
  double number(const Json& in, const std::string& name) const {
    constexpr double least = 1e-12, most = 1e21;  // what machines have, in seconds, bytes and operations
    require(
        in.contains(name) && in[name].is_number() && in[name].get<double>() >= least && in[name].get<double>() <= most,
        "--machine ", path_, ": '", name, "' must be a number above 0, and one that machines have");
    return in[name].get<double>();
  }
  Links links(const char* name) const {
    const Json& in = object(all_, name);
    return {number(in, "message_seconds"), number(in, "message_bytes_per_second"), number(in, "agreement_seconds"),
            number(in, "sum_bytes_per_second")};
  }
  const Json& all() const { return all_; }

 private:
  const std::string path_;
  Json all_;
};

}  // namespace

Machine read_machine(const std::string& path, const std::string& dtype) {
  const Reader reader(path);
  const Json& all = reader.all();
  Machine machine;
  machine.name = all.contains("name") && all["name"].is_string() ? all["name"].get<std::string>() : path;
  const double per_node = reader.number(all, "ranks_per_node");
  require(per_node == std::floor(per_node) && per_node <= 65536, "--machine ", path, ": 'ranks_per_node' must be a ",
          "whole number of at most 65536");
  machine.ranks_per_node = static_cast<std::int64_t>(per_node);
  machine.memory = reader.number(all, "memory_bytes");
  require(reader.object(all, "flops").contains(dtype), "--machine ", path, ": 'flops' has no number for --dtype ",
          dtype, "; give another --dtype, or add it");
  machine.rates = {.flops = reader.number(reader.object(all, "flops"), dtype),
                   .bytes = reader.number(all, "bytes_per_second"),
                   .start = reader.number(all, "kernel_seconds")};
  machine.site = {.links = reader.links("within_node"),
                  .between = reader.links("between_nodes"),
                  .update_bytes = reader.number(all, "update_bytes_per_second")};
  return machine;
}

}  // namespace tessera
