#include "train/checkpoint/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <system_error>

#include "comm/exchange.h"
#include "core/error.h"
#include "model/files/fingerprint.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/snapshot.h"

namespace kintsugi {
namespace {

constexpr std::size_t kChunk = std::size_t{8} << 20;  // bytes written at once
constexpr std::size_t kBuffers = 16;
constexpr std::size_t kArriving = 4;  // copies from the device in flight
constexpr int kThreads = 6;           // that write files

class Heap final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override { return ::operator new(bytes); }
  void release(void* address, std::size_t) noexcept override { ::operator delete(address); }
};

Allocator& memory_of(Backend* backend) {
  static Heap heap;
  if (backend != nullptr) return *backend;
  return heap;
}

}  // namespace

WriteQueue::WriteQueue(Backend* backend, std::size_t largest)
    : backend_(backend),
      buffer_bytes_(std::clamp(largest, HostBuffers::kPage, kChunk)),
      buffers_(memory_of(backend), kBuffers, buffer_bytes_) {
  for (std::size_t i = 0; i < kBuffers; ++i) free_.push_back(buffers_[i]);
  try {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { write_jobs(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // fewer threads are enough
  }
}

WriteQueue::~WriteQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  try {
    if (backend_ != nullptr)
      for (const Job& job : arriving_) backend_->finish(job.arriving);
  } catch (...) {
    // The device has failed; the exception in flight reports it.
  }
}

// ---- the caller's thread

void WriteQueue::put(OffsetWriter& file, std::uint64_t offset, StreamHash& hash,
                     const Tensor& elements) {
  KINTSUGI_CHECK(elements.contiguous(), "a strided tensor for a file");
  auto* const from = static_cast<std::byte*>(elements.data());
  const bool on_host = backend_ == nullptr || backend_->is_on_host(elements);
  if (on_host && backend_ != nullptr)
    backend_->synchronize();  // offloaded state may still be in flight
  split({.file = &file,
         .offset = offset,
         .hash = &hash,
         .bytes = elements.bytes(),
         .buffered = !on_host},
        [&](Job& job, std::size_t begin) {
          if (on_host) {
            job.data = from + begin;
            return;
          }
          const Shape shape = {static_cast<std::int64_t>(job.bytes)};
          job.data = free_buffer();
          job.arriving = backend_->to_host(Tensor(job.data, DType::U8, shape),
                                           Tensor(from + begin, DType::U8, shape));
        });
}

void WriteQueue::put_copy(OffsetWriter& file, std::uint64_t offset, StreamHash& hash,
                          const void* data, std::size_t bytes) {
  split({.file = &file, .offset = offset, .hash = &hash, .bytes = bytes},
        [&](Job& job, std::size_t begin) {
          job.data = free_buffer();
          std::memcpy(job.data, static_cast<const std::byte*>(data) + begin, job.bytes);
        });
}

// Splits at multiples of the chunk size in the file, so that most writes are whole pages and
// blocks.
void WriteQueue::split(Job whole, const auto& fetch) {
  for (std::size_t begin = 0; begin < whole.bytes;) {
    Job job = whole;
    job.offset += begin;
    job.bytes =
        std::min<std::size_t>({whole.bytes - begin, kChunk - job.offset % kChunk, buffer_bytes_});
    fetch(job, begin);
    arriving_.push_back(job);
    while (arriving_.size() > kArriving) submit_oldest();
    begin += job.bytes;
  }
}

std::byte* WriteQueue::free_buffer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_.empty() || error_; });
  if (error_) std::rethrow_exception(error_);
  std::byte* const buffer = free_.back();
  free_.pop_back();
  return buffer;
}

// Hashes the buffer while another thread writes it. Only this thread assigns buffers to new jobs.
void WriteQueue::submit_oldest() {
  const Job job = arriving_.front();
  arriving_.pop_front();
  if (backend_ != nullptr) backend_->finish(job.arriving);
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    jobs_.push_back(job);
    ++unwritten_;
  }
  changed_.notify_all();
  job.hash->update(job.data, job.bytes);
}

void WriteQueue::finish() {
  while (!arriving_.empty()) submit_oldest();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return unwritten_ == 0 || error_; });
  if (error_) std::rethrow_exception(error_);
}

// ---- the threads

void WriteQueue::write_jobs() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      job.file->write_at(job.offset, job.data, job.bytes);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    if (job.buffered) free_.push_back(job.data);
    --unwritten_;
    changed_.notify_all();
  }
}

namespace fs = std::filesystem;

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
  std::map<std::string, std::map<std::uint64_t, Checksums::Range>> ranges;
  for (const std::string& lines : gather_texts(group_, local_ranges)) {
    std::istringstream stream(lines);
    std::uint64_t offset = 0, bytes = 0;
    std::string hash, file;
    while (stream >> offset >> bytes >> hash && std::getline(stream >> std::ws, file)) {
      const bool is_new =
          ranges[file].emplace(offset, Checksums::Range{offset, bytes, hash}).second;
      KINTSUGI_CHECK(is_new, "two ranks wrote {} at offset {}", file, offset);
    }
  }
  together(group_, [&] {
    if (!is_first()) return;
    Checksums checksums{hashes_, {}};
    for (const auto& [file, by_offset] : ranges)
      for (const auto& [offset, range] : by_offset) checksums.tensors[file].push_back(range);
    text(kChecksums, write_checksums(checksums));
    for (const auto& entry : fs::directory_iterator(directory_))
      if (entry.is_directory()) sync_directory(entry.path());
    sync_directory(directory_);
  });
}

namespace {

const char* remedy(CheckpointOf owner) {
  return owner == CheckpointOf::OtherRun ? "; copy it again, or name another checkpoint in run.from"
                                         : "";
}

[[noreturn]] void damaged(const fs::path& file, const std::string& what, CheckpointOf owner) {
  damaged_file(file.string(), "{} {}: it is damaged{}", file.string(), what, remedy(owner));
}

void check_exists(const fs::path& file, CheckpointOf owner) {
  std::error_code error;
  if (fs::exists(file, error)) return;
  if (error) failure("cannot read {}: {}", file.string(), error.message());  // it may be intact
  damaged_file(file.string(), "{} is missing: the checkpoint was not copied in full{}",
               file.string(),
               owner == CheckpointOf::OtherRun
                   ? "; copy the file again, or name another checkpoint in run.from"
                   : "");
}

template <CheckpointOf owner>
void does_not_match(const fs::path& file) {
  damaged(file, "does not match its checksum", owner);
}

void check_ranges(Communicator& group, const fs::path& path,
                  const std::vector<Checksums::Range>& ranges, FileLoader& loader,
                  CheckpointOf owner, std::size_t& turn) {
  const int file = loader.open(path);
  if (loader.size(file) != Checksums::size(ranges))
    damaged(path, "does not have the size in checksums.json", owner);
  for (const Checksums::Range& range : ranges)
    if (turn++ % static_cast<std::size_t>(group.size()) == static_cast<std::size_t>(group.rank()))
      loader.verify(file, range.offset, range.bytes, range.hash,
                    owner == CheckpointOf::OtherRun ? does_not_match<CheckpointOf::OtherRun>
                                                    : does_not_match<CheckpointOf::ThisRun>);
}

// Throws DamagedFile if it is no list.
Checksums read_list(const fs::path& directory, CheckpointOf owner) {
  const fs::path list = directory / kChecksums;
  check_exists(list, owner);
  const std::string text = read_text_file(list);
  try {
    return parse_checksums(text, list.string());
  } catch (const UserError& error) {
    damaged_file(list.string(), "{}: it is damaged{}", error.what(), remedy(owner));
  }
}

}  // namespace

void verify_weights(Communicator& group, const fs::path& directory, FileLoader& loader) {
  together(group, [&] { verify_weights(directory, loader, {group.rank(), group.size()}); });
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

bool ranges_match(const fs::path& file, const std::vector<Checksums::Range>& ranges) {
  const MappedFile mapped(file);
  const std::span<const std::byte> bytes = mapped.bytes();
  if (bytes.size() != Checksums::size(ranges)) return false;
  for (const Checksums::Range& range : ranges) {
    const std::string hash = hex64(hash64(bytes.data() + range.offset, range.bytes));
    mapped.check_intact();
    if (hash != range.hash) return false;
  }
  return true;
}

bool text_matches(const fs::path& path, const std::string& expected) {
  const MappedFile file(path);
  const std::string hash = hex64(hash64(file.bytes().data(), file.bytes().size()));
  file.check_intact();
  return hash == expected;
}

bool matches_list(const fs::path& directory, const fs::path& file) {
  const Checksums checksums = read_list(directory, CheckpointOf::ThisRun);
  for (const auto& [name, expected] : checksums.texts) {
    if (directory / name != file) continue;
    check_exists(file, CheckpointOf::ThisRun);
    return text_matches(file, expected);
  }
  for (const auto& [name, ranges] : checksums.tensors) {
    if (directory / name != file) continue;
    check_exists(file, CheckpointOf::ThisRun);
    return ranges_match(file, ranges);
  }
  return true;
}

}  // namespace

bool is_still_damaged(const fs::path& checkpoint, const fs::path& file) {
  const fs::path model = fs::canonical(checkpoint), state = state_directory(model);
  if (!what_is_missing({model.parent_path(), model.filename().string()}).empty()) return true;
  bool good = true;
  without_mistakes(CheckpointOf::ThisRun, [&] {
    try {
      for (const fs::path& directory : {model, model / kAverage, state})
        if (good && fs::exists(directory)) good = matches_list(directory, file);
    } catch (const DamagedFile&) {
      good = false;  // a file is missing, or the list is no list
    }
  });
  return !good;
}

void verify_files(Communicator& group, const fs::path& directory, FileLoader& loader,
                  CheckpointOf owner) {
  const auto verify = [&] {
    const Checksums checksums = read_list(directory, owner);
    for (const auto& [name, expected] : checksums.texts) {
      check_exists(directory / name, owner);
      if (!text_matches(directory / name, expected))
        damaged(directory / name, "does not match its checksum", owner);
    }
    std::size_t turn = 0;
    for (const auto& [name, ranges] : checksums.tensors) {
      check_exists(directory / name, owner);
      check_ranges(group, directory / name, ranges, loader, owner, turn);
    }
  };
  together(group, [&] { without_mistakes(owner, verify); });
}

}  // namespace kintsugi
