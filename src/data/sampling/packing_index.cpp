#include "data/sampling/packing_index.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "data/sampling/token_stream.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// A set of numbers 0 … limit: bits, and for each 64 words of bits a word that says which of them
// are not zero, and so on.
class NumberSet {
 public:
  explicit NumberSet(std::uint32_t limit) {
    for (std::size_t size = std::size_t{limit} + 1;; size = words(size)) {
      levels_.emplace_back(words(size), 0);
      if (words(size) == 1) break;
    }
  }
  void insert(std::size_t number) {
    for (auto& level : levels_) {
      level[number / 64] |= bit(number);
      number /= 64;
    }
  }
  void erase(std::size_t number) {
    for (auto& level : levels_) {
      level[number / 64] &= ~bit(number);
      if (level[number / 64] != 0) return;
      number /= 64;
    }
  }
  // The smallest number that is not below this one.
  std::optional<std::uint32_t> next(std::size_t number) const {
    for (std::size_t at = 0; at < levels_.size(); ++at) {
      if (number / 64 >= levels_[at].size()) return std::nullopt;
      const std::uint64_t rest = levels_[at][number / 64] & ~(bit(number) - 1);
      if (rest != 0) return smallest_below(at, number / 64 * 64 + lowest(rest));
      number = number / 64 + 1;
    }
    return std::nullopt;
  }

 private:
  static std::size_t words(std::size_t bits) { return (bits + 63) / 64; }
  static std::uint64_t bit(std::size_t number) { return std::uint64_t{1} << (number % 64); }
  static std::size_t lowest(std::uint64_t word) {
    return static_cast<std::size_t>(std::countr_zero(word));
  }
  std::uint32_t smallest_below(std::size_t level, std::size_t number) const {
    for (; level > 0; --level) number = number * 64 + lowest(levels_[level - 1][number]);
    return static_cast<std::uint32_t>(number);
  }

  std::vector<std::vector<std::uint64_t>> levels_;
};

// The bins that are not full, by their room: for each room a queue of bins.
class OpenBins {
 public:
  explicit OpenBins(std::uint32_t capacity)
      : rooms_(capacity), oldest_(capacity + 1, kNone), newest_(capacity + 1, kNone) {}

  // Puts an item into the bin with the least room that is enough. Returns the bin.
  std::uint32_t place(std::uint32_t size, std::uint32_t capacity) {
    std::uint32_t room = capacity, bin;
    if (const auto found = rooms_.next(size)) {
      room = *found;
      bin = oldest_[room];
      oldest_[room] = next_[bin];
      if (oldest_[room] == kNone) rooms_.erase(room);
    } else {
      bin = static_cast<std::uint32_t>(next_.size());
      next_.push_back(kNone);
    }
    if (room > size) add(bin, room - size);
    return bin;
  }
  std::size_t bins() const { return next_.size(); }

 private:
  void add(std::uint32_t bin, std::uint32_t room) {
    next_[bin] = kNone;
    (oldest_[room] == kNone ? oldest_[room] : next_[newest_[room]]) = bin;
    newest_[room] = bin;
    rooms_.insert(room);
  }

  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  NumberSet rooms_;                             // the rooms that some bin has
  std::vector<std::uint32_t> oldest_, newest_;  // of each room: the ends of its queue
  std::vector<std::uint32_t> next_;             // of each bin: the one behind it in its queue
};

// The items in the order of their keys; equal keys keep the order of the items.
std::vector<std::uint32_t> sorted_by(std::span<const std::uint32_t> keys, std::size_t limit,
                                     std::vector<std::uint32_t>& ends) {
  ends.assign(limit + 1, 0);
  for (const std::uint32_t key : keys) ++ends[key];
  std::uint32_t sum = 0;
  for (std::uint32_t& end : ends) sum += std::exchange(end, sum);
  std::vector<std::uint32_t> items(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    items[ends[keys[i]]++] = static_cast<std::uint32_t>(i);
  return items;
}

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kPackingMagic = 0x32676E696B636170;  // "packing2"
constexpr std::size_t kEndBytes = 4, kPieceBytes = 12;       // of a sample, of a piece
// More threads would need more memory (about 50 MB each), and the disk would not keep up.
constexpr unsigned kPackingThreads = 8;

// The last bytes of the file.
struct Footer {
  std::uint64_t fingerprint = 0;
  std::uint64_t samples = 0, tokens = 0, whole = 0, cut = 0;
  std::uint64_t blocks = 0;
  std::uint64_t content = 0;   // hash of the file before the footer
  std::uint64_t own_hash = 0;  // hash of the fields above
  std::uint64_t magic = kPackingMagic;

  std::uint64_t hash() const { return hash64(this, offsetof(Footer, own_hash)); }
};

template <class T>
T load_from(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void store_to(std::vector<std::byte>& bytes, T value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

struct PackedBlock {
  std::vector<std::byte> bytes;
  std::uint64_t samples = 0;
};

Bins bins_of(const std::vector<DocumentPieces::Piece>& pieces, std::int64_t length,
             PackingRule rule) {
  if (rule == PackingRule::Single) {
    Bins bins;
    for (std::uint32_t i = 0; i < pieces.size(); ++i) {
      bins.items.push_back(i);
      bins.ends.push_back(i + 1);
    }
    return bins;
  }
  std::vector<std::uint32_t> sizes(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) sizes[i] = pieces[i].tokens;
  return best_fit_decreasing(sizes, static_cast<std::uint32_t>(length));
}

PackedBlock pack_block(const std::vector<DocumentPieces::Piece>& pieces, std::int64_t length,
                       PackingRule rule) {
  const Bins bins = bins_of(pieces, length, rule);
  PackedBlock packed{.bytes = {}, .samples = bins.ends.size()};
  packed.bytes.reserve(bins.ends.size() * kEndBytes + pieces.size() * kPieceBytes);
  for (const std::uint32_t end : bins.ends) store_to(packed.bytes, end);
  for (const std::uint32_t item : bins.items) {
    const DocumentPieces::Piece& piece = pieces[item];
    store_to(packed.bytes, static_cast<std::uint64_t>(piece.first));
    store_to(packed.bytes, piece.tokens + (piece.continues ? 1 : 0));
  }
  return packed;
}

std::vector<DocumentPieces::Piece> next_block(DocumentPieces& documents, std::int64_t block) {
  std::vector<DocumentPieces::Piece> pieces;
  DocumentPieces::Piece piece;
  while (std::ssize(pieces) < block && documents.next(piece)) pieces.push_back(piece);
  return pieces;
}

// Removes what killed jobs left behind: nobody has written to it for an hour.
void remove_old_temporaries(const fs::path& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (entry.path().extension() == ".tmp" &&
        fs::file_time_type::clock::now() - entry.last_write_time(ignored) > std::chrono::hours(1))
      fs::remove(entry.path(), ignored);
}

// Writes the file in one go and hashes what it writes.
class PackingWriter {
 public:
  explicit PackingWriter(const fs::path& path) : file_(path) {}

  void add(const PackedBlock& block) {
    table_.push_back(written_);
    table_.push_back(footer_.samples);
    footer_.samples += block.samples;
    footer_.blocks += 1;
    write(block.bytes.data(), block.bytes.size());
  }
  void finish(std::uint64_t fingerprint, const TokenStream& stream, const DocumentPieces& all) {
    write(table_.data(), table_.size() * sizeof(table_[0]));
    footer_.fingerprint = fingerprint;
    footer_.tokens = static_cast<std::uint64_t>(stream.tokens());
    footer_.whole = static_cast<std::uint64_t>(all.whole());
    footer_.cut = static_cast<std::uint64_t>(all.cut());
    footer_.content = hash_.digest();
    footer_.own_hash = footer_.hash();
    file_.write(&footer_, sizeof(footer_));
    file_.close();
  }

 private:
  void write(const void* data, std::size_t bytes) {
    file_.write(data, bytes);
    hash_.update(data, bytes);
    written_ += bytes;
  }
  FileWriter file_;
  StreamHash hash_;
  std::uint64_t written_ = 0;
  std::vector<std::uint64_t> table_;
  Footer footer_;
};

void write_packing(const fs::path& path, const TokenStream& stream, std::int64_t length,
                   std::int64_t block, PackingRule rule) {
  PackingWriter writer(path);
  DocumentPieces documents(stream, length);
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kPackingThreads);
  for (bool more = true; more;) {
    std::vector<std::future<PackedBlock>> packed;
    while (more && packed.size() < threads) {
      auto pieces = next_block(documents, block);
      more = std::ssize(pieces) == block;
      if (pieces.empty()) break;
      packed.push_back(std::async(std::launch::async, [pieces = std::move(pieces), length, rule] {
        return pack_block(pieces, length, rule);
      }));
    }
    for (auto& one : packed) writer.add(one.get());
  }
  writer.finish(PackingIndex::fingerprint(stream, length, block, rule), stream, documents);
}

}  // namespace

Bins best_fit_decreasing(std::span<const std::uint32_t> sizes, std::uint32_t capacity) {
  std::vector<std::uint32_t> smaller(sizes.size());  // capacity - size: the largest item first
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    KINTSUGI_CHECK(sizes[i] > 0 && sizes[i] <= capacity, "an item of {} in bins of {}", sizes[i],
                   capacity);
    smaller[i] = capacity - sizes[i];
  }
  if (sizes.empty()) return {};
  Bins bins;
  const std::vector<std::uint32_t> placed = sorted_by(smaller, capacity, bins.ends);
  OpenBins open(capacity);
  std::vector<std::uint32_t> bin_of(sizes.size());  // of the items in the order of placement
  for (std::size_t i = 0; i < placed.size(); ++i)
    bin_of[i] = open.place(sizes[placed[i]], capacity);
  bins.items = sorted_by(bin_of, open.bins() - 1, bins.ends);
  for (std::uint32_t& item : bins.items) item = placed[item];
  return bins;
}

std::uint64_t PackingIndex::fingerprint(const TokenStream& stream, std::int64_t length,
                                        std::int64_t block, PackingRule rule) {
  StreamHash hash;
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  add(kPackingMagic);
  add(length);
  add(block);
  add(rule);
  add_parts(stream, hash);
  return hash.digest();
}

void PackingIndex::build(const fs::path& path, const TokenStream& stream, std::int64_t length,
                         std::int64_t block, PackingRule rule) {
  KINTSUGI_CHECK(length > 0 && length <= kMaxPackedLength, "samples of {} tokens", length);
  const fs::path directory = fs::absolute(path).parent_path();
  std::error_code problem;
  fs::create_directories(directory, problem);
  if (problem) failure("cannot create {}: {}", directory.string(), problem.message());
  remove_old_temporaries(directory);
  // Several ranks of a job may write at once, each its own file with the same content.
  static std::atomic<int> number = 0;
  fs::path temporary = path;
  temporary += fmt::format(".{}-{}-{:08x}.tmp", ::getpid(), number++, std::random_device{}());
  try {
    write_packing(temporary, stream, length, block, rule);
    fs::rename(temporary, path, problem);
    if (problem) failure("cannot rename {}: {}", temporary.string(), problem.message());
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_directory(directory);
}

std::optional<PackingIndex> PackingIndex::open(const fs::path& path, const TokenStream& stream,
                                               std::int64_t length, bool verify, std::int64_t block,
                                               PackingRule rule) {
  if (!fs::exists(path)) return std::nullopt;
  PackingIndex index(MappedFile(path), path, length);
  if (!index.read_footer(fingerprint(stream, length, block, rule))) return std::nullopt;
  if (index.summary_.tokens != stream.tokens()) return std::nullopt;
  if (!verify) return index;
  const auto bytes = index.file_.bytes();
  const std::uint64_t hash = hash64(bytes.data(), bytes.size() - sizeof(Footer));
  index.file_.check_intact();
  if (hash != load_from<Footer>(bytes, bytes.size() - sizeof(Footer)).content) return std::nullopt;
  return index;
}

PackingIndex PackingIndex::in_memory(const TokenStream& stream, std::int64_t length,
                                     PackingRule rule) {
  // Writers and mappings open the memory by a path, as they do a file.
  const int memory = ::memfd_create("packing", MFD_CLOEXEC);
  if (memory < 0) failure("cannot allocate memory for a packing: {}", std::strerror(errno));
  const auto close = [](const int* descriptor) { ::close(*descriptor); };
  const std::unique_ptr<const int, decltype(close)> closed(&memory, close);
  const fs::path path = fmt::format("/proc/self/fd/{}", memory);
  write_packing(path, stream, length, kPackedBlock, rule);
  auto index = open(path, stream, length, false, kPackedBlock, rule);
  KINTSUGI_CHECK(index.has_value(), "a packing of {} tokens in memory", stream.tokens());
  return std::move(*index);
}

bool PackingIndex::read_footer(std::uint64_t fingerprint) {
  const auto bytes = file_.bytes();
  if (bytes.size() < sizeof(Footer)) return false;
  const std::size_t room = bytes.size() - sizeof(Footer);
  const auto footer = load_from<Footer>(bytes, room);
  file_.check_intact();
  if (footer.magic != kPackingMagic || footer.own_hash != footer.hash()) return false;
  if (footer.fingerprint != fingerprint) return false;
  content_ = footer.own_hash;
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 62;
  for (const std::uint64_t count : {footer.samples, footer.tokens, footer.whole, footer.cut})
    if (count >= kLimit) return false;
  summary_ = {.samples = static_cast<std::int64_t>(footer.samples),
              .tokens = static_cast<std::int64_t>(footer.tokens),
              .whole = static_cast<std::int64_t>(footer.whole),
              .cut = static_cast<std::int64_t>(footer.cut)};
  if (footer.blocks == 0 || footer.blocks > room / sizeof(Block)) return false;
  return read_blocks(footer.blocks, room - footer.blocks * sizeof(Block));
}

bool PackingIndex::read_blocks(std::uint64_t count, std::uint64_t offset) {
  blocks_.resize(count);
  std::memcpy(blocks_.data(), file_.bytes().data() + offset, count * sizeof(Block));
  file_.check_intact();
  blocks_.push_back({offset, static_cast<std::uint64_t>(summary_.samples)});
  if (blocks_.front().offset != 0 || blocks_.front().first_sample != 0) return false;
  for (std::size_t b = 0; b + 1 < blocks_.size(); ++b) {
    const Block &one = blocks_[b], &next = blocks_[b + 1];
    if (next.offset <= one.offset || next.offset > offset) return false;
    if (next.first_sample <= one.first_sample) return false;
    const std::uint64_t samples = next.first_sample - one.first_sample;
    if (samples > (next.offset - one.offset) / (kEndBytes + kPieceBytes)) return false;
  }
  return true;
}

void PackingIndex::fail_at(std::int64_t sample) const {
  user_error("{}: the entries of sample {} are damaged: delete the file, it is made again",
             path_.string(), sample);
}

void PackingIndex::locate(std::int64_t sample, const TokenStream& stream,
                          std::vector<TokenRange>& ranges) const {
  KINTSUGI_CHECK(sample >= 0 && sample < summary_.samples, "sample {} of {}", sample,
                 summary_.samples);
  const auto number = static_cast<std::uint64_t>(sample);
  const auto next = std::upper_bound(
      blocks_.begin(), blocks_.end(), number,
      [](std::uint64_t wanted, const Block& block) { return wanted < block.first_sample; });
  const Block& block = *std::prev(next);
  const auto bytes = file_.bytes().subspan(block.offset, next->offset - block.offset);
  const std::size_t ends = (next->first_sample - block.first_sample) * kEndBytes;
  const std::size_t at = (number - block.first_sample) * kEndBytes;
  const std::size_t begin = at == 0 ? 0 : load_from<std::uint32_t>(bytes, at - kEndBytes);
  const std::size_t end = load_from<std::uint32_t>(bytes, at);
  if (begin >= end || end > (bytes.size() - ends) / kPieceBytes) fail_at(sample);
  std::int64_t left = length_ + 1;
  for (std::size_t piece = begin; piece < end; ++piece) {
    const auto first = load_from<std::uint64_t>(bytes, ends + piece * kPieceBytes);
    const std::int64_t count = load_from<std::uint32_t>(bytes, ends + piece * kPieceBytes + 8);
    left -= count;
    // Only a sample of one piece has a token that is just a target.
    if (count == 0 || left < (end - begin > 1 ? 1 : 0)) fail_at(sample);
    if (count > stream.tokens() || first > static_cast<std::uint64_t>(stream.tokens() - count))
      fail_at(sample);
    stream.locate(static_cast<std::int64_t>(first), count, ranges);
  }
  file_.check_intact();
}

}  // namespace kintsugi
