#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "core/error.h"
#include "model/import/torch_file.h"

namespace kintsugi {
namespace {

using Kind = PickleValue::Kind;

// What files of weights name. All of it is inert here; the list exists so that a file that would
// execute something elsewhere is noticed.
constexpr std::array kGlobals = {
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch._tensor._rebuild_from_type_v2", "torch.nn.parameter.Parameter", "torch.Tensor",
    "torch.Size", "torch.device", "torch.serialization._get_layout", "torch.ByteStorage",
    "torch.CharStorage", "torch.ShortStorage", "torch.IntStorage", "torch.LongStorage",
    "torch.HalfStorage", "torch.BFloat16Storage", "torch.FloatStorage", "torch.DoubleStorage",
    "torch.BoolStorage", "torch.ComplexFloatStorage", "torch.ComplexDoubleStorage", "torch.float64",
    "torch.float32", "torch.float16", "torch.bfloat16", "torch.int64", "torch.int32", "torch.int16",
    "torch.int8", "torch.uint8", "torch.uint16", "torch.uint32", "torch.uint64", "torch.bool",
    "torch.complex64", "torch.complex128", "torch.float8_e4m3fn", "torch.float8_e5m2",
    "torch.strided", "torch.contiguous_format", "torch.preserve_format",
    // functions in the arguments of a run, which are not called
    "torch._C._nn.gelu", "torch.nn.functional.gelu", "torch.nn.functional.silu",
    "torch.nn.functional.relu", "torch.nn.functional.sigmoid", "torch.nn.init.normal_",
    "torch.nn.init.zeros_", "torch.nn.init.xavier_uniform_",
    // Python
    "collections.OrderedDict", "collections.defaultdict", "collections.deque", "argparse.Namespace",
    "types.SimpleNamespace", "pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath",
    "pathlib._local.PosixPath", "datetime.datetime", "datetime.timedelta", "signal.Signals",
    "_io.BytesIO", "io.BytesIO", "_codecs.encode", "copyreg._reconstructor",
    "copy_reg._reconstructor"};
// In builtins, which Python 2 calls __builtin__. Python 3.11 writes a member of an enumeration as
// getattr(class, name).
constexpr std::array kBuiltins = {"set",     "frozenset", "list",  "dict", "tuple", "int",
                                  "float",   "getattr",   "bool",  "str",  "bytes", "bytearray",
                                  "complex", "object",    "slice", "range"};
constexpr std::array kNumpy = {"_core.multiarray._reconstruct",
                               "_core.multiarray.scalar",
                               "_core.numeric._frombuffer",
                               "core.multiarray._reconstruct",
                               "core.multiarray.scalar",
                               "core.numeric._frombuffer",
                               "ndarray",
                               "dtype"};
// Everything in these modules.
constexpr std::array kModules = {"signal.SIG",
                                 "torch.storage.",
                                 "torch.distributed.checkpoint.",
                                 "torch.distributed._shard.",
                                 "torch.distributed.tensor.",
                                 "torch.distributed._tensor.",
                                 "torch.distributed.device_mesh.",
                                 "megatron."};

bool in(const auto& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

bool is_known_global(std::string_view name) {
  if (in(kGlobals, name)) return true;
  const auto below = [&](std::string_view module, const auto& list) {
    return name.starts_with(module) && in(list, name.substr(module.size()));
  };
  if (below("builtins.", kBuiltins) || below("__builtin__.", kBuiltins) || below("numpy.", kNumpy))
    return true;
  return std::ranges::any_of(kModules, [&](std::string_view m) { return name.starts_with(m); });
}

}  // namespace

bool PickleValue::is_object(std::string_view name) const {
  if (kind != Kind::Object || !callee || callee->kind != Kind::Global) return false;
  const std::string_view own = callee->text;
  return own == name || (own.size() > name.size() && own.ends_with(name) &&
                         own[own.size() - name.size() - 1] == '.');
}

const PickleValue* PickleValue::find(std::string_view key) const {
  const auto among = [&](const Pairs& all) -> const PickleValue* {
    const PickleValue* found = nullptr;
    for (const auto& [name, value] : all)
      if (name->kind == Kind::Text && name->text == key) found = value;
    return found;
  };
  if (const PickleValue* const found = among(pairs)) return found;
  if (!state) return nullptr;
  if (state->kind == Kind::Dict) return among(state->pairs);
  // Of a class with __slots__: the state is (None or attributes, slots).
  for (const PickleValue* const part : state->items)
    if (part->kind == Kind::Dict)
      if (const PickleValue* const found = among(part->pairs)) return found;
  return nullptr;
}

// The stack machine. Opcodes that only protocols 0 and 1 have are refused.
class PickleReader {
 public:
  explicit PickleReader(Pickle& pickle) : pickle_(pickle), bytes_(pickle.bytes_) {
    none_ = make({.kind = Kind::None});
    for (const int i : {0, 1}) booleans_[i] = make({.kind = Kind::Bool, .integer = i});
  }

  const PickleValue* read() {
    if (number(2) >> 8 > 5 || bytes_[0] != '\x80' || bytes_[1] < 2)
      refuse("is no pickle of protocol 2 to 5");
    for (;;) {
      const char opcode = take(1)[0];
      if (opcode == '.') return pop();
      if (!scalar(opcode) && !container(opcode) && !memory(opcode) && !object(opcode))
        refuse("has the opcode {:#04x}, which protocols 2 to 5 do not need",
               static_cast<unsigned char>(opcode));
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: the pickle {} (byte {})", pickle_.source_,
               fmt::format(format, std::forward<Args>(args)...), at_);
  }

  // ---- bytes

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse("ends too early");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  // Little-endian, without sign.
  std::uint64_t number(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view digits = take(count);
    for (std::size_t i = 0; i < count; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
    return value;
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) refuse("ends too early");
    const std::string_view text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  // ---- stack

  PickleValue* make(PickleValue value) { return &pickle_.values_.emplace_back(std::move(value)); }
  void push(PickleValue* value) { stack_.push_back(value); }
  void push(PickleValue value) { push(make(std::move(value))); }
  PickleValue* pop() {
    if (stack_.empty() || stack_.back()->kind == Kind::Mark)
      refuse("takes a value that is not there");
    PickleValue* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    PickleValue* const value = pop();
    stack_.push_back(value);
    return *value;
  }
  // The values above the last mark.
  std::vector<const PickleValue*> above_mark() {
    std::size_t first = stack_.size();
    while (first > 0 && stack_[first - 1]->kind != Kind::Mark) --first;
    if (first == 0) refuse("has no mark");
    std::vector<const PickleValue*> values(stack_.begin() + static_cast<std::ptrdiff_t>(first),
                                           stack_.end());
    stack_.resize(first - 1);
    return values;
  }
  std::vector<const PickleValue*> popped(std::size_t count) {
    std::vector<const PickleValue*> values(count);
    for (std::size_t i = count; i-- > 0;) values[i] = pop();
    return values;
  }

  // ---- opcodes

  void push_integer(std::uint64_t value, unsigned bytes) {
    const unsigned shift = 64 - 8 * bytes;  // extends the sign
    push({.kind = Kind::Integer,
          .integer = bytes == 0 ? 0 : static_cast<std::int64_t>(value << shift) >> shift});
  }
  void push_long(std::uint64_t count) {
    if (count > 8) return push({.kind = Kind::Bytes, .text = take(count)});
    push_integer(number(count), static_cast<unsigned>(count));
  }
  void push_text(Kind kind, std::uint64_t count) { push({.kind = kind, .text = take(count)}); }

  bool scalar(char opcode) {
    switch (opcode) {
      case '\x80':  // PROTO
        return take(1), true;
      case '\x95':  // FRAME
        return take(8), true;
      case 'N':
        return push(none_), true;
      case '\x88':
        return push(booleans_[1]), true;
      case '\x89':
        return push(booleans_[0]), true;
      case 'K':  // BININT1, 2: without a sign
        return push({.kind = Kind::Integer, .integer = static_cast<std::int64_t>(number(1))}), true;
      case 'M':
        return push({.kind = Kind::Integer, .integer = static_cast<std::int64_t>(number(2))}), true;
      case 'J':
        return push_integer(number(4), 4), true;
      case '\x8a':  // LONG1, 4
        return push_long(number(1)), true;
      case '\x8b':
        return push_long(number(4)), true;
      case 'G': {
        const std::string_view digits = take(8);
        std::uint64_t bits = 0;
        for (const char digit : digits) bits = bits << 8 | static_cast<unsigned char>(digit);
        return push({.kind = Kind::Real, .real = std::bit_cast<double>(bits)}), true;
      }
      default:
        return text(opcode);
    }
  }

  bool text(char opcode) {
    switch (opcode) {
      case '\x8c':
        return push_text(Kind::Text, number(1)), true;
      case 'X':
        return push_text(Kind::Text, number(4)), true;
      case '\x8d':
        return push_text(Kind::Text, number(8)), true;
      case 'U':  // of Python 2
        return push_text(Kind::Text, number(1)), true;
      case 'T':
        return push_text(Kind::Text, number(4)), true;
      case 'C':
        return push_text(Kind::Bytes, number(1)), true;
      case 'B':
        return push_text(Kind::Bytes, number(4)), true;
      case '\x8e':
      case '\x96':  // bytes, bytearray
        return push_text(Kind::Bytes, number(8)), true;
      default:
        return false;
    }
  }

  void append(const std::vector<const PickleValue*>& values) {
    PickleValue& to = top();
    if (to.kind != Kind::List && to.kind != Kind::Object && to.kind != Kind::Tuple)
      refuse("appends to what is no list");
    to.items.insert(to.items.end(), values.begin(), values.end());
  }
  void put(PickleValue& to, const std::vector<const PickleValue*>& values) {
    if (to.kind != Kind::Dict && to.kind != Kind::Object) refuse("puts pairs into what is no dict");
    if (values.size() % 2 != 0) refuse("has a key without a value");
    for (std::size_t i = 0; i < values.size(); i += 2)
      to.pairs.emplace_back(values[i], values[i + 1]);
  }

  bool container(char opcode) {
    switch (opcode) {
      case '(':
        return push({.kind = Kind::Mark}), true;
      case ']':
        return push({.kind = Kind::List}), true;
      case 'l':
        return push({.kind = Kind::List, .items = above_mark()}), true;
      case 'a':
        return append(popped(1)), true;
      case 'e':
      case '\x90':  // ADDITEMS of a set
        return append(above_mark()), true;
      case ')':
      case '\x8f':  // EMPTY_SET
        return push({.kind = Kind::Tuple}), true;
      case 't':
      case '\x91':  // FROZENSET
        return push({.kind = Kind::Tuple, .items = above_mark()}), true;
      case '\x85':
      case '\x86':
      case '\x87':
        return push({.kind = Kind::Tuple,
                     .items = popped(static_cast<unsigned char>(opcode) - 0x84U)}),
               true;
      case '}':
        return push({.kind = Kind::Dict}), true;
      case 'd': {
        PickleValue dict{.kind = Kind::Dict};
        put(dict, above_mark());
        return push(std::move(dict)), true;
      }
      case 's': {
        const auto pair = popped(2);
        return put(top(), pair), true;
      }
      case 'u': {
        const auto pairs = above_mark();
        return put(top(), pairs), true;
      }
      default:
        return false;
    }
  }

  void remember(std::uint64_t index) { memo_[index] = &top(); }
  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("reads the memo {}, which is not set", index);
    push(found->second);
  }

  bool memory(char opcode) {
    switch (opcode) {
      case 'q':
        return remember(number(1)), true;
      case 'r':
        return remember(number(4)), true;
      case '\x94':
        return remember(memo_.size()), true;
      case 'h':
        return recall(number(1)), true;
      case 'j':
        return recall(number(4)), true;
      case '0':  // POP removes a mark, too
        if (stack_.empty()) refuse("takes a value that is not there");
        return stack_.pop_back(), true;
      case '1':
        return above_mark(), true;
      case '2':
        return push(&top()), true;
      default:
        return false;
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    std::string full = fmt::format("{}.{}", module, name);
    if (!is_known_global(full))
      user_error(
          "{}: the pickle has the global {}, which files of weights do not need: the file may be "
          "hostile; nothing in it was executed",
          pickle_.source_, full.substr(0, 200));
    push({.kind = Kind::Global, .text = pickle_.names_.emplace_back(std::move(full))});
  }

  void build_object(const PickleValue* callee, const PickleValue* arguments) {
    if (callee->kind != Kind::Global) refuse("calls what is no global");
    push({.kind = Kind::Object, .callee = callee, .arguments = arguments});
  }

  bool object(char opcode) {
    switch (opcode) {
      case 'c': {
        const std::string_view module = line();
        return push_global(module, line()), true;
      }
      case '\x93': {
        const auto names = popped(2);
        for (const PickleValue* const name : names)
          if (name->kind != Kind::Text) refuse("has a global whose name is no text");
        return push_global(names[0]->text, names[1]->text), true;
      }
      case 'R':
      case '\x81': {  // NEWOBJ
        const auto call = popped(2);
        return build_object(call[0], call[1]), true;
      }
      case '\x92': {  // NEWOBJ_EX: with keyword arguments
        const auto call = popped(3);
        build_object(call[0], call[1]);
        top().pairs = call[2]->pairs;
        return true;
      }
      case 'b': {
        const PickleValue* const state = pop();
        PickleValue& object = top();
        if (object.kind != Kind::Object || object.state) refuse("sets the state of no new object");
        return object.state = state, true;
      }
      case 'Q':
        return push({.kind = Kind::PersistentId, .arguments = pop()}), true;
      default:
        return false;
    }
  }

  Pickle& pickle_;
  std::string_view bytes_;
  std::uint64_t at_ = 0;
  std::vector<PickleValue*> stack_;
  std::unordered_map<std::uint64_t, PickleValue*> memo_;
  PickleValue* none_;
  std::array<PickleValue*, 2> booleans_;
};

Pickle::Pickle(std::string bytes, std::string source)
    : bytes_(std::move(bytes)), source_(std::move(source)) {
  root_ = PickleReader(*this).read();
}

}  // namespace kintsugi
