#include "tessera/io/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/checkpoint_files.h"
#include "tessera/io/strict_json.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t format_version = 1;
const Metadata pytorch_metadata{{"format", "pt"}};  // Hugging Face's loader asks for it

std::string shard_file(const std::string& kind, int shard, int shards) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", kind, shard + 1, shards);
}
std::string note_path(const ShardPlace& place, int shard) {
  return join_path(place.part(), fmt::format(".shard-{:05}.json", shard + 1));
}

// What a shard tells finish_checkpoint(): its files, or why there are none.
struct Note {
  std::map<std::string, FileSum> files;
  std::string error;
};

Note read_note(const std::string& path) {
  const std::string text = read_text(path);
  if (text.empty()) return {.files = {}, .error = "there was no room left even to say why"};
  const auto json = parse_object(text, path);
  Note note{.files = parse_sums(json, path), .error = field<std::string>(json, "error", path)};
  return note;
}

void write_note(const std::string& path, const Note& note) {
  OrderedJson json = sums_json(note.files);
  json["error"] = note.error;
  write_text(path + ".part", to_text(json));
  rename_path(path + ".part", path);  // the last act: from now on the folder may be renamed or removed by rank 0
}

void write_shard_files(const ShardPlace& place, const ShardContents& contents) {
  Note note;
  for (const auto& [kind, tensors] :
       {std::pair("model", &contents.model), std::pair("optimizer", &contents.optimizer)}) {
    const std::string name = shard_file(kind, place.shard, place.shards);
    note.files[name] = write_safetensors(join_path(place.part(), name), *tensors, pytorch_metadata);
  }
  sync_folder(place.part());
  write_note(note_path(place, place.shard), note);
}

// Why no file can be made in `folder`, or nothing. A disk that is full is another matter: empty files have room there.
std::string cannot_write(const std::string& folder) {
  return ::access(folder.c_str(), W_OK) == 0 ? std::string()
                                             : concat("cannot write to ", folder, ": ", std::strerror(errno));
}

// In the order of the shards. Waits for all of them, even after one has failed: the folder can be removed only when
// nobody writes there any more. Where this rank cannot write any more, the others cannot say that they failed, either.
std::vector<Note> wait_for_notes(const ShardPlace& place, const FinishOptions& options) {
  const auto in = [](double seconds) { return Clock::now() + std::chrono::duration<double>(seconds); };
  auto give_up = in(options.wait_seconds);
  std::string hurried;
  const auto hurry = [&](const std::string& why) {
    hurried = concat(" of ", options.hurried_seconds, " s, ", why);
    give_up = std::min(give_up, in(options.hurried_seconds));
  };
  std::vector<Note> notes;
  constexpr auto longest_pause = std::chrono::milliseconds(200);
  auto pause = std::chrono::milliseconds(1);
  while (static_cast<int>(notes.size()) < place.shards) {
    const std::string path = note_path(place, static_cast<int>(notes.size()));
    if (is_file(path)) {
      notes.push_back(read_note(path));
      continue;
    }
    if (hurried.empty() && options.hurry && options.hurry->load()) hurry("as the run ends");
    if (hurried.empty() && pause == longest_pause)
      if (const std::string error = cannot_write(place.part()); !error.empty()) hurry(error);
    if (Clock::now() >= give_up)
      throw Error(concat("shard ", notes.size() + 1, " of ", place.shards, " did not come within the time",
                         hurried.empty() ? concat(" of ", options.wait_seconds, " s") : hurried));
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
  }
  return notes;
}

struct Index {
  std::map<std::string, std::string> file_of;
  std::int64_t bytes = 0;
};

// From the files themselves: what was written can be opened again.
Index index_of(const ShardPlace& place, const std::string& kind) {
  Index index;
  for (int shard = 0; shard < place.shards; ++shard) {
    const std::string name = shard_file(kind, shard, place.shards);
    const SafetensorsFile file(join_path(place.part(), name));
    for (const auto& tensor : file.tensors()) {
      const auto [other, fresh] = index.file_of.emplace(tensor.name, name);
      ensure(fresh, "the tensor '", tensor.name, "' is in ", other->second, " and in ", name);
      index.bytes += tensor.bytes();
    }
  }
  return index;
}

void write_documents(const ShardPlace& place, const RunState& state, const FinishOptions& options,
                     std::map<std::string, FileSum> sums) {
  for (const std::string kind : {"model", "optimizer"}) {
    const Index index = index_of(place, kind);
    if (kind == "model")
      for (const auto& name : options.parameters)
        ensure(index.file_of.contains(name), "no rank has saved the parameter '", name, "'");
    const std::string name = kind + index_suffix;
    sums[name] = write_text(join_path(place.part(), name), index_text(index.file_of, index.bytes));
  }
  sums[run_state_file] = write_text(join_path(place.part(), run_state_file), to_json(state));
  write_text(join_path(place.part(), checksums_file), to_text(sums_json(sums)));
}

template <class Action>
bool succeeds(const Action& action) {
  try {
    action();
    return true;
  } catch (const Error&) {
    return false;
  }
}

void publish(const ShardPlace& place) {
  for (int shard = 0; shard < place.shards; ++shard) remove_file(note_path(place, shard));
  sync_folder(place.part());
  replace_folder(place.part(), place.folder());
}

}  // namespace

std::string ShardPlace::folder() const { return join_path(dir, checkpoint_name(step)); }
std::string ShardPlace::part() const {
  return join_path(dir, concat(".", checkpoint_name(step), attempt.empty() ? "" : "-", attempt, part_suffix));
}

std::string to_json(const RunState& s) {
  ensure(s.plan.empty() || OrderedJson::accept(s.plan), "the plan is not JSON: ", s.plan);
  return to_text(
      {{"format", format_version},
       {"step", s.step},
       {"epoch", s.epoch},
       {"position", s.position},
       {"seed", s.seed},
       {"global_batch", s.global_batch},
       {"model", s.model},
       {"dtype", s.dtype},
       {"optimizer", s.optimizer},
       {"version", s.version},
       {"settings", s.settings},
       {"plan", s.plan.empty() ? OrderedJson(nullptr) : OrderedJson::parse(s.plan)},
       {"description", s.description ? OrderedJson::parse(to_json(*s.description, true)) : OrderedJson(nullptr)}});
}

RunState parse_run_state(std::string_view text, const std::string& file) {
  const auto json = parse_object(text, file);
  const auto number = [&](const char* name) {
    const auto value = field<std::int64_t>(json, name, file);
    if (value < 0) throw Error(concat(file, ": the field \"", name, "\" is ", value, ", less than 0"));
    return value;
  };
  const auto words = [&](const char* name) { return field<std::string>(json, name, file); };
  if (const auto format = number("format"); format != format_version)
    throw Error(concat(file, " is of format ", format, ", and this Tessera reads format ", format_version));
  RunState state{.step = number("step"),
                 .epoch = number("epoch"),
                 .position = number("position"),
                 .seed = field<std::uint64_t>(json, "seed", file),
                 .global_batch = number("global_batch"),
                 .model = words("model"),
                 .dtype = words("dtype"),
                 .optimizer = words("optimizer"),
                 .version = words("version")};
  if (const auto settings = json.find("settings"); settings != json.end() && settings->is_object())
    for (const auto& [name, value] : settings->items())
      if (value.is_string()) state.settings[name] = value.get<std::string>();
  if (const auto description = json.find("description"); description != json.end() && !description->is_null())
    state.description = parse_description(description->dump(), concat(file, ": \"description\""));
  return state;
}

void write_shard(const ShardPlace& place, const ShardContents& contents) {
  ensure(place.shard >= 0 && place.shard < place.shards, "shard ", place.shard, " of ", place.shards);
  make_folders(place.part());
  try {
    write_shard_files(place, contents);
  } catch (const std::exception& error) {
    // Room first, so that the note has a place even on a full disk. An empty file takes none.
    for (const char* kind : {"model", "optimizer"})
      succeeds([&] { remove_file(join_path(place.part(), shard_file(kind, place.shard, place.shards))); });
    const std::string note = note_path(place, place.shard);
    if (!succeeds([&] { write_note(note, {.files = {}, .error = error.what()}); }))
      succeeds([&] { write_text(note, ""); });
    throw;
  }
}

bool has_reported(const ShardPlace& place) { return is_file(note_path(place, place.shard)); }

void finish_checkpoint(const ShardPlace& place, const RunState& state, const FinishOptions& options) {
  bool nobody_writes = false;
  try {
    const auto notes = wait_for_notes(place, options);
    nobody_writes = true;
    std::map<std::string, FileSum> sums;
    for (std::size_t i = 0; i < notes.size(); ++i) {
      if (!notes[i].error.empty())
        throw Error(concat("shard ", i + 1, " of ", place.shards, " failed: ", notes[i].error));
      sums.insert(notes[i].files.begin(), notes[i].files.end());
    }
    write_documents(place, state, options, std::move(sums));
    publish(place);
  } catch (const Error& error) {
    if (nobody_writes) succeeds([&] { remove_folder(place.part()); });  // else remove_leftovers() will
    throw Error(concat("no checkpoint of step ", place.step, " in ", place.dir, ": ", error.what()));
  }
  if (options.keep > 0) prune(place.dir, options.keep, place.step);
}

CheckpointReader::CheckpointReader(const std::string& folder) : folder_(folder) {
  check_sizes(folder);
  const std::string path = join_path(folder, run_state_file);
  state_ = parse_run_state(read_text(path), path);
  model_ = TensorStore::of_index(join_path(folder, std::string("model") + index_suffix));
  optimizer_ = TensorStore::of_index(join_path(folder, std::string("optimizer") + index_suffix));
}

void CheckpointReader::require_model(const std::vector<TensorSpec>& needed) const {
  const Differences differences = compare(model_, needed);
  if (!differences.none())
    throw UsageError(concat("the checkpoint ", folder_, " is of another network",
                            state_.model.empty() ? "" : concat(" (", state_.model, ")"),
                            "; use the flags that it was trained with, or --init-from\n", differences.str()));
}

void CheckpointReader::read(const std::string& name, const at::Tensor& into) const {
  if (model_.has(name)) return model_.read(name, into);
  if (optimizer_.has(name)) return optimizer_.read(name, into);
  throw Error(concat("the checkpoint ", folder_, " has no tensor '", name, "'"));
}

}  // namespace tessera
