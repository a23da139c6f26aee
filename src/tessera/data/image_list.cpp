#include "tessera/data/image_list.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/csv.h"
#include "tessera/data/decoders.h"
#include "tessera/data/files.h"

namespace tessera {
namespace {

bool is_image_name(const std::string& name) {
  static const std::set<std::string> endings{"avif", "bif",     "bmp",  "gif",  "heic", "j2k", "jp2", "jpeg",
                                             "jpg",  "mrxs",    "ndpi", "npy",  "pgm",  "png", "ppm", "scn",
                                             "svs",  "svslide", "tif",  "tiff", "v",    "vms", "vmu", "webp"};
  return endings.contains(files::ending_of(name));
}

std::optional<std::int64_t> as_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// An image as the layout names it, before its label is looked up.
struct Entry {
  std::string where;  // for messages
  std::string path, label, mask;
  int repeat = 1;
  bool known = false;                // in a list with a field for labels, if only that there is none
  std::optional<std::int64_t> item;  // the one of several images of the file
  std::optional<std::int64_t> mask_item = std::nullopt;
};

/// "a; b" is two labels.
std::vector<std::string> parts_of(const std::string& label) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= label.size();) {
    const std::size_t end = std::min(label.find(';', begin), label.size());
    std::size_t first = begin, last = end;
    while (first < last && label[first] == ' ') ++first;
    while (last > first && label[last - 1] == ' ') --last;
    if (first < last) out.push_back(label.substr(first, last - first));
    begin = end + 1;
  }
  return out;
}

class Listing {
 public:
  explicit Listing(const ImageListOptions& options) : options_(options), way_out_(concat("; see ", options.flag)) {}

  ImageList list() {
    const std::string& path = options_.path;
    if (files::is_file(path) && is_image_name(path)) {
      require(options_.labels_optional, "'", path, "' is one image, without a label: give a folder of images or a CSV ",
              "of path,label", way_out_);
      list_.source = path;
      add({concat("'", path, "'"), path, "", ""});
    } else if (files::is_file(path)) {
      take_csv(path, path);
    } else {
      require(files::is_folder(path), "'", path, "' does not exist: give a folder of images or a CSV of path,label",
              way_out_);
      if (files::is_file(files::path_in(path, "train.csv")))
        take_csv(files::path_in(path, options_.split == Split::train ? "train.csv" : "val.csv"),
                 files::path_in(path, "train.csv"));
      else
        take_folder(split_folder());
    }
    number_labels();
    require(!list_.files.empty() || !problems_.empty(), "there are no images in '", path, "'", way_out_);
    throw_problems();
    return std::move(list_);
  }

 private:
  // ---- CSV

  struct Columns {
    std::optional<std::size_t> path = 0, label = 1, mask, repeat, index;
    std::size_t first_row = 0;
  };

  static Columns columns_of(const std::vector<CsvRow>& rows) {
    if (rows.empty()) return {};
    const auto& names = rows.front().fields;
    const auto find = [&](const char* name) -> std::optional<std::size_t> {
      const auto at = std::find(names.begin(), names.end(), name);
      if (at == names.end()) return std::nullopt;
      return static_cast<std::size_t>(at - names.begin());
    };
    if (!find("path")) return {};  // no header: path,label
    return {find("path"), find("label"), find("mask"), find("repeat"), find("index"), 1};
  }

  std::vector<Entry> csv_entries(const std::string& file) {
    const auto rows = parse_csv(files::text_of(file), file);
    const Columns columns = columns_of(rows);
    require(!options_.masks || columns.mask, "'", file,
            "' has no column 'mask'; its first line must name the columns, ", "for example path,mask", way_out_);
    require(options_.masks || options_.labels_optional || columns.label, "'", file, "' has no column 'label'",
            way_out_);
    std::vector<Entry> entries;
    for (std::size_t i = columns.first_row; i < rows.size(); ++i) {
      const auto& fields = rows[i].fields;
      const auto field = [&](const std::optional<std::size_t>& at) {
        return at && *at < fields.size() ? fields[*at] : std::string();
      };
      Entry entry{concat("'", file, "' line ", rows[i].line), field(columns.path), field(columns.label), ""};
      if (entry.path.empty()) {
        problems_.add(entry.where, ": no path");
        continue;
      }
      entry.known = columns.label && *columns.label < fields.size();
      problems_.check(
          !columns.label || !entry.label.empty() || options_.labels_optional || (options_.several && entry.known),
          entry.where, ": no label");
      entry.path = files::path_in(files::folder_of(file), entry.path);
      if (options_.masks) {
        entry.mask = field(columns.mask);
        if (entry.mask.empty())
          problems_.add(entry.where, ": no mask");
        else
          entry.mask = files::path_in(files::folder_of(file), entry.mask);
      }
      if (const std::string text = field(columns.repeat); !text.empty()) {
        constexpr std::int64_t most = 1000;
        const auto number = as_number(text);
        problems_.check(number && 0 <= *number && *number <= most, entry.where, ": repeat '", text,
                        "' is not a number from 0 to ", most);
        entry.repeat = static_cast<int>(std::clamp<std::int64_t>(number.value_or(1), 0, most));
      }
      if (const std::string text = field(columns.index); !text.empty()) {
        entry.item = as_number(text);
        problems_.check(entry.item && *entry.item >= 0, entry.where, ": index '", text, "' is not a number from 0 on");
      }
      if (!columns.label && !options_.labels_optional) entry.label = "0";
      entries.push_back(std::move(entry));
    }
    return entries;
  }

  void take_csv(const std::string& file, const std::string& train_file) {
    require(files::is_file(file), "'", file, "' does not exist", way_out_);
    list_.source = file;
    entries_ = csv_entries(file);
    for (const Entry& entry : entries_)
      for (const std::string& path : {entry.path, entry.mask})
        problems_.check(path.empty() || files::is_file(path), entry.where, ": '", path, "' does not exist");
    for (Entry& entry : std::exchange(entries_, {})) add(std::move(entry));
    if (!options_.class_names.empty()) return;
    std::set<std::string> names;
    bool all_numbers = true;
    for (const Entry& entry : file == train_file ? entries_ : csv_entries(train_file))
      for (const std::string& label : labels_of(entry)) {
        names.insert(label);
        all_numbers = all_numbers && as_number(label);
      }
    if (!all_numbers) names_.assign(names.begin(), names.end());
  }

  // ---- folders

  std::string train_folder() const {
    const std::string inner = files::path_in(options_.path, "train");
    return files::is_folder(inner) ? inner : options_.path;
  }

  std::string split_folder() const {
    if (options_.split == Split::train) return train_folder();
    for (const char* name : {"val", "test"})
      if (files::is_folder(files::path_in(options_.path, name))) return files::path_in(options_.path, name);
    throw UsageError(concat("'", options_.path, "' has no folder val or test; see --datapath and --val-datapath"));
  }

  static std::vector<std::string> class_folders(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& name : files::names_in(folder))
      if (name != "masks" && files::is_folder(files::path_in(folder, name))) names.push_back(name);
    return names;
  }

  void take_folder(const std::string& folder) {
    list_.source = folder;
    const std::string masks = files::path_in(folder, "masks");
    require(!options_.masks || files::is_folder(masks) || files::is_file(masks + ".npy"), "there is no folder '", masks,
            "' with a mask for each image", way_out_);
    if (files::is_folder(masks) && files::is_folder(files::path_in(folder, "images"))) {
      take_images(files::path_in(folder, "images"), masks, "0");
      return;
    }
    if (const std::string images = files::path_in(folder, "images.npy"); files::is_file(images))
      return take_arrays(folder, images);
    if (options_.class_names.empty()) names_ = class_folders(train_folder());
    const auto folders = class_folders(folder);
    if (folders.empty() && options_.labels_optional) return take_images(folder, masks, "");
    require(!folders.empty(), "'", folder, "' holds no folders: expected one for each class", way_out_);
    for (const auto& name : folders) take_images(files::path_in(folder, name), files::path_in(masks, name), name);
  }

  void take_images(const std::string& folder, const std::string& masks, const std::string& label) {
    std::map<std::string, std::string> mask_of;  // by stem: an image is .jpg where its mask is .png
    if (options_.masks && files::is_folder(masks))
      for (const auto& name : files::names_in(masks))
        if (is_image_name(name)) mask_of.emplace(files::stem_of(name), files::path_in(masks, name));
    const std::size_t before = entries_.size();
    for (const auto& name : files::names_in(folder)) {
      if (!is_image_name(name)) continue;
      Entry entry{concat("'", files::path_in(folder, name), "'"), files::path_in(folder, name), label, ""};
      if (options_.masks) {
        const auto mask = mask_of.find(files::stem_of(name));
        problems_.check(mask != mask_of.end(), entry.where, " has no mask in '", masks, "'");
        if (mask != mask_of.end()) entry.mask = mask->second;
      }
      add(std::move(entry));
    }
    problems_.check(entries_.size() > before, "there are no images in '", folder, "'");
  }

  // ---- arrays: a file may have several images

  // One that cannot be read counts as one image; whoever reads it says what is wrong.
  std::int64_t count_of(const std::string& path, bool mask) {
    if (path.empty() || files::ending_of(path) != "npy" || !files::is_file(path)) return 1;
    const auto [found, fresh] = counts_.try_emplace({path, mask}, 1);
    try {
      if (fresh) found->second = images_in(path, mask);
    } catch (const Error&) {
    }
    return found->second;
  }

  // Of a file with several images the one that is meant, or all of them.
  void add(Entry entry) {
    const std::int64_t images = count_of(entry.path, false), masks = count_of(entry.mask, true);
    problems_.check(!entry.item || *entry.item < images, entry.where, ": '", entry.path, "' has ",
                    counted(images, "image"), ", counted from 0, and no image ", entry.item.value_or(0));
    problems_.check(entry.mask.empty() || masks == images || (masks == 1 && entry.item), entry.where, ": '", entry.path,
                    "' has ", counted(images, "image"), ", and '", entry.mask, "' ", counted(masks, "mask"));
    if (images == 1) entry.item.reset();
    if (images == 1 || entry.item) {
      if (masks > 1) entry.mask_item = entry.item;
      entries_.push_back(std::move(entry));
      return;
    }
    for (std::int64_t i = 0; i < images; ++i) {
      entries_.push_back(entry);
      entries_.back().item = i;
      if (masks > 1) entries_.back().mask_item = i;
    }
  }

  // images.npy beside labels.npy or masks.npy.
  void take_arrays(const std::string& folder, const std::string& images) {
    list_.source = images;
    Entry entry{concat("'", images, "'"), images, "", ""};
    if (options_.masks) {
      entry.label = "0";
      entry.mask = files::path_in(folder, "masks.npy");
      require(files::is_file(entry.mask), "there is no '", entry.mask, "' with a mask for each image of '", images, "'",
              way_out_);
      return add(std::move(entry));
    }
    add(std::move(entry));
    const std::string labels = files::path_in(folder, "labels.npy");
    if (!files::is_file(labels) && options_.labels_optional) return;
    require(files::is_file(labels), "there is no '", labels, "' with a label for each image of '", images, "'",
            way_out_);
    take_labels(labels);
  }

  void take_labels(const std::string& path) {
    const auto images = static_cast<std::int64_t>(entries_.size());
    npy::Integers labels;
    try {
      labels = npy::read_integers(path);
    } catch (const Error& error) {
      throw UsageError(concat(error.what(), way_out_));
    }
    // Of several labels each, a column for every class.
    const bool columns = labels.shape.size() == 2 && options_.several;
    require((labels.shape.size() == 1 || columns) && labels.shape[0] == images, "'", path, "' has ",
            labels.values.size(), " labels, and '", entries_.front().path, "' ", counted(images, "image"), way_out_);
    const auto width = columns ? static_cast<std::size_t>(labels.shape[1]) : 1;
    const auto name_of = [&](std::int64_t label) {
      return 0 <= label && label < std::ssize(options_.class_names)
                 ? options_.class_names[static_cast<std::size_t>(label)]
                 : std::to_string(label);
    };
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].known = true;
      if (!columns) entries_[i].label = name_of(labels.values[i]);
      for (std::size_t k = 0; columns && k < width; ++k)
        if (labels.values[i * width + k] != 0)
          entries_[i].label += concat(entries_[i].label.empty() ? "" : ";", name_of(static_cast<std::int64_t>(k)));
    }
  }

  // ---- labels

  std::vector<std::string> labels_of(const Entry& entry) const {
    if (options_.only_files) return {};
    if (options_.several) return parts_of(entry.label);
    return entry.label.empty() ? std::vector<std::string>() : std::vector{entry.label};
  }

  void number_labels() {
    list_.class_names = options_.class_names.empty() ? names_ : options_.class_names;
    std::map<std::string, std::int64_t> numbers;
    for (const auto& name : list_.class_names) numbers.emplace(name, static_cast<std::int64_t>(numbers.size()));
    std::int64_t classes = std::max<std::int64_t>(1, static_cast<std::int64_t>(numbers.size()));
    // One line, not one for each image of a class too many.
    const bool too_many = options_.classes > 0 && classes > options_.classes;
    problems_.check(!too_many, "'", list_.source, "' has ", counted(classes, "class"), " (", names_shown(), "), and ",
                    "--num-classes is ", options_.classes, "; use --num-classes ", classes, ", or leave it out");
    bool said_several = false;
    for (const Entry& entry : entries_) {
      ImageFile file{.path = entry.path,
                     .label = -1,
                     .mask = entry.mask,
                     .repeat = entry.repeat,
                     .item = entry.item,
                     .mask_item = entry.mask_item};
      if (options_.several && (entry.known || !entry.label.empty())) file.labels.emplace();
      bool good = options_.several || options_.labels_optional || !entry.label.empty();  // or already a problem
      for (const std::string& label : labels_of(entry)) {
        const auto number = numbers.empty() ? as_number(label) : [&]() -> std::optional<std::int64_t> {
          const auto found = numbers.find(label);
          return found == numbers.end() ? std::nullopt : std::optional(found->second);
        }();
        if (!number || *number < 0 || *number >= INT32_MAX) {
          problems_.add(entry.where, ": label '", label, "' is ",
                        numbers.empty() ? "not a number from 0 on" : "not a class of the training set");
          good = false;
          continue;
        }
        // A class may be called so, unless its parts are classes, too.
        const auto parts = parts_of(label);
        const bool several = !options_.several && entry.known && parts.size() > 1 &&
                             std::ranges::any_of(parts, [&](const auto& part) { return numbers.contains(part); });
        if (several && !said_several) {
          problems_.add(entry.where, ": '", label, "' is several labels; use --loss binary");
          said_several = true;  // once will do
        }
        classes = std::max(classes, *number + 1);
        problems_.check(too_many || options_.classes == 0 || *number < options_.classes, entry.where, ": label ", label,
                        numbers.empty() ? "" : concat(" (number ", *number, ")"), " does not fit ", options_.classes,
                        " classes; see --num-classes");
        if (file.label < 0) file.label = *number;
        if (file.labels && std::ranges::find(*file.labels, *number) == file.labels->end())
          file.labels->push_back(*number);
      }
      if (good) list_.files.push_back(std::move(file));
    }
    list_.classes = options_.classes > 0 ? options_.classes : static_cast<int>(classes);
  }

  std::string names_shown() const {
    constexpr std::size_t shown = 4;
    const auto& names = list_.class_names;
    std::vector<std::string> first(names.begin(),
                                   names.begin() + static_cast<std::ptrdiff_t>(std::min(shown, names.size())));
    if (names.size() > shown) first.emplace_back("...");
    return join(first, ", ");
  }

  void throw_problems() const {
    constexpr std::size_t shown = 10;
    const auto& all = problems_.list();
    if (all.size() <= shown) return problems_.throw_if_any();
    std::vector<std::string> first(all.begin(), all.begin() + shown);
    first.push_back(concat("and ", all.size() - shown, " more problems with the files of '", options_.path, "'"));
    throw UsageError(first);
  }

  const ImageListOptions& options_;
  const std::string way_out_;
  std::vector<Entry> entries_;
  std::vector<std::string> names_;
  std::map<std::pair<std::string, bool>, std::int64_t> counts_;
  Problems problems_;
  ImageList list_;
};

}  // namespace

ImageList list_images(const ImageListOptions& options) { return Listing(options).list(); }

}  // namespace tessera
