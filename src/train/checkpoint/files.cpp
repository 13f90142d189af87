#include "train/checkpoint/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/hash.h"
#include "tensor/safetensors_files.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

const char* const kAlgorithm = "xxh3-64";

}  // namespace

CheckpointWriter::CheckpointWriter(Communicator& group, fs::path directory)
    : group_(group), directory_(std::move(directory)) {
  if (!is_first()) return;
  std::error_code error;
  fs::remove_all(directory_, error);
  fs::create_directories(directory_, error);
  if (error) failure("cannot create {}: {}", directory_.string(), error.message());
}

void CheckpointWriter::text(const std::string& name, const std::string& content) {
  if (!is_first()) return;
  std::error_code error;
  const fs::path folder = fs::path(name).parent_path();
  if (!folder.empty()) fs::create_directories(directory_ / folder, error);
  if (error) failure("cannot create a folder for {}: {}", name, error.message());
  FileWriter writer(directory_ / name);
  writer.write(content.data(), content.size());
  writer.close();
  hashes_[name] = hex64(hash64(content));
}

void CheckpointWriter::tensors(const std::string& stem,
                               const std::vector<SafetensorsWriter::Announced>& tensors,
                               std::uint64_t max_bytes) {
  const SafetensorsFiles divided = divide_into_files(stem, tensors, max_bytes);
  for (const SafetensorsFiles::File& file : divided.files) {
    const auto plan = SafetensorsWriter::plan(file.tensors, file.name);
    for (std::size_t t = 0; t < file.tensors.size(); ++t)
      locations_[file.tensors[t].name] = {file.name, plan.offsets[t], file.tensors[t].dtype};
    if (!is_first()) continue;
    FileWriter(directory_ / file.name).close();
    fs::resize_file(directory_ / file.name, plan.bytes);
    const Target header = target(file.name, 0, plan.header.size());
    header.file.write_at(0, plan.header.data(), plan.header.size());
    header.hash.update(plan.header.data(), plan.header.size());
  }
  if (!divided.index.empty()) text(divided.index_name, divided.index);
}

CheckpointWriter::Target CheckpointWriter::target(const std::string& file, std::uint64_t offset,
                                                  std::size_t bytes) {
  auto& writer = open_[file];
  if (!writer) writer = std::make_unique<OffsetWriter>(directory_ / file);
  if (ranges_.empty() || ranges_.back().file != file ||
      ranges_.back().offset + ranges_.back().bytes != offset)
    ranges_.push_back({file, offset, 0, std::make_unique<StreamHash>()});
  ranges_.back().bytes += bytes;
  return {*writer, offset, *ranges_.back().hash};
}

CheckpointWriter::Target CheckpointWriter::target(const std::string& name, std::int64_t first,
                                                  const Tensor& elements) {
  const Location& location = locations_.at(name);
  KINTSUGI_CHECK(elements.dtype() == location.dtype, "{} was announced as {}, not {}", name,
                 to_string(location.dtype), to_string(elements.dtype()));
  return target(location.file,
                location.offset + static_cast<std::uint64_t>(first) * size_of(location.dtype),
                elements.bytes());
}

void CheckpointWriter::put(WriteQueue& queue, const std::string& name, std::int64_t first,
                           const Tensor& elements) {
  const Target to = target(name, first, elements);
  queue.put(to.file, to.offset, to.hash, elements);
}

void CheckpointWriter::put_copy(WriteQueue& queue, const std::string& name, std::int64_t first,
                                const Tensor& elements) {
  const Target to = target(name, first, elements);
  queue.put_copy(to.file, to.offset, to.hash, elements.data(), elements.bytes());
}

void CheckpointWriter::finish() {
  std::string local_ranges;  // one line each: "offset bytes hash file"
  together(group_, [&] {
    for (auto& [file, writer] : open_) writer->close();
    for (const WrittenRange& range : ranges_)
      local_ranges += fmt::format("{} {} {} {}\n", range.offset, range.bytes,
                                  hex64(range.hash->digest()), range.file);
  });
  std::map<std::string, std::map<std::uint64_t, Json>> ranges;
  for (const std::string& lines : gather_texts(group_, local_ranges)) {
    std::istringstream stream(lines);
    std::uint64_t offset = 0, bytes = 0;
    std::string hash, file;
    while (stream >> offset >> bytes >> hash && std::getline(stream >> std::ws, file)) {
      const bool is_new = ranges[file].emplace(offset, Json{offset, bytes, hash}).second;
      KINTSUGI_CHECK(is_new, "two ranks wrote {} at offset {}", file, offset);
    }
  }
  together(group_, [&] {
    if (!is_first()) return;
    Json listed = Json::object();
    for (const auto& [file, by_offset] : ranges) {
      listed[file] = Json::array();
      for (const auto& [offset, range] : by_offset) listed[file].push_back(range);
    }
    const Json checksums{{"algorithm", kAlgorithm}, {"files", hashes_}, {"pieces", listed}};
    text("checksums.json", checksums.dump(2) + "\n");
    for (const auto& entry : fs::directory_iterator(directory_))
      if (entry.is_directory()) sync_directory(entry.path());
    sync_directory(directory_);
  });
}

namespace {

[[noreturn]] void damaged(const fs::path& file, const std::string& what, CheckpointOf owner) {
  damaged_file("{} {}: it is damaged{}", file.string(), what,
               owner == CheckpointOf::OtherRun
                   ? "; copy it again, or name another checkpoint in run.from"
                   : "");
}

[[noreturn]] void damaged_weights(const fs::path& file) {
  user_error(
      "{} does not match its checksum: it is damaged; copy it again, or delete checksums.json "
      "beside it if you changed the weights on purpose",
      file.string());
}

void check_exists(const fs::path& file, CheckpointOf owner) {
  std::error_code error;
  if (fs::exists(file, error)) return;
  damaged_file("{} is missing: the checkpoint was not copied in full{}", file.string(),
               owner == CheckpointOf::OtherRun
                   ? "; copy the file again, or name another checkpoint in run.from"
                   : "");
}

template <CheckpointOf owner>
void does_not_match(const fs::path& file) {
  damaged(file, "does not match its checksum", owner);
}

void check_ranges(Communicator& group, const fs::path& path, const Json& ranges, FileLoader& loader,
                  CheckpointOf owner, std::size_t& turn) {
  const int file = loader.open(path);
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) user_error("cannot read {}: {}", path.string(), error.message());
  std::uint64_t end = 0;
  for (const Json& range : ranges) {
    const auto offset = range.at(0).get<std::uint64_t>(), bytes = range.at(1).get<std::uint64_t>();
    if (offset != end || bytes > size - offset)
      damaged(path, "does not have the size in checksums.json", owner);
    end = offset + bytes;
    const bool ours =
        turn++ % static_cast<std::size_t>(group.size()) == static_cast<std::size_t>(group.rank());
    const auto hash = range.at(2).get<std::string>();
    if (ours)
      loader.verify(file, offset, bytes, hash,
                    owner == CheckpointOf::OtherRun ? does_not_match<CheckpointOf::OtherRun>
                                                    : does_not_match<CheckpointOf::ThisRun>);
  }
  if (end != size) damaged(path, "does not have the size in checksums.json", owner);
}

}  // namespace

void verify_weights(Communicator& group, const fs::path& directory, FileLoader& loader) {
  together(group, [&] {
    const fs::path list = directory / "checksums.json";
    if (!fs::exists(list)) return;
    try {
      const Json checksums = Json::parse(read_text_file(list));
      std::int64_t turn = 0;
      for (const auto& [name, ranges] : checksums.at("pieces").items())
        for (const Json& range : ranges) {
          const auto offset = range.at(0).get<std::uint64_t>(),
                     bytes = range.at(1).get<std::uint64_t>();
          const fs::path path = directory / name;
          if (!fs::exists(path)) continue;  // not read: another file may hold the tensors
          if (const std::uint64_t size = fs::file_size(path);
              offset > size || bytes > size - offset)
            damaged_weights(path);
          if (turn++ % group.size() == group.rank())
            loader.verify(loader.open(path), offset, bytes, range.at(2).get<std::string>(),
                          damaged_weights);
        }
    } catch (const nlohmann::json::exception&) {
      user_error("{} is not a list of checksums: copy the checkpoint again, or delete this file",
                 list.string());
    }
  });
}

void verify_files(Communicator& group, const fs::path& directory, FileLoader& loader,
                  CheckpointOf owner) {
  together(group, [&] {
    const fs::path list = directory / "checksums.json";
    check_exists(list, owner);
    try {
      const Json checksums = Json::parse(read_text_file(list));
      if (checksums.at("algorithm").get<std::string>() != kAlgorithm)
        damaged(list, "names another algorithm", owner);
      std::size_t turn = 0;
      for (const auto& [name, expected] : checksums.at("files").items()) {
        check_exists(directory / name, owner);
        const MappedFile file(directory / name);
        if (hex64(hash64(file.bytes().data(), file.bytes().size())) != expected.get<std::string>())
          damaged(directory / name, "does not match its checksum", owner);
      }
      for (const auto& [name, ranges] : checksums.at("pieces").items()) {
        check_exists(directory / name, owner);
        check_ranges(group, directory / name, ranges, loader, owner, turn);
      }
    } catch (const nlohmann::json::exception&) {
      damaged(list, "is not a list of checksums", owner);
    }
  });
}

}  // namespace kintsugi
