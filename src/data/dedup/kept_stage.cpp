// The last reading of the documents, which are written without duplicates.
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>

#include "core/build_info.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "data/corpora/record_reader.h"
#include "data/curation/document.h"
#include "data/curation/words.h"
#include "data/dedup/dedup_directory.h"
#include "data/dedup/mark_reader.h"
#include "data/dedup/number_file.h"
#include "data/dedup/pieces.h"
#include "data/provenance/file_hashes.h"
#include "data/provenance/origins.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = DedupDirectory::Json;

constexpr std::size_t kPackedBytes = std::size_t{1} << 20;

// Compresses what is written to a new file, with zstd or gzip.
class PackedFile {
 public:
  PackedFile(const fs::path& path, bool gzip)
      : file_(path),
        zstd_(gzip ? nullptr : ZSTD_createCCtx(), ZSTD_freeCCtx),
        block_(kPackedBytes) {
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
    if (text_.size() >= kPackedBytes) pack(false);
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
      const std::size_t bytes = std::min(rest.size(), kPackedBytes);
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

struct KeptCounts {
  std::int64_t kept = 0, cut = 0, too_short = 0, removed_bytes = 0;
};
constexpr const char* kDuplicate = "duplicate";  // the rule by which text is removed

// Writes the documents that their clusters keep.
class WholeDocuments {
 public:
  WholeDocuments(const DedupDirectory& directory, std::size_t task)
      : options_(directory.options()), duplicates_(directory, task) {}

  // Appends what is left of a document; false: nothing is.
  bool append(const DedupDocuments::Entry& entry, std::string& line, KeptCounts& counts) {
    const std::uint32_t size = duplicates_.size(entry.number);
    if (duplicates_.is_removed(entry.number)) {
      counts.removed_bytes += std::ssize(entry.text);
      return false;
    }
    if (options_.cluster_size)
      append_with_size(line, entry.object, size);
    else
      line += entry.object;
    return true;
  }
  void check_end() const {}

 private:
  const DedupOptions& options_;
  TaskDuplicates duplicates_;
};

// Cuts sequences of pieces out of documents.
class CutDocuments {
 public:
  CutDocuments(const DedupDirectory& directory, std::size_t task, std::int64_t memory)
      : options_(directory.options()),
        length_(directory.sequence_length()),
        marks_(directory, DedupStage::Copies, task, memory) {}

  bool append(const DedupDocuments::Entry& entry, std::string& line, KeptCounts& counts) {
    marks_.take(entry.number, marked_);
    if (marked_.empty()) {
      line += entry.object;
      return true;
    }
    cut_into_pieces(entry.text, piece_kind(options_.by), pieces_);
    removed_.clear();
    for (const Mark& mark : marked_) {
      const std::size_t end = mark.piece + length_;
      if (end > pieces_.size() || mark.skipped >= length_)
        user_error("the marks of document {} do not fit: start over with --overwrite",
                   entry.number);
      removed_.push_back({mark.piece + mark.skipped, end});
    }
    std::sort(removed_.begin(), removed_.end(),
              [](const PieceRange& a, const PieceRange& b) { return a.begin < b.begin; });
    const std::string left = without_pieces(entry.text, pieces_, removed_);
    const bool is_kept = !left.empty() && static_cast<std::size_t>(character_count(left)) >=
                                              options_.shortest_document;
    ++(is_kept ? counts.cut : counts.too_short);
    counts.removed_bytes += std::ssize(entry.text) - (is_kept ? std::ssize(left) : 0);
    if (!is_kept) return false;
    ObjectText object(entry.object);
    std::string text;
    append_json_string(text, left);
    object.set(options_.text_key, std::move(text));
    object.append_to(line);
    return true;
  }
  void check_end() const { marks_.check_end(); }

 private:
  const DedupOptions& options_;
  std::size_t length_;
  MarkReader marks_;
  std::vector<Mark> marked_;
  Pieces pieces_;
  std::vector<PieceRange> removed_;
};

template <class Documents>
void write_kept(const DedupDirectory& directory, std::size_t task, Documents&& without_duplicates,
                const DedupProgress& progress) {
  const DedupOptions& options = directory.options();
  DedupDocuments documents(options, directory.files_of(task), true);
  fs::remove(directory.kept(task, options.packing == "gz" ? "zst" : "gz"));  // of an earlier job
  PackedFile file(directory.kept(task, options.packing), options.packing == "gz");
  DedupDocuments::Entry entry;
  std::string line;
  std::int64_t counted = 0;
  KeptCounts counts;
  const InputHashes hashes(describe_inputs(directory.files_of(task)));
  OriginCounter origins(directory.files_of(task), options.url_key);
  while (documents.next(entry)) {
    line.clear();
    const std::int64_t removed = counts.removed_bytes;
    const bool is_kept = without_duplicates.append(entry, line, counts);
    origins.count(entry.object, std::ssize(entry.text), is_kept ? "" : kDuplicate,
                  std::ssize(entry.text) - (counts.removed_bytes - removed));
    if (is_kept) {
      line += '\n';
      file.write(line);
      ++counts.kept;
    }
    if (documents.documents() % 1024 != 0) continue;
    progress.add(documents.bytes_read() - std::exchange(counted, documents.bytes_read()));
    if (progress.stop()) throw DedupStopped();
  }
  progress.add(documents.bytes_read() - counted);
  directory.check_documents(task, documents);
  without_duplicates.check_end();
  while (!hashes.wait_for(0.2))
    if (progress.stop()) throw DedupStopped();
  file.publish();
  directory.finish(DedupStage::Remove, task,
                   {{"documents", documents.documents()},
                    {"kept", counts.kept},
                    {"cut", counts.cut},
                    {"too_short", counts.too_short},
                    {"removed_bytes", counts.removed_bytes},
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

}  // namespace

void remove_duplicates(const DedupDirectory& directory, std::size_t task, std::int64_t memory,
                       const DedupProgress& progress) {
  directory.require(directory.first_stage(), task);
  if (cuts_pieces(directory.options().by))
    write_kept(directory, task, CutDocuments(directory, task, memory), progress);
  else
    write_kept(directory, task, WholeDocuments(directory, task), progress);
}

}  // namespace kintsugi
