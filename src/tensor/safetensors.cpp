#include "tensor/safetensors.h"

#include <fmt/format.h>
#include <limits.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kDamaged = "the file is truncated or damaged; copy it again";
constexpr std::string_view kInvalid = "the program that wrote it is at fault; write it again";

struct DTypeInfo {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

constexpr std::array<DTypeInfo, 22> kDTypes = {{
    {"F64", 64, DType::F64},
    {"F32", 32, DType::F32},
    {"BF16", 16, DType::BF16},
    {"F16", 16, DType::F16},
    {"I64", 64, DType::I64},
    {"I32", 32, DType::I32},
    {"U8", 8, DType::U8},
    {"BOOL", 8, std::nullopt},
    {"I8", 8, std::nullopt},
    {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},
    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
}};

// Quotes a name from a file so that the message stays on one line of limited length.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  std::string result = "'";
  for (const char c : text.substr(0, kLongest))
    result += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return result + (text.size() > kLongest ? "…'" : "'");
}

// Parses JSON and refuses duplicate keys. nlohmann takes a NUL byte as the end of the text, so this
// is checked first.
Json parse_strict_json(std::string_view text, const std::string& what) {
  if (text.find('\0') != std::string_view::npos)
    user_error("{} holds a zero byte and is not JSON: {}", what, kDamaged);
  std::vector<std::unordered_set<std::string>> keys;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      user_error("{} names {} twice: {}", what, in_quotes(parsed.get<std::string>()), kInvalid);
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& error) {
    user_error("{} is not valid JSON at byte {}: {}", what, error.byte, kDamaged);
  } catch (const Json::exception&) {
    user_error("{} holds a number that is out of range: {}", what, kDamaged);
  }
}

// Reads one entry of the header; errors name the tensor.
class EntryReader {
 public:
  EntryReader(const std::string& source, const std::string& name, const Json& value)
      : source_(source), name_(name), value_(value) {}

  SafetensorsEntry read() const {
    if (!value_.is_object()) complain("is not described by a JSON object");
    SafetensorsEntry entry;
    entry.name = name_;
    const Json& dtype = field("dtype");
    if (!dtype.is_string()) complain("has a dtype that is not a string");
    entry.dtype_name = dtype.get<std::string>();
    const Json& shape = field("shape");
    if (!shape.is_array()) complain("has a shape that is not a list");
    for (const Json& extent : shape) entry.shape.push_back(read_extent(extent));
    const Json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      complain("has data_offsets that are not two byte positions");
    entry.begin = offsets[0].get<std::uint64_t>();
    entry.end = offsets[1].get<std::uint64_t>();
    check_size(entry);
    return entry;
  }

 private:
  [[noreturn]] void complain(const std::string& problem) const {
    user_error("{}: tensor {} {}: {}", source_, in_quotes(name_), problem, kDamaged);
  }

  const Json& field(const char* key) const {
    const auto found = value_.find(key);
    if (found == value_.end()) complain(fmt::format("has no {}", key));
    return *found;
  }

  std::int64_t read_extent(const Json& extent) const {
    constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > kLargest)
      complain("has a shape with an entry that is not a size");
    return extent.get<std::int64_t>();
  }

  void check_size(SafetensorsEntry& entry) const {
    if (entry.begin > entry.end)
      complain(fmt::format("ends at byte {} before it begins at {}", entry.end, entry.begin));
    const auto* known = std::ranges::find_if(
        kDTypes, [&](const DTypeInfo& info) { return info.name == entry.dtype_name; });
    if (known == kDTypes.end())
      return;  // from a later version of the format: has no DType, its size is not checked
    entry.dtype = known->dtype;
    std::uint64_t bits = static_cast<std::uint64_t>(known->bits);
    for (const std::int64_t extent : entry.shape)
      if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits))
        complain("has a shape larger than any file");
    if (bits % 8 != 0)
      complain(fmt::format("of {} needs {} bits, not a whole number of bytes", known->name, bits));
    if (entry.end - entry.begin != bits / 8)
      complain(fmt::format("of {} needs {} bytes and has {}", known->name, bits / 8,
                           entry.end - entry.begin));
  }

  const std::string& source_;
  const std::string& name_;
  const Json& value_;
};

SafetensorsMetadata read_metadata(const Json& value, const std::string& source) {
  if (!value.is_object())
    user_error("{}: {} is not a JSON object: {}", source, kMetadataKey, kInvalid);
  SafetensorsMetadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      user_error("{}: {} key {} is not a string: {}", source, kMetadataKey, in_quotes(key),
                 kInvalid);
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// Sorts the entries by offset and checks that they cover the data exactly.
void check_coverage(std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes,
                    const std::string& source) {
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.end > data_bytes)
      user_error("{}: tensor {} ends at byte {} of {} bytes of data: {}", source,
                 in_quotes(entry.name), entry.end, data_bytes, kDamaged);
    if (entry.begin != covered)
      user_error(
          "{}: tensor {} begins at byte {} of the data, which {} byte {}: {}", source,
          in_quotes(entry.name), entry.begin,
          entry.begin < covered ? "overlaps the tensor before it up to" : "leaves a gap from",
          covered, kInvalid);
    covered = entry.end;
  }
  if (covered != data_bytes)
    user_error("{} has {} bytes of data after its last tensor, which ends at byte {}: {}", source,
               data_bytes - covered, covered, kDamaged);
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& source) {
  std::uint64_t length = 0;
  if (file.size() < sizeof length)
    user_error("{} has {} bytes, too few for a safetensors file: {}", source, file.size(),
               kDamaged);
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kMaxHeaderBytes)
    user_error(
        "{} has a header length of {} bytes, but the format allows {}: it is not a safetensors "
        "file, or it is damaged; copy it again",
        source, length, kMaxHeaderBytes);
  if (length > file.size() - sizeof length)
    user_error("{} has a header length of {} bytes, but the file has {} bytes: {}", source, length,
               file.size(), kDamaged);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
  if (!text.starts_with('{'))
    user_error(
        "{} has a header that does not begin with a brace: it is not a safetensors file, or it is "
        "damaged; copy it again",
        source);

  SafetensorsHeader header;
  header.data_offset = sizeof length + length;
  const Json json = parse_strict_json(text, source + ": the header");
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      header.metadata = read_metadata(value, source);
    } else {
      header.entries.push_back(EntryReader(source, name, value).read());
    }
  }
  check_coverage(header.entries, file.size() - header.data_offset, source);
  return header;
}

// ---- one file

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  file_.check_intact();
  for (std::size_t i = 0; i < header_.entries.size(); ++i)
    by_name_.emplace(header_.entries[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.entries[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(header_.data_offset + entry.begin, entry.end - entry.begin);
}

// ---- a model

SafetensorsModel::SafetensorsModel(const std::filesystem::path& path, const std::string& stem) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    user_error("{} does not exist: give a Hugging Face directory or a .safetensors file",
               path.string());
  const auto single = path / (stem + ".safetensors");
  const auto index = path / (stem + ".safetensors.index.json");
  if (!std::filesystem::is_directory(path, ignored)) {
    open_single(path);
  } else if (std::filesystem::exists(single, ignored)) {
    open_single(single);
  } else if (std::filesystem::exists(index, ignored)) {
    open_shards(index);
  } else {
    user_error("{} holds neither {} nor {}: convert its weights to safetensors first",
               path.string(), single.filename().string(), index.filename().string());
  }
}

void SafetensorsModel::open_single(const std::filesystem::path& file) {
  files_.emplace_back(file);
  for (const SafetensorsEntry& entry : files_.front().entries()) names_.push_back(entry.name);
  for (const std::string& name : names_) file_of_.emplace(name, 0);
}

void SafetensorsModel::open_shards(const std::filesystem::path& index) {
  const std::string source = index.string();
  const Json json = parse_strict_json(read_text_file(index), source);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object())
    user_error("{} has no weight_map of tensor names to files: {}", source, kDamaged);

  std::map<std::string, std::size_t> opened;
  std::vector<std::size_t> shard_of;
  for (const auto& [name, value] : map->items()) {
    if (!value.is_string())
      user_error("{} maps tensor {} to something that is not a file name: {}", source,
                 in_quotes(name), kDamaged);
    const std::string shard = value.get<std::string>();
    if (shard.empty() || shard == "." || shard == ".." || shard.size() > NAME_MAX ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      user_error(
          "{} maps tensor {} to {}, which is not a file name in its directory: correct the index",
          source, in_quotes(name), in_quotes(shard));
    const auto [found, is_new] = opened.emplace(shard, files_.size());
    if (is_new) {
      const auto file = index.parent_path() / shard;
      std::error_code ignored;
      if (!std::filesystem::exists(file, ignored))
        user_error("{} is missing, but {} maps tensor {} to it: copy the missing shard",
                   file.string(), source, in_quotes(name));
      files_.emplace_back(file);
    }
    if (files_[found->second].find(name) == nullptr)
      user_error(
          "{} maps tensor {} to {}, which does not hold it: index and shards are from different "
          "models; copy them again",
          source, in_quotes(name), shard);
    names_.push_back(name);
    shard_of.push_back(found->second);
  }
  for (std::size_t i = 0; i < names_.size(); ++i) file_of_.emplace(names_[i], shard_of[i]);
}

SafetensorsModel::Location SafetensorsModel::find(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) return {};
  const SafetensorsFile& file = files_[found->second];
  return {&file, file.find(name)};
}

// ---- writing

namespace {

std::string_view file_name_of(DType dtype) {
  for (const DTypeInfo& info : kDTypes)
    if (info.dtype == dtype) return info.name;
  failure("{} has no name in safetensors files", to_string(dtype));
}

std::string header_text(const std::vector<SafetensorsWriter::Announced>& tensors,
                        const SafetensorsMetadata& metadata, const std::string& path) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("\"{}\":{}", kMetadataKey, Json(metadata).dump());
  std::unordered_set<std::string_view> names = {kMetadataKey};
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    KINTSUGI_CHECK(names.insert(tensor.name).second, "{}: tensor {} is announced twice", path,
                   in_quotes(tensor.name));
    std::string extents;
    for (int i = 0; i < tensor.shape.rank(); ++i)
      extents += fmt::format("{}{}", i == 0 ? "" : ",", tensor.shape[i]);
    const std::uint64_t end = offset + tensor.bytes();
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        text.size() > 1 ? "," : "", Json(tensor.name).dump(),
                        file_name_of(tensor.dtype), extents, offset, end);
    offset = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  KINTSUGI_CHECK(text.size() <= kMaxHeaderBytes,
                 "{}: {} tensors need a header beyond the format's {} bytes", path, tensors.size(),
                 kMaxHeaderBytes);
  return text;
}

}  // namespace

SafetensorsWriter::Plan SafetensorsWriter::plan(const std::vector<Announced>& tensors,
                                                const std::string& path,
                                                const SafetensorsMetadata& metadata) {
  const std::string text = header_text(tensors, metadata, path);
  const std::uint64_t length = text.size();
  Plan plan;
  plan.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  plan.header += text;
  plan.bytes = plan.header.size();
  for (const Announced& tensor : tensors) {
    plan.offsets.push_back(plan.bytes);
    plan.bytes += tensor.bytes();
  }
  return plan;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<Announced> tensors,
                                     const SafetensorsMetadata& metadata)
    : path_(path), tensors_(std::move(tensors)), file_(path) {
  const std::string header = plan(tensors_, path.string(), metadata).header;
  write(header.data(), header.size());
}

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  file_.write(data, bytes);
  hash_.update(data, bytes);
  written_ += bytes;
}

void SafetensorsWriter::append(std::string_view name, const void* data, std::size_t bytes) {
  if (next_ < tensors_.size())
    KINTSUGI_CHECK(bytes == tensors_[next_].bytes() || name != tensors_[next_].name,
                   "{}: tensor {} has {} bytes, {} were announced", path_.string(), in_quotes(name),
                   bytes, tensors_[next_].bytes());
  append_part(name, data, bytes);
}

void SafetensorsWriter::append_part(std::string_view name, const void* data, std::size_t bytes) {
  KINTSUGI_CHECK(next_ < tensors_.size(), "{}: tensor {} follows the last one announced",
                 path_.string(), in_quotes(name));
  const Announced& expected = tensors_[next_];
  KINTSUGI_CHECK(name == expected.name, "{}: tensor {} is appended, but {} is next", path_.string(),
                 in_quotes(name), in_quotes(expected.name));
  KINTSUGI_CHECK(bytes <= expected.bytes() - in_tensor_,
                 "{}: tensor {} has more than the {} bytes that were announced", path_.string(),
                 in_quotes(name), expected.bytes());
  write(data, bytes);
  in_tensor_ += bytes;
  if (in_tensor_ < expected.bytes()) return;
  in_tensor_ = 0;
  ++next_;
}

SafetensorsWriter::Result SafetensorsWriter::finish() {
  KINTSUGI_CHECK(next_ == tensors_.size(), "{}: {} of {} tensors were written", path_.string(),
                 next_, tensors_.size());
  file_.close();
  return {written_, hash_.digest()};
}

SafetensorsFiles divide_into_files(const std::string& stem,
                                   const std::vector<SafetensorsWriter::Announced>& tensors,
                                   std::uint64_t max_bytes) {
  SafetensorsFiles result;
  std::vector<SafetensorsFiles::File>& files = result.files;
  files.emplace_back();
  std::uint64_t in_file = 0, total = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t bytes = tensor.bytes();
    if (!files.back().tensors.empty() && in_file + bytes > max_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().tensors.push_back(tensor);
    in_file += bytes;
    total += bytes;
  }
  if (files.size() == 1) {
    files.front().name = stem + ".safetensors";
    return result;
  }
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, files.size());
    for (const auto& tensor : files[i].tensors) weight_map[tensor.name] = files[i].name;
  }
  result.index_name = stem + ".safetensors.index.json";
  result.index = nlohmann::ordered_json{{"metadata", {{"total_size", total}}},
                                        {"weight_map", std::move(weight_map)}}
                     .dump(2) +
                 "\n";
  return result;
}

}  // namespace kintsugi
