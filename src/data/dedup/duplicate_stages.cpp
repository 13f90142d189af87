// Pairs, clusters and the second reading of the documents.
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>

#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/dedup/dedup_directory.h"
#include "data/dedup/sorted_records.h"
#include "data/provenance/file_hashes.h"
#include "data/provenance/origins.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = DedupDirectory::Json;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

std::uint64_t from_hex(const Json& text) {
  return std::stoull(text.get<std::string>(), nullptr, 16);
}

// A new file of numbers with 4 bytes each, and their checksum.
class NumberFile {
 public:
  explicit NumberFile(const fs::path& path) : file_(path) {}

  void write(std::span<const std::uint32_t> numbers) {
    block_.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
    if (block_.size() >= kBlockBytes) flush();
  }
  std::string publish() {
    flush();
    file_.publish({}, OnDisk::Later);
    return hex64(hash_.digest());
  }

 private:
  void flush() {
    file_.write(block_.data(), block_.size());
    hash_.update(block_.data(), block_.size());
    block_.clear();
  }

  NewFile file_;
  StreamHash hash_;
  std::string block_;
};

// Reads such a file, in groups.
template <std::size_t count, class Visit>
void read_numbers(const fs::path& path, std::uint64_t checksum, std::string_view stage,
                  Visit&& visit) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const bool whole = bytes.size() % (4 * count) == 0;
  if (!whole || hash64(bytes.data(), bytes.size()) != checksum)
    user_error("{} is damaged ({}): remove it with the .json of its {}, and run that again",
               path.string(), whole ? "its checksum differs" : "it is truncated", stage);
  std::array<std::uint32_t, count> numbers;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof numbers) {
    std::memcpy(numbers.data(), bytes.data() + at, sizeof numbers);
    visit(numbers);
  }
  file.check_intact();
}

}  // namespace

// ---- pairs

void find_pairs(const DedupDirectory& directory, std::size_t band, std::int64_t memory,
                const DedupProgress& progress) {
  const RecordForm form{directory.rows(), directory.value_bytes()};
  std::vector<RecordRange> ranges;
  std::vector<std::uint32_t> tasks;
  for (std::size_t task = 0; task < directory.tasks(); ++task) {
    const Json description = directory.require(DedupStage::Signatures, task);
    const fs::path path = directory.signatures(task, band);
    const std::uint64_t bytes = description.at("records").get<std::uint64_t>() * form.bytes();
    if (!fs::exists(path) || fs::file_size(path) != bytes)
      user_error(
          "{} is damaged (it should have {} bytes): remove it with {}, and run --stage "
          "signatures again",
          path.string(), bytes, directory.description(DedupStage::Signatures, task).string());
    if (bytes == 0) continue;
    ranges.push_back({path, 0, bytes, from_hex(description.at("xxh3").at(band))});
    tasks.push_back(static_cast<std::uint32_t>(task));
  }
  RecordMerge merge(form, std::move(ranges), memory);
  NumberFile file(directory.pairs(band));
  std::string last;
  std::uint32_t last_task = 0;
  std::int64_t records = 0, pairs = 0;
  const char* record = nullptr;
  for (std::size_t range; merge.next(record, range);) {
    const std::uint32_t document = RecordForm::document(record + form.bytes());
    if (!last.empty() && form.compare(last.data(), record, false) == 0) {
      file.write(
          {{last_task, RecordForm::document(last.data() + form.bytes()), tasks[range], document}});
      ++pairs;
    }
    last.assign(record, form.bytes());
    last_task = tasks[range];
    if (++records % 65536 != 0) continue;
    progress.add(65536);
    if (progress.stop()) throw DedupStopped();
  }
  progress.add(records % 65536);
  directory.finish(DedupStage::Pairs, band,
                   {{"records", records}, {"pairs", pairs}, {"xxh3", file.publish()}});
}

// ---- clusters

namespace {

// Union by size; of two roots with clusters of one size, the first stays. Number: of 32 or 64 bits.
template <class Number>
class UnionFind {
 public:
  explicit UnionFind(std::size_t count) : parents_(count, -1) {}

  // A root has the size of its cluster, negated.
  std::size_t root(std::size_t node) {
    std::size_t top = node;
    while (parents_[top] >= 0) top = static_cast<std::size_t>(parents_[top]);
    while (node != top)
      node = static_cast<std::size_t>(std::exchange(parents_[node], static_cast<Number>(top)));
    return top;
  }
  std::size_t size(std::size_t root) const { return static_cast<std::size_t>(-parents_[root]); }
  void unite(std::size_t a, std::size_t b) {
    a = root(a);
    b = root(b);
    if (a == b) return;
    if (size(a) < size(b)) std::swap(a, b);
    parents_[a] += parents_[b];
    parents_[b] = static_cast<Number>(a);
  }

 private:
  std::vector<Number> parents_;
};

// The documents of all tasks, numbered one after the other.
struct DocumentOffsets {
  explicit DocumentOffsets(const DedupDirectory& directory) {
    first.push_back(0);
    for (std::size_t task = 0; task < directory.tasks(); ++task)
      first.push_back(
          first.back() +
          directory.require(DedupStage::Signatures, task).at("documents").get<std::uint64_t>());
  }
  std::size_t of(std::uint32_t task, std::uint32_t document, const fs::path& file) const {
    if (task + std::size_t{1} >= first.size() || document >= first[task + 1] - first[task])
      user_error("{} names document {} of task {}, which does not exist", file.string(), document,
                 task);
    return first[task] + document;
  }
  std::vector<std::uint64_t> first;  // of each task, and how many there are
};

template <class Number>
void find_clusters_in(const DedupDirectory& directory, const DocumentOffsets& offsets,
                      const DedupProgress& progress) {
  UnionFind<Number> clusters(offsets.first.back());
  for (std::size_t band = 0; band < directory.bands(); ++band) {
    const fs::path path = directory.pairs(band);
    const auto checksum = from_hex(directory.require(DedupStage::Pairs, band).at("xxh3"));
    read_numbers<4>(path, checksum, "band", [&](const auto& pair) {
      clusters.unite(offsets.of(pair[0], pair[1], path), offsets.of(pair[2], pair[3], path));
    });
    progress.add(1);
    if (progress.stop()) throw DedupStopped();
  }
  std::int64_t count = 0, duplicates = 0;
  Json checksums = Json::array();
  for (std::size_t task = 0; task < directory.tasks(); ++task) {
    fs::remove(directory.removed(task));  // of a killed process
    fs::remove(directory.sizes(task));
    std::unique_ptr<NumberFile> removed, sizes;
    const std::uint64_t first = offsets.first[task];
    for (std::uint64_t node = first; node < offsets.first[task + 1]; ++node) {
      const std::size_t root = clusters.root(node);
      if (clusters.size(root) == 1) continue;
      const auto document = static_cast<std::uint32_t>(node - first);
      if (!sizes) sizes = std::make_unique<NumberFile>(directory.sizes(task));
      sizes->write({{document, static_cast<std::uint32_t>(clusters.size(root))}});
      count += root == node ? 1 : 0;
      if (root == node) continue;
      if (!removed) removed = std::make_unique<NumberFile>(directory.removed(task));
      removed->write({{document}});
      ++duplicates;
    }
    checksums.push_back(
        {removed ? removed->publish() : "", sizes ? sizes->publish() : std::string()});
  }
  directory.finish(DedupStage::Clusters, 0,
                   {{"documents", offsets.first.back()},
                    {"clusters", count},
                    {"duplicates", duplicates},
                    {"xxh3", checksums}});
}

}  // namespace

void find_clusters(const DedupDirectory& directory, const DedupProgress& progress) {
  const DocumentOffsets offsets(directory);
  const bool narrow = offsets.first.back() <= INT32_MAX;
  const std::uint64_t bytes = offsets.first.back() * (narrow ? 4 : 8);
  if (bytes > static_cast<std::uint64_t>(directory.options().memory))
    user_error("the clusters of {} documents need {} of memory: give --memory",
               format_count(static_cast<double>(offsets.first.back())),
               format_bytes(static_cast<double>(bytes)));
  if (narrow)
    find_clusters_in<std::int32_t>(directory, offsets, progress);
  else
    find_clusters_in<std::int64_t>(directory, offsets, progress);
}

// ---- removal

namespace {

// Compresses what is written to a new file, with zstd or gzip.
class PackedFile {
 public:
  PackedFile(const fs::path& path, bool gzip)
      : file_(path), zstd_(gzip ? nullptr : ZSTD_createCCtx(), ZSTD_freeCCtx), block_(kBlockBytes) {
    if (gzip) {
      KINTSUGI_CHECK(
          deflateInit2(&deflate_, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK,
          "no memory for zlib");
    } else {
      KINTSUGI_CHECK(zstd_ != nullptr, "no memory for zstd");
      ZSTD_CCtx_setParameter(zstd_.get(), ZSTD_c_checksumFlag, 1);
    }
  }
  ~PackedFile() {
    if (!zstd_) deflateEnd(&deflate_);
  }
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  void write(std::string_view text) {
    text_ += text;
    if (text_.size() >= kBlockBytes) pack(false);
  }
  void publish() {
    pack(true);
    file_.publish();
  }
  std::uint64_t bytes() const { return bytes_; }
  std::string checksum() const { return hex64(hash_.digest()); }

 private:
  void append(const char* block, std::size_t bytes) {
    file_.write(block, bytes);
    hash_.update(block, bytes);
    bytes_ += bytes;
  }
  void pack(bool end) {
    if (zstd_)
      pack_zstd(end ? ZSTD_e_end : ZSTD_e_continue);
    else
      pack_gzip(end ? Z_FINISH : Z_NO_FLUSH);
    text_.clear();
  }

  void pack_zstd(ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{text_.data(), text_.size(), 0};
    std::size_t left = 0;
    do {
      ZSTD_outBuffer out{block_.data(), block_.size(), 0};
      left = ZSTD_compressStream2(zstd_.get(), &out, &in, directive);
      KINTSUGI_CHECK(ZSTD_isError(left) == 0, "zstd: {}", ZSTD_getErrorName(left));
      append(block_.data(), out.pos);
    } while (directive == ZSTD_e_end ? left > 0 : in.pos < in.size);
  }

  void pack_gzip(int flush) {
    std::string_view rest = text_;
    do {
      const std::size_t bytes = std::min(rest.size(), kBlockBytes);
      deflate_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest.data()));
      deflate_.avail_in = static_cast<uInt>(bytes);
      rest.remove_prefix(bytes);
      do {
        deflate_.next_out = reinterpret_cast<Bytef*>(block_.data());
        deflate_.avail_out = static_cast<uInt>(block_.size());
        deflate(&deflate_, rest.empty() ? flush : Z_NO_FLUSH);
        append(block_.data(), block_.size() - deflate_.avail_out);
      } while (deflate_.avail_out == 0);
    } while (!rest.empty());
  }

  NewFile file_;
  std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> zstd_;
  z_stream deflate_ = {};
  StreamHash hash_;
  std::uint64_t bytes_ = 0;
  std::string text_;
  std::vector<char> block_;
};

// What the clusters say about the documents of a task, in order.
struct TaskDuplicates {
  TaskDuplicates(const DedupDirectory& directory, std::size_t task) {
    const Json checksums = directory.require(DedupStage::Clusters, 0).at("xxh3").at(task);
    const auto read = [&](const fs::path& path, const Json& checksum, auto count, auto&& add) {
      if (checksum.get<std::string>().empty()) return;
      read_numbers<count>(path, from_hex(checksum), "clusters", add);
    };
    read(directory.removed(task), checksums.at(0), std::integral_constant<std::size_t, 1>(),
         [&](const auto& numbers) { removed.push_back(numbers[0]); });
    if (!directory.options().cluster_size) return;
    read(directory.sizes(task), checksums.at(1), std::integral_constant<std::size_t, 2>(),
         [&](const auto& numbers) { sizes.emplace_back(numbers[0], numbers[1]); });
  }
  // To be asked for each document in order.
  bool is_removed(std::uint32_t document) {
    const bool is = next_removed < removed.size() && removed[next_removed] == document;
    next_removed += is ? 1 : 0;
    return is;
  }
  std::uint32_t size(std::uint32_t document) {
    const bool is = next_size < sizes.size() && sizes[next_size].first == document;
    return is ? sizes[next_size++].second : 1;
  }

  std::vector<std::uint32_t> removed;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sizes;
  std::size_t next_removed = 0, next_size = 0;
};

// Adds a key to a JSON object; an old one of this name is replaced.
void append_with_size(std::string& line, std::string_view object, std::uint32_t size) {
  constexpr std::string_view kKey = "minhash_cluster_size";
  if (object.find(fmt::format("\"{}\"", kKey)) != std::string_view::npos) {
    Json json = Json::parse(object);
    json[kKey] = size;
    line += json.dump();
    return;
  }
  line += object.substr(0, object.rfind('}'));
  line += fmt::format(",\"{}\":{}}}", kKey, size);
}

}  // namespace

void remove_duplicates(const DedupDirectory& directory, std::size_t task,
                       const DedupProgress& progress) {
  const DedupOptions& options = directory.options();
  const auto expected = directory.require(DedupStage::Signatures, task).at("documents");
  TaskDuplicates duplicates(directory, task);
  DedupDocuments documents(options, directory.files_of(task), true);
  const InputHashes hashes(describe_inputs(directory.files_of(task)));
  OriginCounter origins(directory.files_of(task), options.url_key);
  fs::remove(directory.kept(task, options.packing == "gz" ? "zst" : "gz"));  // of an earlier job
  PackedFile file(directory.kept(task, options.packing), options.packing == "gz");
  DedupDocuments::Entry entry;
  std::string line;
  std::int64_t kept = 0, counted = 0;
  while (documents.next(entry)) {
    const std::uint32_t size = duplicates.size(entry.number);
    const bool removed = duplicates.is_removed(entry.number);
    origins.count(entry.object, std::ssize(entry.text), removed ? "duplicate" : "");
    if (!removed) {
      line.clear();
      if (options.cluster_size)
        append_with_size(line, entry.object, size);
      else
        line += entry.object;
      line += '\n';
      file.write(line);
      ++kept;
    }
    if (documents.documents() % 1024 != 0) continue;
    progress.add(documents.bytes_read() - std::exchange(counted, documents.bytes_read()));
    if (progress.stop()) throw DedupStopped();
  }
  progress.add(documents.bytes_read() - counted);
  if (documents.documents() != expected)
    user_error(
        "the inputs of task {} have {} documents, and had {} when their signatures were "
        "computed: start over with --overwrite",
        task, documents.documents(), expected.get<std::int64_t>());
  while (!hashes.wait_for(0.2))
    if (progress.stop()) throw DedupStopped();
  file.publish();
  directory.finish(DedupStage::Remove, task,
                   {{"documents", documents.documents()},
                    {"kept", kept},
                    {"packing", options.packing},
                    {"cluster_size", options.cluster_size},
                    {"program", fmt::format("{} ({})", program_version(), program_commit())},
                    {"inputs", json_of(hashes.inputs())},
                    {"file", directory.kept(task, options.packing).filename().string()},
                    {"bytes", file.bytes()},
                    {"xxh3", file.checksum()},
                    {"sources", json_of(origins.sources())},
                    {"domains", json_of(origins.domains())}});
}

}  // namespace kintsugi
