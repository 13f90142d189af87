#include "model/files/file_loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.h"
#include "tensor/arena.h"

namespace kintsugi {
namespace {

constexpr std::size_t kChunk = std::size_t{8} << 20;  // bytes read at once
constexpr std::uint64_t kGap = 64 << 10;  // shorter gaps between ranges are read and dropped
constexpr std::size_t kThreads = 8;       // that read files
constexpr std::size_t kBuffers = 16;
constexpr std::size_t kInFlight = 4;  // chunks that the device still copies from

// Converts elements in host memory. The source may be unaligned.
void convert(const std::byte* from, DType stored, std::byte* to, DType dtype, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  if (stored == dtype) {
    std::memcpy(to, from, n * size_of(stored));
    return;
  }
  visit_float(stored, [&]<class S>() {
    visit_float(dtype, [&]<class D>() {
      for (std::size_t i = 0; i < n; ++i) {
        S value;
        std::memcpy(&value, from + i * sizeof(S), sizeof(S));
        reinterpret_cast<D*>(to)[i] = static_cast<D>(
            static_cast<Accumulator<D>>(static_cast<double>(static_cast<Accumulator<S>>(value))));
      }
    });
  });
}

}  // namespace

int FileLoader::open(const std::filesystem::path& path) {
  const auto [found, is_new] = by_path_.emplace(path, static_cast<int>(files_.size()));
  if (is_new) files_.push_back({std::make_unique<FileReader>(path), {}, {}});
  return found->second;
}

void FileLoader::load(int file, std::uint64_t offset, DType stored, const Tensor& destination) {
  KINTSUGI_CHECK(backend_ != nullptr, "a loader without a device");
  KINTSUGI_CHECK(destination.contiguous(), "a file's elements for a strided tensor");
  if (destination.elements() == 0) return;
  files_[file].targets.push_back({offset, static_cast<std::byte*>(destination.data()),
                                  destination.elements(), stored, destination.dtype(),
                                  backend_->is_on_host(destination)});
}

void FileLoader::verify(int file, std::uint64_t offset, std::uint64_t bytes, std::string hash,
                        Damaged damaged) {
  files_[file].hashed.push_back(
      {offset, bytes, std::move(hash), damaged, std::make_unique<StreamHash>()});
}

void FileLoader::forget_loads() {
  for (File& file : files_) file.targets.clear();
}

// ---- dividing files into chunks

void FileLoader::split_file(std::size_t index, std::vector<Chunk>& chunks) {
  File& file = files_[index];
  std::ranges::stable_sort(file.targets,
                           [](const Target& a, const Target& b) { return a.offset < b.offset; });
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;  // [begin, end)
  for (const Target& target : file.targets) spans.emplace_back(target.offset, target.end());
  for (const HashedRange& range : file.hashed)
    if (range.bytes > 0) spans.emplace_back(range.offset, range.offset + range.bytes);
  std::ranges::sort(spans);
  std::size_t joined = 0;
  for (std::size_t i = 1; i < spans.size(); ++i)
    if (spans[i].first <= spans[joined].second + kGap)
      spans[joined].second = std::max(spans[joined].second, spans[i].second);
    else
      spans[++joined] = spans[i];
  if (!spans.empty()) spans.resize(joined + 1);
  // Moves a bound to the start of an element. Targets that overlap belong to one tensor.
  const auto between_elements = [&](std::uint64_t at) {
    const auto after =
        std::upper_bound(file.targets.begin(), file.targets.end(), at,
                         [](std::uint64_t at, const Target& target) { return at < target.offset; });
    if (after == file.targets.begin()) return at;
    const Target& before = *std::prev(after);
    return at - (at - before.offset) % size_of(before.stored);
  };
  for (const auto& [begin, end] : spans)
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t bound = (at / kChunk + 1) * kChunk;
      std::uint64_t next = bound >= end ? end : between_elements(bound);
      if (next <= at) next = bound + kChunk >= end ? end : between_elements(bound + kChunk);
      chunks.push_back({index, at, static_cast<std::size_t>(next - at), {}});
      at = next;
    }
}

std::vector<FileLoader::Chunk> FileLoader::chunks() {
  std::vector<Chunk> all;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    const std::size_t first = all.size();
    split_file(file, all);
    for (const Target& target : files_[file].targets) {
      auto chunk = std::upper_bound(
          all.begin() + static_cast<std::ptrdiff_t>(first), all.end(), target.offset,
          [](std::uint64_t offset, const Chunk& chunk) { return offset < chunk.offset; });
      for (--chunk; chunk != all.end() && chunk->offset < target.end(); ++chunk) {
        const std::uint64_t begin = std::max(target.offset, chunk->offset),
                            end = std::min(target.end(), chunk->offset + chunk->bytes),
                            size = size_of(target.stored);
        Target part = target;
        part.offset = begin - chunk->offset;
        part.destination += (begin - target.offset) / size * size_of(target.dtype);
        part.elements = static_cast<std::int64_t>((end - begin) / size);
        if (part.elements > 0) chunk->targets.push_back(part);
      }
    }
  }
  return all;
}

void FileLoader::hash(const Chunk& chunk, const std::byte* bytes) {
  File& file = files_[chunk.file];
  const std::uint64_t chunk_end = chunk.offset + chunk.bytes;
  for (HashedRange& range : file.hashed) {
    const std::uint64_t range_end = range.offset + range.bytes,
                        begin = std::max(chunk.offset, range.offset),
                        end = std::min(chunk_end, range_end);
    if (begin >= end) continue;
    range.hash->update(bytes + (begin - chunk.offset), static_cast<std::size_t>(end - begin));
    if (end == range_end && hex64(range.hash->digest()) != range.expected)
      range.damaged(file.reader->path());
  }
}

// ---- the threads

// Chunk i uses buffer i % kBuffers. Threads fill buffers; the calling thread empties them in order.
class FileLoader::Reader {
 public:
  Reader(FileLoader& loader, std::vector<Chunk> chunks)
      : loader_(loader),
        backend_(loader.backend_),
        chunks_(std::move(chunks)),
        largest_(largest(chunks_)),
        buffers_(*loader.memory_, std::min(kBuffers, chunks_.size()),
                 largest_ + FileReader::kSlack),
        states_(chunks_.size()) {}
  ~Reader() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    try {
      while (!in_flight_.empty()) release_oldest();
    } catch (...) {
      // The device has failed; the exception in flight reports it.
    }
    if (scratch_ != nullptr) backend_->release(scratch_, largest_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void all(const ProgressCall& progress) {
    std::int64_t done = 0, total = 0;
    for (const Chunk& chunk : chunks_) total += static_cast<std::int64_t>(chunk.bytes);
    for (std::size_t i = 0; i < std::min(kThreads, chunks_.size()); ++i)
      threads_.emplace_back([this] { read_chunks(); });
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      std::byte* const bytes = wait_for(i);
      loader_.hash(chunks_[i], bytes);
      in_flight_.push_back(send(chunks_[i], bytes));
      while (in_flight_.size() > kInFlight || (!in_flight_.empty() && in_flight_.front().empty()))
        release_oldest();
      done += static_cast<std::int64_t>(chunks_[i].bytes);
      if (progress) progress(done, total);
    }
    while (!in_flight_.empty()) release_oldest();
  }

 private:
  using Transfers = std::vector<Backend::Transfer>;
  struct State {
    std::byte* bytes = nullptr;  // once it is read
    std::exception_ptr error = nullptr;
  };

  static std::size_t largest(const std::vector<Chunk>& chunks) {
    std::size_t most = 0;
    for (const Chunk& chunk : chunks) most = std::max(most, chunk.bytes);
    return most;
  }

  void read_chunks() {
    while (true) {
      std::size_t i = 0;
      {
        std::unique_lock lock(mutex_);
        i = next_++;
        changed_.wait(
            lock, [&] { return stop_ || i >= chunks_.size() || i < released_ + buffers_.count(); });
        if (stop_ || i >= chunks_.size()) return;
      }
      State state;
      try {
        state.bytes = read(chunks_[i], buffers_[i % buffers_.count()]);
      } catch (...) {
        state.error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        states_[i] = state;
      }
      changed_.notify_all();
    }
  }

  std::byte* read(const Chunk& chunk, std::byte* buffer) const {
    std::byte* const bytes =
        loader_.files_[chunk.file].reader->read(chunk.offset, chunk.bytes, buffer);
    for (const Target& target : chunk.targets)
      if (target.on_host)
        convert(bytes + target.offset, target.stored, target.destination, target.dtype,
                target.elements);
    return bytes;
  }

  std::byte* wait_for(std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return states_[i].bytes != nullptr || states_[i].error; });
    if (states_[i].error) std::rethrow_exception(states_[i].error);
    return states_[i].bytes;
  }

  // Copies to the device. Ranges that are adjacent on the device are moved together first and take
  // one copy.
  Transfers send(const Chunk& chunk, std::byte* bytes) {
    const std::vector<Target>& targets = chunk.targets;
    const bool apart =  // bytes that two tensors load must not be moved
        std::ranges::adjacent_find(targets, [](const Target& a, const Target& b) {
          return b.offset < a.end();
        }) == targets.end();
    Transfers transfers;
    for (std::size_t i = 0; i < targets.size();) {
      Target all = targets[i++];
      if (all.on_host) continue;
      const std::size_t size = size_of(all.stored);
      for (; apart && i < targets.size() && continues(all, targets[i]); ++i) {
        std::memmove(bytes + all.end(), bytes + targets[i].offset,
                     static_cast<std::size_t>(targets[i].elements) * size);
        all.elements += targets[i].elements;
      }
      transfer(all, bytes + all.offset, transfers);
    }
    return transfers;
  }

  static bool continues(const Target& before, const Target& next) {
    return !next.on_host && next.stored == before.stored && next.dtype == before.dtype &&
           next.destination == before.destination + static_cast<std::size_t>(before.elements) *
                                                        size_of(before.dtype);
  }

  void transfer(const Target& target, std::byte* bytes, Transfers& transfers) {
    const Tensor host(bytes, target.stored, {target.elements});
    const Tensor device(target.destination, target.dtype, {target.elements});
    if (target.stored == target.dtype) {
      transfers.push_back(backend_->to_device(device, host));
      return;
    }
    if (scratch_ == nullptr) scratch_ = backend_->allocate(largest_);
    const Tensor raw(scratch_, target.stored, {target.elements});
    backend_->wait(backend_->to_device(raw, host));
    backend_->copy(device, raw);
    backend_->synchronize();  // the buffer is free, and so is the scratch memory
  }

  void release_oldest() {
    for (const Backend::Transfer transfer : in_flight_.front()) backend_->finish(transfer);
    in_flight_.pop_front();
    {
      const std::lock_guard lock(mutex_);
      ++released_;
    }
    changed_.notify_all();
  }

  FileLoader& loader_;
  Backend* backend_;  // nullptr: nothing is loaded
  std::vector<Chunk> chunks_;
  std::size_t largest_;  // bytes of a chunk
  HostBuffers buffers_;
  std::vector<State> states_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0, released_ = 0;  // chunks
  bool stop_ = false;
  std::deque<Transfers> in_flight_;  // for the chunks after the released ones
  void* scratch_ = nullptr;          // on the device, for elements that are converted
  std::vector<std::thread> threads_;
};

void FileLoader::run(const ProgressCall& progress) {
  for (File& file : files_)
    for (HashedRange& range : file.hashed)  // empty ranges are in no chunk
      if (range.bytes == 0 && hex64(range.hash->digest()) != range.expected)
        range.damaged(file.reader->path());
  std::vector<Chunk> all = chunks();
  if (!all.empty()) Reader(*this, std::move(all)).all(progress);
  for (File& file : files_) {
    file.targets.clear();
    file.hashed.clear();
  }
}

}  // namespace kintsugi
