#include "model/files/fingerprint.h"

#include <fmt/ranges.h>
#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "tensor/arena.h"

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

namespace {

constexpr std::size_t kBlock = 8 << 10, kBlocks = 8;  // of a tensor
constexpr std::size_t kWhole = kBlock * kBlocks;      // smaller tensors are hashed whole
constexpr std::size_t kSamplers = 8;      // reads wait for the disk, not for a processor
constexpr std::size_t kForASampler = 64;  // reads; fewer are not worth a thread
const std::string kVersion = "2";

// Bytes [offset, offset + bytes) of a tensor.
struct Sample {
  std::uint64_t offset;
  std::size_t bytes;
};

std::vector<Sample> samples_of(std::uint64_t bytes) {
  if (bytes <= kWhole) return {{0, static_cast<std::size_t>(bytes)}};
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < kBlocks; ++i)
    samples.push_back({(bytes - kBlock) / (kBlocks - 1) * i, kBlock});
  samples.back().offset = bytes - kBlock;
  return samples;
}

// The name, type and shape of a tensor, on a line.
std::string description_of(const SafetensorsEntry& entry) {
  return fmt::format("{} {} {}\n", entry.name, entry.dtype_name, fmt::join(entry.shape, " "));
}

struct Read {
  const FileReader* file;
  std::uint64_t offset;
  std::size_t bytes;
};

// The hashes of what is read, in the order of the reads.
std::vector<std::uint64_t> hashes_of(const std::vector<Read>& reads) {
  std::vector<std::uint64_t> hashes(reads.size());
  const std::size_t count = std::clamp<std::size_t>(reads.size() / kForASampler, 1, kSamplers);
  CountedMemory memory;
  const HostBuffers buffers(memory, count, kWhole + FileReader::kSlack);
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](std::size_t thread) {
    try {
      for (std::size_t i = next++; i < reads.size(); i = next++)
        hashes[i] = hash64(reads[i].file->read(reads[i].offset, reads[i].bytes, buffers[thread]),
                           reads[i].bytes);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < count; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return hashes;
}

std::uint64_t sampled_hash(const SafetensorsModel& files) {
  std::vector<std::string> names = files.names();
  std::ranges::sort(names);  // the same for any division into files
  std::map<fs::path, std::unique_ptr<FileReader>> readers;
  std::vector<Read> reads;
  StreamHash hash;
  for (const std::string& name : names) {
    const SafetensorsModel::Location found = files.find(name);
    const std::string text = description_of(*found.entry);
    hash.update(text.data(), text.size());
    std::unique_ptr<FileReader>& reader = readers[found.file->path()];
    if (!reader) reader = std::make_unique<FileReader>(found.file->path());
    for (const Sample& sample : samples_of(found.entry->end - found.entry->begin))
      reads.push_back(
          {reader.get(), found.file->offset(*found.entry) + sample.offset, sample.bytes});
  }
  const std::vector<std::uint64_t> hashes = hashes_of(reads);
  hash.update(hashes.data(), hashes.size() * sizeof(hashes[0]));
  return hash.digest();
}

// The hash of older versions.
std::string old_fingerprint(const SafetensorsModel& files) {
  StreamHash hash;
  for (const std::string& name : files.names()) {
    const SafetensorsModel::Location found = files.find(name);
    const std::string text = description_of(*found.entry);
    hash.update(text.data(), text.size());
    if (const auto bytes = found.bytes(); bytes.size() <= kWhole)
      hash.update(bytes.data(), bytes.size());
  }
  return hex64(hash.digest());
}

// Equal on ranks that see the same files on the same node.
std::int64_t identity_of(const SafetensorsModel& files) {
  std::vector<fs::path> paths = {directory_of(files) / kChecksums};
  for (const SafetensorsFile& file : files.files()) paths.push_back(file.path());
  std::string text = node_name();
  for (const fs::path& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) status = {};  // it has no checksums
    text += fmt::format(" {}:{}:{}:{}.{}", status.st_dev, status.st_ino, status.st_size,
                        status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return static_cast<std::int64_t>(hash64(text));
}

template <std::size_t N>
std::vector<std::int64_t> gathered(Communicator& group, const std::int64_t (&own)[N]) {
  constexpr auto count = static_cast<std::int64_t>(N);
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()) * N);
  group.wait(group.all_gather(Tensor(all.data(), DType::I64, {group.size() * count}),
                              Tensor(const_cast<std::int64_t*>(own), DType::I64, {count})));
  return all;
}

}  // namespace

fs::path directory_of(const SafetensorsModel& files) {
  return files.files().front().path().parent_path();
}

std::string WeightsFingerprint::text() const {
  const std::string sampled_text = fmt::format("{}-{}", kVersion, hex64(sampled));
  if (ranges == 0) return sampled_text;
  return fmt::format("{}-{}-{}", sampled_text, hex64(ranges), hex64(checksums));
}

WeightsFingerprint fingerprint_of(const SafetensorsModel& files) {
  WeightsFingerprint fingerprint{.sampled = sampled_hash(files)};
  const std::optional<Checksums> listed = read_checksums(directory_of(files));
  if (!listed) return fingerprint;
  std::string ranges, hashes;
  for (const SafetensorsFile& file : files.files()) {
    const std::string name = file.path().filename().string();
    const auto found = listed->tensors.find(name);
    if (found == listed->tensors.end()) return fingerprint;
    ranges += name + "\n";
    for (const Checksums::Range& range : found->second) {
      ranges += fmt::format("{} {}\n", range.offset, range.bytes);
      hashes += range.hash + "\n";
    }
  }
  fingerprint.ranges = hash64(ranges);
  fingerprint.checksums = hash64(hashes);
  return fingerprint;
}

WeightsFingerprint shared_fingerprint(Communicator& group, const SafetensorsModel& files) {
  std::int64_t identity[1] = {0};
  together(group, [&] { identity[0] = identity_of(files); });
  const std::vector<std::int64_t> identities = gathered(group, identity);
  const auto first =
      static_cast<std::size_t>(std::ranges::find(identities, identity[0]) - identities.begin());
  WeightsFingerprint own;
  together(group, [&] {
    if (static_cast<int>(first) == group.rank()) own = fingerprint_of(files);
  });
  const std::vector<std::int64_t> all = gathered(
      group, {static_cast<std::int64_t>(own.sampled), static_cast<std::int64_t>(own.ranges),
              static_cast<std::int64_t>(own.checksums)});
  const auto number = [&](std::size_t i) { return static_cast<std::uint64_t>(all[3 * first + i]); };
  return {number(0), number(1), number(2)};
}

bool is_old_fingerprint(const std::string& recorded) {
  return recorded.find('-') == std::string::npos;
}

bool is_same_model(const std::string& recorded, const WeightsFingerprint& current,
                   const SafetensorsModel& files) {
  if (is_old_fingerprint(recorded)) return recorded == old_fingerprint(files);
  const WeightsFingerprint sampled{.sampled = current.sampled};
  const std::string begin = sampled.text();
  if (!recorded.starts_with(begin)) return false;
  const std::string rest = recorded.substr(begin.size()),
                    ranges = "-" + hex64(current.ranges) + "-";
  if (!rest.starts_with(ranges)) return true;  // one of them has no checksums, or of other ranges
  return rest == ranges + hex64(current.checksums);
}

bool has_same_samples(const SafetensorsModel::Location& a, const SafetensorsModel::Location& b) {
  if (a.entry->dtype_name != b.entry->dtype_name || a.entry->shape != b.entry->shape) return false;
  const std::span<const std::byte> x = a.bytes(), y = b.bytes();
  if (x.size() != y.size()) return false;
  const std::vector<Sample> samples = samples_of(x.size());
  return std::ranges::all_of(samples, [&](const Sample& sample) {
    return std::memcmp(x.data() + sample.offset, y.data() + sample.offset, sample.bytes) == 0;
  });
}

}  // namespace kintsugi
