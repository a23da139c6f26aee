// An index of shards: no name may lead out of its folder.
#include "fuzz/fuzz.h"
#include "tessera/io/shard_index.h"

void tessera::fuzz(std::string_view file) {
  const auto index = parse_index(file, "index");
  for (const auto& [tensor, name] : index) must(!name.empty() && name[0] != '.' && name.find('/') == std::string::npos);
  must(parse_index(index_text(index, 0), "again") == index);
}
