#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/dtype.h"

namespace kintsugi {

// Files that torch.save writes, read as data: nothing in them is imported, called or executed.
// Whatever is wrong in a file is a UserError that names `source`.

// ---- pickles

// A value of a pickle. It points into its Pickle, and values may contain each other in circles.
struct PickleValue {
  enum class Kind : std::uint8_t {
    None,
    Bool,
    Integer,
    Real,
    Text,
    Bytes,   // and integers of more than 8 bytes
    Global,  // text: "module.name"
    Tuple,   // and sets
    List,
    Dict,
    Object,        // the result of calling `callee` with `arguments`
    PersistentId,  // of a storage: arguments
    Mark           // only inside the parser
  };
  using Pairs = std::vector<std::pair<const PickleValue*, const PickleValue*>>;

  Kind kind = Kind::None;
  std::int64_t integer = 0;  // Bool, too
  double real = 0;
  std::string_view text = {};
  std::vector<const PickleValue*> items = {};  // Tuple, List, and what is appended to an Object
  Pairs pairs = {};                            // Dict, and what is put into an Object
  const PickleValue *callee = nullptr, *arguments = nullptr, *state = nullptr;

  bool is_global(std::string_view name) const { return kind == Kind::Global && text == name; }
  // An object of the class or function `name`, or of one whose name ends with it after a dot.
  bool is_object(std::string_view name) const;
  // The value of a text key in the pairs, or in the attributes of an object; null: there is none.
  const PickleValue* find(std::string_view key) const;
};

// Protocols 2 to 5. Memory is bounded by the length of the file, and no value is visited
// recursively. A global that files of weights do not need is refused.
class Pickle {
 public:
  Pickle(std::string bytes, std::string source);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }
  const std::string& source() const { return source_; }

 private:
  friend class PickleReader;
  std::string bytes_, source_;
  std::deque<PickleValue> values_;
  std::deque<std::string> names_;  // of globals
  const PickleValue* root_ = nullptr;
};

// ---- zips

// A zip file, or the range of a file that is one, whose entries are stored without compression.
// Entries that overlap, that have the same name or that end outside the file are refused.
class StoredZip {
 public:
  StoredZip(std::span<const std::byte> file, const std::string& source);

  using Entries = std::map<std::string, std::span<const std::byte>, std::less<>>;
  const Entries& entries() const { return entries_; }

 private:
  Entries entries_;
};

// ---- tensors

// A view of a stored tensor; strides are in elements.
struct StoredTensor {
  std::optional<DType> dtype;  // none for types we do not compute with
  std::vector<std::int64_t> shape = {}, strides = {};
  std::span<const std::byte> data = {};  // from its first element on
};

// The zip of one torch.save.
class TorchFile {
 public:
  TorchFile(std::span<const std::byte> file, const std::string& source);

  const PickleValue& root() const { return pickle_->root(); }
  // None if the value is no tensor.
  std::optional<StoredTensor> tensor(const PickleValue& value) const;

 private:
  std::optional<StoredTensor> rebuilt(const PickleValue& value) const;
  std::span<const std::byte> storage(const PickleValue& id, std::optional<DType>& dtype) const;

  std::string source_, folder_;  // folder_: "archive/"
  StoredZip zip_;
  std::unique_ptr<Pickle> pickle_;
};

// The type that "torch.float32" names, also as a storage: "torch.FloatStorage".
std::optional<DType> torch_dtype(std::string_view name);
// The integers of a tuple, a list or a torch.Size; UserError if it is something else, or has
// negative or more than 8 extents.
std::vector<std::int64_t> extents_of(const PickleValue& value, const std::string& source);

}  // namespace kintsugi
