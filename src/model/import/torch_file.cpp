#include "model/import/torch_file.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace kintsugi {
namespace {

using Kind = PickleValue::Kind;

// Little-endian numbers at offsets that the caller has checked.
std::uint64_t number_at(std::span<const std::byte> bytes, std::size_t offset, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i)
    value |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8 * i);
  return value;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// ---- zips: the records of the format's specification (APPNOTE 4.3)

constexpr std::uint64_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                      kLocator64Bytes = 20;
constexpr std::uint64_t kIn64 = 0xffffffff;  // a field of 32 bits whose value is in a wider one

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> file, const std::string& source)
      : file_(file), source_(source) {}

  StoredZip::Entries read() {
    find_directory();
    StoredZip::Entries entries;
    for (std::uint64_t at = directory_; at < directory_end_;) at = read_entry(at, entries);
    if (entries.size() != count_) refuse("has another number of entries than it says");
    std::ranges::sort(ranges_);
    for (std::size_t i = 1; i < ranges_.size(); ++i)
      if (ranges_[i].first < ranges_[i - 1].second) refuse("has entries that overlap");
    return entries;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: the zip {}: it is damaged, or torch.save did not write it", source_,
               fmt::format(format, std::forward<Args>(args)...));
  }
  bool has(std::uint64_t offset, std::uint64_t bytes, std::uint64_t end) const {
    return offset <= end && bytes <= end - offset;
  }
  std::uint64_t at(std::uint64_t offset, std::size_t count) const {
    return number_at(file_, offset, count);
  }

  // The end record may have a comment behind it.
  void find_directory() {
    constexpr std::size_t kComment = 65535;
    if (file_.size() < kEndBytes) refuse("is too short");
    std::uint64_t end = file_.size() - kEndBytes;
    const std::uint64_t first = end > kComment ? end - kComment : 0;
    while (at(end, 4) != kEnd || end + kEndBytes + at(end + 20, 2) != file_.size()) {
      if (end == first) refuse("has no directory (written by PyTorch before 1.6, or cut off?)");
      --end;
    }
    count_ = at(end + 10, 2);
    std::uint64_t bytes = at(end + 12, 4);
    directory_ = at(end + 16, 4);
    if (count_ == 0xffff || bytes == kIn64 || directory_ == kIn64) {
      if (end < kLocator64Bytes || at(end - kLocator64Bytes, 4) != kLocator64)
        refuse("has no directory of 64 bits");
      const std::uint64_t end64 = at(end - kLocator64Bytes + 8, 8);
      end -= kLocator64Bytes;
      if (!has(end64, kEnd64Bytes, end) || at(end64, 4) != kEnd64)
        refuse("has no directory of 64 bits");
      count_ = at(end64 + 32, 8);
      bytes = at(end64 + 40, 8);
      directory_ = at(end64 + 48, 8);
      end = end64;
    }
    if (!has(directory_, bytes, end)) refuse("has a directory outside the file");
    directory_end_ = directory_ + bytes;
  }

  // Sizes and offset of an entry of the directory, which may be in its field of 64 bits.
  struct Numbers {
    std::uint64_t size, stored, offset;
  };
  Numbers numbers_of(std::uint64_t entry, std::uint64_t extra, std::uint64_t extra_end) const {
    Numbers numbers{at(entry + 24, 4), at(entry + 20, 4), at(entry + 42, 4)};
    while (has(extra, 4, extra_end)) {
      const std::uint64_t kind = at(extra, 2), bytes = at(extra + 2, 2);
      extra += 4;
      if (!has(extra, bytes, extra_end)) break;
      std::uint64_t next = extra;
      if (kind == 1)
        for (std::uint64_t* const field : {&numbers.size, &numbers.stored, &numbers.offset})
          if (*field == kIn64 && has(next, 8, extra + bytes)) {
            *field = at(next, 8);
            next += 8;
          }
      extra += bytes;
    }
    return numbers;
  }

  // Returns the offset of the next one.
  std::uint64_t read_entry(std::uint64_t entry, StoredZip::Entries& entries) {
    if (!has(entry, kCentralBytes, directory_end_) || at(entry, 4) != kCentral)
      refuse("has a damaged directory");
    const std::uint64_t name_bytes = at(entry + 28, 2), extra_bytes = at(entry + 30, 2),
                        comment_bytes = at(entry + 32, 2);
    if (!has(entry + kCentralBytes, name_bytes + extra_bytes + comment_bytes, directory_end_))
      refuse("has a damaged directory");
    const std::uint64_t extra = entry + kCentralBytes + name_bytes;
    const std::string name = text_of(file_.subspan(entry + kCentralBytes, name_bytes));
    if (at(entry + 8, 2) & 1) refuse("has the encrypted entry {}", name);
    const Numbers numbers = numbers_of(entry, extra, extra + extra_bytes);
    if (at(entry + 10, 2) != 0 || numbers.size != numbers.stored)
      refuse("has the compressed entry {}", name);
    if (!entries.emplace(name, data_of(name, numbers)).second) refuse("has two entries {}", name);
    return extra + extra_bytes + comment_bytes;
  }

  std::span<const std::byte> data_of(const std::string& name, const Numbers& numbers) {
    if (!has(numbers.offset, kLocalBytes, directory_) || at(numbers.offset, 4) != kLocal)
      refuse("has the entry {} outside the file", name);
    const std::uint64_t name_bytes = at(numbers.offset + 26, 2),
                        extra_bytes = at(numbers.offset + 28, 2);
    const std::uint64_t data = numbers.offset + kLocalBytes + name_bytes + extra_bytes;
    if (!has(data, numbers.size, directory_)) refuse("has the entry {} outside the file", name);
    if (text_of(file_.subspan(numbers.offset + kLocalBytes, name_bytes)) != name)
      refuse("has two names for the entry {}", name);
    ranges_.emplace_back(numbers.offset, data + numbers.size);
    return file_.subspan(data, numbers.size);
  }

  std::span<const std::byte> file_;
  const std::string& source_;
  std::uint64_t directory_ = 0, directory_end_ = 0, count_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;  // of the entries
};

// ---- tensors

struct TorchType {
  const char *name, *storage;
  std::size_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array kTypes = {TorchType{"torch.float64", "torch.DoubleStorage", 8, DType::F64},
                               TorchType{"torch.float32", "torch.FloatStorage", 4, DType::F32},
                               TorchType{"torch.bfloat16", "torch.BFloat16Storage", 2, DType::BF16},
                               TorchType{"torch.float16", "torch.HalfStorage", 2, DType::F16},
                               TorchType{"torch.int64", "torch.LongStorage", 8, DType::I64},
                               TorchType{"torch.int32", "torch.IntStorage", 4, DType::I32},
                               TorchType{"torch.uint8", "torch.ByteStorage", 1, DType::U8}};

// The first argument of a function, or null.
const PickleValue* argument(const PickleValue& call, std::size_t i) {
  if (!call.arguments || call.arguments->kind != Kind::Tuple || i >= call.arguments->items.size())
    return nullptr;
  return call.arguments->items[i];
}

}  // namespace

StoredZip::StoredZip(std::span<const std::byte> file, const std::string& source)
    : entries_(ZipReader(file, source).read()) {}

std::optional<DType> torch_dtype(std::string_view name) {
  for (const TorchType& type : kTypes)
    if (name == type.name || name == type.storage) return type.dtype;
  return std::nullopt;
}

std::vector<std::int64_t> extents_of(const PickleValue& value, const std::string& source) {
  constexpr std::size_t kMost = 8;
  constexpr std::int64_t kLargestExtent = std::int64_t{1} << 48;
  const PickleValue* list = &value;
  if (value.is_object("torch.Size")) list = argument(value, 0);
  if (!list || (list->kind != Kind::Tuple && list->kind != Kind::List))
    user_error("{}: a shape is no list of numbers", source);
  if (list->items.size() > kMost)
    user_error("{}: a tensor has {} dimensions, at most {} are supported", source,
               list->items.size(), kMost);
  std::vector<std::int64_t> extents;
  for (const PickleValue* const item : list->items) {
    if (item->kind != Kind::Integer || item->integer < 0 || item->integer > kLargestExtent)
      user_error("{}: a shape has an extent that is no number, or too large", source);
    extents.push_back(item->integer);
  }
  return extents;
}

TorchFile::TorchFile(std::span<const std::byte> file, const std::string& source)
    : source_(source), zip_(file, source) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& [name, data] : zip_.entries()) {
    if (!name.ends_with(kPickle) || name.find('/') != name.size() - kPickle.size()) continue;
    if (pickle_) user_error("{}: the zip has two pickles", source);
    folder_ = name.substr(0, name.size() - kPickle.size() + 1);
    pickle_ = std::make_unique<Pickle>(text_of(data), source + ": " + name);
  }
  if (!pickle_) user_error("{} has no data.pkl: torch.save did not write it", source);
  const auto order = zip_.entries().find(folder_ + "byteorder");
  if (order != zip_.entries().end() && text_of(order->second) != "little")
    user_error("{} was written by a big-endian machine, which is not supported", source);
}

// The bytes of ('storage', type, key, device, elements).
std::span<const std::byte> TorchFile::storage(const PickleValue& id,
                                              std::optional<DType>& dtype) const {
  const PickleValue* const type = argument(id, 1);
  const PickleValue* const key = argument(id, 2);
  const PickleValue* const count = argument(id, 4);
  if (id.kind != Kind::PersistentId || !count || type->kind != Kind::Global ||
      key->kind != Kind::Text || count->kind != Kind::Integer || count->integer < 0)
    user_error("{}: a tensor has no storage that can be read", source_);
  const auto entry = zip_.entries().find(folder_ + "data/" + std::string(key->text));
  if (entry == zip_.entries().end())
    user_error("{}: the storage {} of a tensor is missing", source_, key->text);
  if (!type->text.ends_with(".UntypedStorage")) dtype = torch_dtype(type->text);
  const std::uint64_t width =
      dtype && !type->text.ends_with(".UntypedStorage") ? size_of(*dtype) : 1;
  if (static_cast<std::uint64_t>(count->integer) > entry->second.size() / width)
    user_error("{}: the storage {} of a tensor is too short", source_, key->text);
  return entry->second.first(static_cast<std::uint64_t>(count->integer) * width);
}

std::optional<StoredTensor> TorchFile::tensor(const PickleValue& value) const {
  // A parameter, or a tensor with attributes: what it is made of is an argument.
  const PickleValue* inner = &value;
  if (value.is_object("torch._utils._rebuild_parameter") ||
      value.is_object("torch._utils._rebuild_parameter_with_state")) {
    inner = argument(value, 0);
  } else if (value.is_object("torch._tensor._rebuild_from_type_v2")) {
    const PickleValue* const function = argument(value, 0);
    const PickleValue* const arguments = argument(value, 2);
    if (!function || !arguments) return std::nullopt;
    PickleValue call{.kind = Kind::Object, .callee = function, .arguments = arguments};
    return rebuilt(call);
  }
  return inner ? rebuilt(*inner) : std::nullopt;
}

// _rebuild_tensor_v2(storage, offset, size, stride, …); v3 has the type at the seventh place.
std::optional<StoredTensor> TorchFile::rebuilt(const PickleValue& value) const {
  const bool third = value.is_object("torch._utils._rebuild_tensor_v3");
  if (!third && !value.is_object("torch._utils._rebuild_tensor_v2")) return std::nullopt;
  const PickleValue* const offset = argument(value, 1);
  const PickleValue* const strides = argument(value, 3);
  if (!strides || offset->kind != Kind::Integer || offset->integer < 0)
    user_error("{}: a tensor lacks its strides", source_);
  StoredTensor tensor{.dtype = {},
                      .shape = extents_of(*argument(value, 2), source_),
                      .strides = extents_of(*strides, source_)};
  if (third)
    if (const PickleValue* const type = argument(value, 6); type && type->kind == Kind::Global)
      tensor.dtype = torch_dtype(type->text);
  const std::span<const std::byte> bytes = storage(*argument(value, 0), tensor.dtype);
  if (!tensor.dtype) return tensor;
  const std::uint64_t width = size_of(*tensor.dtype), all = bytes.size() / width;
  if (tensor.strides.size() != tensor.shape.size())
    user_error("{}: a tensor has another number of strides than dimensions", source_);
  // The last element must be in the storage, and no element may be shared.
  std::uint64_t count = 1, last = static_cast<std::uint64_t>(offset->integer);
  bool fits = last <= all;
  for (std::size_t i = 0; i < tensor.shape.size() && fits; ++i) {
    const auto extent = static_cast<std::uint64_t>(tensor.shape[i]);
    const auto stride = static_cast<std::uint64_t>(tensor.strides[i]);
    if (extent == 0) count = 0;
    if (count == 0) break;
    fits = extent <= all / count && (extent == 1 || stride <= all / (extent - 1));
    if (fits) count *= extent;
    if (fits) last += (extent - 1) * stride;
  }
  if (!fits || (count > 0 && last >= all))
    user_error("{}: a tensor has elements outside its storage", source_);

  if (count == 0) tensor.strides.assign(tensor.strides.size(), 0);
  tensor.data = bytes.subspan(
      std::min<std::uint64_t>(static_cast<std::uint64_t>(offset->integer), all) * width);
  return tensor;
}

}  // namespace kintsugi
