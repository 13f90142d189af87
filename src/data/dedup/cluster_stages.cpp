// Pairs and clusters of documents.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/error.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/dedup/cluster_sizes.h"
#include "data/dedup/dedup_directory.h"
#include "data/dedup/number_file.h"
#include "data/dedup/sorted_records.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = DedupDirectory::Json;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

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

}  // namespace

// ---- pairs

void find_pairs(const DedupDirectory& directory, std::size_t band, std::int64_t memory,
                const DedupProgress& progress) {
  const RecordForm form = signature_form(directory.options());
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
    ranges.push_back({.file = path,
                      .begin = 0,
                      .end = bytes,
                      .checksum = from_hex(description.at("xxh3").at(band)),
                      .stage = to_string(DedupStage::Signatures)});
    tasks.push_back(static_cast<std::uint32_t>(task));
  }
  RecordMerge merge(form, std::move(ranges),
                    memory);  // of equal values, tasks decide: as datatrove
  NumberFile file(directory.pairs(band));
  std::string last;
  std::uint32_t last_task = 0;
  std::int64_t records = 0, pairs = 0;
  const char* record = nullptr;
  for (std::size_t range; merge.next(record, range);) {
    if (!last.empty() && form.compare(last.data(), record, false) == 0) {
      file.write({{last_task, static_cast<std::uint32_t>(form.number(last.data())), tasks[range],
                   static_cast<std::uint32_t>(form.number(record))}});
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
  ClusterSizes cluster_sizes;
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
      if (root == node) {
        cluster_sizes.add(clusters.size(root));
        ++count;
        continue;
      }
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
                    {"sizes", cluster_sizes.json()},
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

}  // namespace kintsugi
