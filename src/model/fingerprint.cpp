#include "model/fingerprint.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/file.h"
#include "core/hash.h"
#include "model/checksums.h"
#include "tensor/host_buffers.h"

namespace kintsugi {
namespace fs = std::filesystem;
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
  std::sort(names.begin(), names.end());  // the same for any division into files
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
  const auto first = static_cast<std::size_t>(
      std::find(identities.begin(), identities.end(), identity[0]) - identities.begin());
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
  return std::all_of(samples.begin(), samples.end(), [&](const Sample& sample) {
    return std::memcmp(x.data() + sample.offset, y.data() + sample.offset, sample.bytes) == 0;
  });
}

}  // namespace kintsugi
