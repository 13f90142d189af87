#include "model/checksums.h"

#include <limits.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "tensor/host_buffers.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

const char* const kAlgorithm = "xxh3-64";

// Outside files must not decide what else on this machine is read.
void check_name(const std::string& name, const std::string& source) {
  const fs::path path(name);
  const bool inside = !name.empty() && path.is_relative() && path.has_filename() &&
                      name.find('\0') == std::string::npos &&
                      std::none_of(path.begin(), path.end(), [](const fs::path& part) {
                        return part == ".." || part == "." || part.native().size() > NAME_MAX;
                      });
  if (!inside) user_error("{} names '{}', which is not a file in its directory", source, name);
}

std::vector<Checksums::Range> parse_ranges(const Json& json, const std::string& name,
                                           const std::string& source) {
  std::vector<Checksums::Range> ranges;
  std::uint64_t end = 0;
  for (const Json& range : json) {
    if (!range.at(0).is_number_unsigned() || !range.at(1).is_number_unsigned())
      user_error("{} is not a list of checksums: a range of '{}' is not a number", source, name);
    ranges.push_back({range.at(0).get<std::uint64_t>(), range.at(1).get<std::uint64_t>(),
                      range.at(2).get<std::string>()});
    const Checksums::Range& last = ranges.back();
    if (last.offset != end || last.bytes > std::numeric_limits<std::uint64_t>::max() - end)
      user_error("{} is not a list of checksums: the ranges of '{}' do not follow each other",
                 source, name);
    end += last.bytes;
  }
  return ranges;
}

[[noreturn]] void damaged_weights(const fs::path& file) {
  user_error(
      "{} does not match its checksum: it is damaged; copy it again, or delete {} beside it if you "
      "changed the weights on purpose",
      file.string(), kChecksums);
}

}  // namespace

Checksums parse_checksums(const std::string& text, const std::string& source) {
  try {
    const Json json = Json::parse(text);
    if (json.at("algorithm").get<std::string>() != kAlgorithm)
      user_error("{} names another algorithm", source);
    Checksums checksums;
    for (const auto& [name, hash] : json.at("files").items()) {
      check_name(name, source);
      checksums.texts[name] = hash.get<std::string>();
    }
    for (const auto& [name, ranges] : json.at("pieces").items()) {
      check_name(name, source);
      checksums.tensors[name] = parse_ranges(ranges, name, source);
    }
    return checksums;
  } catch (const nlohmann::json::exception&) {
    user_error("{} is not a list of checksums", source);
  }
}

std::string write_checksums(const Checksums& checksums) {
  Json listed = Json::object();
  for (const auto& [file, ranges] : checksums.tensors) {
    listed[file] = Json::array();
    for (const Checksums::Range& range : ranges)
      listed[file].push_back(Json{range.offset, range.bytes, range.hash});
  }
  const Json json{{"algorithm", kAlgorithm}, {"files", checksums.texts}, {"pieces", listed}};
  return json.dump(2) + "\n";
}

std::optional<Checksums> read_checksums(const fs::path& directory) {
  const fs::path list = directory / kChecksums;
  std::error_code ignored;
  if (!fs::exists(list, ignored)) return std::nullopt;
  try {
    return parse_checksums(read_text_file(list), list.string());
  } catch (const UserError& error) {
    user_error("{}: copy the checkpoint again, or delete this file", error.what());
  }
}

void verify_weights(const fs::path& directory, FileLoader& loader, VerifyShare share) {
  const std::optional<Checksums> checksums = read_checksums(directory);
  if (!checksums) return;
  std::int64_t turn = 0;
  for (const auto& [name, ranges] : checksums->tensors) {
    const fs::path path = directory / name;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) continue;  // not read: another file may hold the tensors
    const int file = loader.open(path);
    if (loader.size(file) != Checksums::size(ranges)) damaged_weights(path);
    for (const Checksums::Range& range : ranges)
      if (turn++ % share.ranks == share.rank)
        loader.verify(file, range.offset, range.bytes, range.hash, damaged_weights);
  }
}

void verify_weights_now(const fs::path& directory, const ProgressCall& progress) {
  CountedMemory memory;
  FileLoader loader(memory);
  verify_weights(directory, loader);
  loader.run(progress);
}

}  // namespace kintsugi
