#include "train/checkpoint/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

const char* const kAlgorithm = "xxh3-64";

std::uint64_t bytes_of(const SafetensorsWriter::Announced& tensor) {
  return static_cast<std::uint64_t>(tensor.shape.elements()) * size_of(tensor.dtype);
}

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
  std::vector<std::vector<SafetensorsWriter::Announced>> files(1);
  std::uint64_t in_file = 0, total = 0;
  for (const auto& tensor : tensors) {
    if (!files.back().empty() && in_file + bytes_of(tensor) > max_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().push_back(tensor);
    in_file += bytes_of(tensor);
    total += bytes_of(tensor);
  }
  Json weight_map = Json::object();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string file =
        files.size() == 1 ? fmt::format("{}.safetensors", stem)
                          : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, files.size());
    const auto plan = SafetensorsWriter::plan(files[i], file);
    for (std::size_t t = 0; t < files[i].size(); ++t) {
      places_[files[i][t].name] = {file, plan.offsets[t], files[i][t].dtype};
      weight_map[files[i][t].name] = file;
    }
    if (is_first()) {
      FileWriter(directory_ / file).close();
      fs::resize_file(directory_ / file, plan.bytes);
      write(file, 0, plan.header.data(), plan.header.size());
    }
  }
  if (files.size() > 1)
    text(stem + ".safetensors.index.json",
         Json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(2) + "\n");
}

void CheckpointWriter::write(const std::string& file, std::uint64_t offset, const void* data,
                             std::size_t bytes) {
  auto& writer = open_[file];
  if (!writer) writer = std::make_unique<PlacedWriter>(directory_ / file);
  writer->write_at(offset, data, bytes);
  if (runs_.empty() || runs_.back().file != file ||
      runs_.back().offset + runs_.back().bytes != offset)
    runs_.push_back({file, offset, 0, std::make_unique<StreamHash>()});
  runs_.back().hash->update(data, bytes);
  runs_.back().bytes += bytes;
}

void CheckpointWriter::put(const std::string& name, std::int64_t first, const Tensor& elements) {
  const Place& place = places_.at(name);
  KINTSUGI_CHECK(elements.dtype() == place.dtype, "{} was announced as {}, not {}", name,
                 to_string(place.dtype), to_string(elements.dtype()));
  write(place.file, place.offset + static_cast<std::uint64_t>(first) * size_of(place.dtype),
        elements.data(), elements.bytes());
}

void CheckpointWriter::finish() {
  std::string mine;  // "offset bytes hash file" a line
  together(group_, [&] {
    for (auto& [file, writer] : open_) writer->close();
    for (const Run& run : runs_)
      mine +=
          fmt::format("{} {} {} {}\n", run.offset, run.bytes, hex64(run.hash->digest()), run.file);
  });
  std::map<std::string, std::map<std::uint64_t, Json>> pieces;
  for (const std::string& lines : gather_texts(group_, mine)) {
    std::istringstream stream(lines);
    std::uint64_t offset = 0, bytes = 0;
    std::string hash, file;
    while (stream >> offset >> bytes >> hash && std::getline(stream >> std::ws, file)) {
      const bool is_new = pieces[file].emplace(offset, Json{offset, bytes, hash}).second;
      KINTSUGI_CHECK(is_new, "two ranks wrote {} from {} on", file, offset);
    }
  }
  together(group_, [&] {
    if (!is_first()) return;
    Json listed = Json::object();
    for (const auto& [file, parts] : pieces) {
      listed[file] = Json::array();
      for (const auto& [offset, part] : parts) listed[file].push_back(part);
    }
    const Json checksums{{"algorithm", kAlgorithm}, {"files", hashes_}, {"pieces", listed}};
    text("checksums.json", checksums.dump(2) + "\n");
    for (const auto& entry : fs::directory_iterator(directory_))
      if (entry.is_directory()) sync_directory(entry.path());
    sync_directory(directory_);
  });
}

namespace {

[[noreturn]] void damaged(const fs::path& file, const std::string& what) {
  user_error(
      "{} {}: it is damaged; delete this checkpoint's directory and run again to continue from the "
      "one before",
      file.string(), what);
}

// Nothing is wrong with what is there, so nothing needs to be deleted.
void check_exists(const fs::path& file) {
  std::error_code error;
  if (fs::exists(file, error)) return;
  user_error(
      "{} is missing: the checkpoint was not copied in full; copy the file from where it is whole, "
      "or point checkpoints/latest to another checkpoint",
      file.string());
}

void check_pieces(Communicator& group, const fs::path& path, const Json& pieces,
                  std::size_t& turn) {
  const MappedFile file(path);
  std::uint64_t end = 0;
  for (const Json& piece : pieces) {
    const auto offset = piece.at(0).get<std::uint64_t>(), bytes = piece.at(1).get<std::uint64_t>();
    if (offset != end || bytes > file.bytes().size() - offset)
      damaged(path, "is not as long as its checksums say");
    end = offset + bytes;
    const bool ours =
        turn++ % static_cast<std::size_t>(group.size()) == static_cast<std::size_t>(group.rank());
    if (ours &&
        hex64(hash64(file.bytes().data() + offset, bytes)) != piece.at(2).get<std::string>())
      damaged(path, "does not match its checksum");
  }
  if (end != file.bytes().size()) damaged(path, "is not as long as its checksums say");
}

}  // namespace

void verify_files(Communicator& group, const fs::path& directory) {
  together(group, [&] {
    const fs::path list = directory / "checksums.json";
    check_exists(list);
    try {
      const Json checksums = Json::parse(read_text_file(list));
      if (checksums.at("algorithm").get<std::string>() != kAlgorithm)
        damaged(list, "names another algorithm");
      std::size_t turn = 0;
      for (const auto& [name, expected] : checksums.at("files").items()) {
        check_exists(directory / name);
        const MappedFile file(directory / name);
        if (hex64(hash64(file.bytes().data(), file.bytes().size())) != expected.get<std::string>())
          damaged(directory / name, "does not match its checksum");
      }
      for (const auto& [name, pieces] : checksums.at("pieces").items()) {
        check_exists(directory / name);
        check_pieces(group, directory / name, pieces, turn);
      }
    } catch (const nlohmann::json::exception&) {
      damaged(list, "is no list of checksums");
    }
  });
}

}  // namespace kintsugi
