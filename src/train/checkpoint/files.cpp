#include "train/checkpoint/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/hash.h"
#include "tensor/safetensors_files.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/saved_tensors.h"

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
  // Not what is above the folder of checkpoints: the run directory may have been moved away.
  fs::create_directory(directory_.parent_path(), error);
  fs::create_directory(directory_, error);
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
  if (error) failure("cannot read {}: {}", file.string(), error.message());  // it may be intact
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
  if (error) failure("cannot read {}: {}", path.string(), error.message());
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

namespace {

// An error of the file system on one node is not a mistake of the user.
void without_mistakes(CheckpointOf owner, const std::function<void()>& work) {
  try {
    work();
  } catch (const DamagedFile&) {
    throw;
  } catch (const UserError& error) {
    if (owner == CheckpointOf::OtherRun) throw;
    throw Failure(error.what());
  }
}

bool ranges_match(const fs::path& file, const Json& ranges) {
  const MappedFile mapped(file);
  const std::span<const std::byte> bytes = mapped.bytes();
  std::uint64_t end = 0;
  for (const Json& range : ranges) {
    const auto offset = range.at(0).get<std::uint64_t>(), size = range.at(1).get<std::uint64_t>();
    if (offset != end || size > bytes.size() - offset) return false;
    const std::string hash = hex64(hash64(bytes.data() + offset, size));
    mapped.check_intact();
    if (hash != range.at(2).get<std::string>()) return false;
    end = offset + size;
  }
  return end == bytes.size();
}

bool text_matches(const fs::path& path, const Json& expected) {
  const MappedFile file(path);
  const std::string hash = hex64(hash64(file.bytes().data(), file.bytes().size()));
  file.check_intact();
  return hash == expected.get<std::string>();
}

bool matches_list(const fs::path& directory, const std::string& damage) {
  const fs::path list = directory / "checksums.json";
  const auto named = [&](const std::string& name) {
    return damage.find((directory / name).string()) != std::string::npos;
  };
  check_exists(list, CheckpointOf::ThisRun);
  const Json checksums = Json::parse(read_text_file(list));
  for (const auto& [name, expected] : checksums.at("files").items()) {
    if (!named(name)) continue;
    check_exists(directory / name, CheckpointOf::ThisRun);
    if (!text_matches(directory / name, expected)) return false;
  }
  for (const auto& [name, ranges] : checksums.at("pieces").items()) {
    if (!named(name)) continue;
    check_exists(directory / name, CheckpointOf::ThisRun);
    if (!ranges_match(directory / name, ranges)) return false;
  }
  return true;
}

}  // namespace

bool is_still_damaged(const fs::path& checkpoint, const std::string& damage) {
  const fs::path model = fs::canonical(checkpoint), state = state_directory(model);
  if (!what_is_missing({model.parent_path(), model.filename().string()}).empty()) return true;
  bool good = true;
  without_mistakes(CheckpointOf::ThisRun, [&] {
    try {
      for (const fs::path& directory : {model, model / kAverage, state})
        if (good && fs::exists(directory)) good = matches_list(directory, damage);
    } catch (const nlohmann::json::exception&) {
      good = false;
    } catch (const DamagedFile&) {
      good = false;  // missing
    }
  });
  return !good;
}

void verify_files(Communicator& group, const fs::path& directory, FileLoader& loader,
                  CheckpointOf owner) {
  const auto verify = [&] {
    const fs::path list = directory / "checksums.json";
    check_exists(list, owner);
    try {
      const Json checksums = Json::parse(read_text_file(list));
      if (checksums.at("algorithm").get<std::string>() != kAlgorithm)
        damaged(list, "names another algorithm", owner);
      std::size_t turn = 0;
      for (const auto& [name, expected] : checksums.at("files").items()) {
        check_exists(directory / name, owner);
        if (!text_matches(directory / name, expected))
          damaged(directory / name, "does not match its checksum", owner);
      }
      for (const auto& [name, ranges] : checksums.at("pieces").items()) {
        check_exists(directory / name, owner);
        check_ranges(group, directory / name, ranges, loader, owner, turn);
      }
    } catch (const nlohmann::json::exception&) {
      damaged(list, "is not a list of checksums", owner);
    }
  };
  together(group, [&] { without_mistakes(owner, verify); });
}

}  // namespace kintsugi
