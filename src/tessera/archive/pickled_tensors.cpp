#include "tessera/archive/pickled_tensors.h"

#include <deque>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// What stands on the stack. A pickle may name a thing twice, and put it into itself.
struct Pickled {
  enum class Kind { mark, nothing, number, text, sequence, dictionary, name, storage, tensor };
  Kind kind = Kind::nothing;
  std::int64_t number = 0;
  std::string text;             ///< text, name ("module name"), the storage's type
  std::vector<Pickled*> items;  ///< of a sequence; of a dictionary keys and values in turn
  PickledTensor tensor;         ///< of a storage its type and number only
};
using PickledPtr = Pickled*;

[[noreturn]] void damaged() { throw Error("its weights are damaged, or not those of torch.save"); }

PickledPtr item(PickledPtr sequence, std::size_t i) {
  if (sequence->kind != Pickled::Kind::sequence || i >= sequence->items.size()) damaged();
  return sequence->items[i];
}
std::vector<std::int64_t> numbers(PickledPtr sequence) {
  if (sequence->kind != Pickled::Kind::sequence) damaged();
  std::vector<std::int64_t> out;
  for (const PickledPtr each : sequence->items) {
    if (each->kind != Pickled::Kind::number) damaged();
    out.push_back(each->number);
  }
  return out;
}

// https://github.com/python/cpython/blob/main/Lib/pickletools.py
class Unpickler {
 public:
  explicit Unpickler(std::string_view bytes) : bytes_(bytes) {}

  PickledPtr run() {
    while (true) {
      const auto code = static_cast<std::uint8_t>(take(1)[0]);
      if (code == '.') return pop();
      follow(code);
    }
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) damaged();
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }
  std::uint64_t little_endian(int count) {
    std::uint64_t value = 0;
    const std::string_view digits = take(static_cast<std::uint64_t>(count));
    for (std::size_t i = digits.size(); i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(digits[i]);
    return value;
  }
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) damaged();
    const std::string_view words = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return words;
  }

  PickledPtr make(Pickled::Kind kind) { return &all_.emplace_back(Pickled{.kind = kind}); }
  PickledPtr number(std::int64_t value) {
    const PickledPtr thing = make(Pickled::Kind::number);
    thing->number = value;
    return thing;
  }
  PickledPtr text(std::string_view words, Pickled::Kind kind = Pickled::Kind::text) {
    const PickledPtr thing = make(kind);
    thing->text = words;
    return thing;
  }

  void push(PickledPtr thing) { stack_.push_back(thing); }
  PickledPtr pop() {
    if (stack_.empty()) damaged();
    const PickledPtr top = stack_.back();
    stack_.pop_back();
    return top;
  }
  PickledPtr top() const {
    if (stack_.empty()) damaged();
    return stack_.back();
  }
  std::vector<PickledPtr> since_mark() {
    std::size_t mark = stack_.size();
    while (mark > 0 && stack_[mark - 1]->kind != Pickled::Kind::mark) --mark;
    if (mark == 0) damaged();
    std::vector<PickledPtr> out(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return out;
  }
  void push_tuple(std::size_t count) {
    const PickledPtr tuple = make(Pickled::Kind::sequence);
    tuple->items.resize(count);
    while (count-- > 0) tuple->items[count] = pop();
    push(tuple);
  }
  void remember(std::uint64_t number) { memo_[number] = top(); }
  void recall(std::uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) damaged();
    push(found->second);
  }
  void add_to(Pickled::Kind kind, const std::vector<PickledPtr>& more) {
    if (top()->kind != kind || (kind == Pickled::Kind::dictionary && more.size() % 2 != 0)) damaged();
    top()->items.insert(top()->items.end(), more.begin(), more.end());
  }

  void follow(std::uint8_t code) {
    switch (code) {
      case 0x80:  // the protocol
        take(1);
        return;
      case 0x95:  // a frame
        take(8);
        return;
      case '(':
        return push(make(Pickled::Kind::mark));
      case 'N':
        return push(make(Pickled::Kind::nothing));
      case 0x88:
      case 0x89:
        return push(number(code == 0x88));
      case 'K':
        return push(number(static_cast<std::int64_t>(little_endian(1))));
      case 'M':
        return push(number(static_cast<std::int64_t>(little_endian(2))));
      case 'J':
        return push(number(static_cast<std::int32_t>(little_endian(4))));
      case 0x8a: {  // a number of up to 255 bytes; larger ones than these are no sizes
        const auto count = static_cast<int>(little_endian(1));
        if (count > 8) damaged();
        const std::uint64_t value = little_endian(count);
        const int unused = 64 - 8 * count;
        return push(number(count == 0 ? 0 : static_cast<std::int64_t>(value << unused) >> unused));
      }
      case 'G':  // a float: not for us
        take(8);
        return push(make(Pickled::Kind::nothing));
      case 'X':
        return push(text(take(little_endian(4))));
      case 0x8c:
        return push(text(take(little_endian(1))));
      case '}':
        return push(make(Pickled::Kind::dictionary));
      case ']':
      case ')':
        return push(make(Pickled::Kind::sequence));
      case 't': {
        const PickledPtr tuple = make(Pickled::Kind::sequence);
        tuple->items = since_mark();
        return push(tuple);
      }
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(static_cast<std::size_t>(code - 0x84));
      case 'a':
        return add_to(Pickled::Kind::sequence, {pop()});
      case 'e':
        return add_to(Pickled::Kind::sequence, since_mark());
      case 's': {
        const PickledPtr value = pop(), key = pop();
        return add_to(Pickled::Kind::dictionary, {key, value});
      }
      case 'u':
        return add_to(Pickled::Kind::dictionary, since_mark());
      case 'q':
        return remember(little_endian(1));
      case 'r':
        return remember(little_endian(4));
      case 0x94:
        return remember(memo_.size());
      case 'h':
        return recall(little_endian(1));
      case 'j':
        return recall(little_endian(4));
      case 'c': {
        const std::string_view module = line(), name = line();
        return push(text(concat(module, " ", name), Pickled::Kind::name));
      }
      case 0x93: {
        const PickledPtr name = pop(), module = pop();
        return push(text(concat(module->text, " ", name->text), Pickled::Kind::name));
      }
      case 'Q':
        return push(storage(pop()));
      case 'R': {
        const PickledPtr arguments = pop(), function = pop();
        return push(made_by(function, arguments));
      }
      case 'b':  // what a dictionary knows beside its contents
        pop();
        return;
      default:
        throw Error(concat("its weights hold what is neither tensor nor dictionary (pickle code ", int{code}, ")"));
    }
  }

  // ('storage', type, number, device, elements)
  PickledPtr storage(PickledPtr id) {
    if (item(id, 0)->text != "storage" || item(id, 1)->kind != Pickled::Kind::name) damaged();
    const PickledPtr out = make(Pickled::Kind::storage);
    const std::string& type = item(id, 1)->text;
    out->tensor.type = type.substr(type.rfind(' ') + 1);
    out->tensor.storage = item(id, 2)->text;
    return out;
  }

  PickledPtr made_by(PickledPtr function, PickledPtr arguments) {
    if (function->kind != Pickled::Kind::name) damaged();
    if (function->text == "collections OrderedDict") return make(Pickled::Kind::dictionary);
    if (function->text == "torch._utils _rebuild_parameter") {
      if (item(arguments, 0)->kind != Pickled::Kind::tensor || item(arguments, 1)->kind != Pickled::Kind::number)
        damaged();
      const PickledPtr parameter = make(Pickled::Kind::tensor);
      parameter->tensor = item(arguments, 0)->tensor;
      parameter->tensor.requires_grad = item(arguments, 1)->number != 0;
      return parameter;
    }
    if (function->text != "torch._utils _rebuild_tensor_v2")
      throw Error(concat("its weights hold a '", function->text, "'"));
    if (item(arguments, 0)->kind != Pickled::Kind::storage || item(arguments, 1)->kind != Pickled::Kind::number)
      damaged();
    const PickledPtr out = make(Pickled::Kind::tensor);
    out->tensor = item(arguments, 0)->tensor;
    out->tensor.offset = item(arguments, 1)->number;
    out->tensor.sizes = numbers(item(arguments, 2));
    out->tensor.strides = numbers(item(arguments, 3));
    return out;
  }

  const std::string_view bytes_;
  std::size_t at_ = 0;
  std::deque<Pickled> all_;
  std::vector<PickledPtr> stack_;
  std::map<std::uint64_t, PickledPtr> memo_;
};

}  // namespace

bool fits(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides, std::int64_t offset,
          std::int64_t elements) {
  if (sizes.size() != strides.size() || offset < 0) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] < 0 || strides[i] < 0) return false;
  for (const std::int64_t size : sizes)
    if (size == 0) return offset <= elements;
  // How far the last number may still lie from here; a step at a time, so that nothing overflows.
  std::int64_t room = elements - 1 - offset;
  if (room < 0) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] > 0 && sizes[i] - 1 > room / strides[i]) return false;
    room -= (sizes[i] - 1) * strides[i];
  }
  return true;
}

std::map<std::string, PickledTensor> read_pickled_tensors(std::string_view pickle) {
  Unpickler unpickler(pickle);
  const PickledPtr all = unpickler.run();
  if (all->kind != Pickled::Kind::dictionary) damaged();
  std::map<std::string, PickledTensor> out;
  for (std::size_t i = 0; i < all->items.size(); i += 2) {
    const PickledPtr key = all->items[i], value = all->items[i + 1];
    if (key->kind != Pickled::Kind::text || value->kind != Pickled::Kind::tensor)
      throw Error("its weights are not tensors by name");
    out[key->text] = value->tensor;
  }
  return out;
}

}  // namespace tessera
