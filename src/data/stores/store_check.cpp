#include "data/stores/store_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

using Problems = std::vector<std::string>;

std::int64_t token_bytes(const TokenShard& shard) {
  return static_cast<std::int64_t>(size_of(shard.type()));
}

void check_sequences(const TokenShard& shard, Problems& problems) {
  std::int64_t position = 0;
  for (std::int64_t s = 0; s < shard.sequences(); ++s) {
    const std::int64_t begin = shard.sequence_begin(s);
    if (begin != position) {
      problems.push_back(
          fmt::format("{}.idx: sequence {} starts at token {}, but the previous one ends at {}",
                      shard.name(), s, begin, position));
      return;
    }
    position += shard.sequence_length(s);
  }
  if (position != shard.tokens())
    problems.push_back(fmt::format("{}.idx: the lengths add up to {} tokens, but {}.bin has {}",
                                   shard.name(), position, shard.name(), shard.tokens()));
}

void check_documents(const TokenShard& shard, Problems& problems) {
  for (std::int64_t d = 0; d < shard.documents(); ++d)
    if (shard.document_sequence(d + 1) < shard.document_sequence(d)) {
      problems.push_back(fmt::format(
          "{}.idx: document {} starts at sequence {}, before document {} at {}", shard.name(),
          d + 1, shard.document_sequence(d + 1), d, shard.document_sequence(d)));
      return;
    }
}

constexpr std::size_t kHashedBlock = 8 << 20;

void check_ids(const TokenShard& shard, std::int64_t vocab_size, bool index_is_valid,
               const BytesRead& read, Problems& problems) {
  std::vector<std::int32_t> buffer(1 << 16);
  for (std::int64_t first = 0; first < shard.tokens();) {
    const auto count = std::min<std::int64_t>(shard.tokens() - first, 1 << 16);
    const auto ids = std::span(buffer).first(static_cast<std::size_t>(count));
    shard.read(first, ids);
    const auto wrong = std::find_if(ids.begin(), ids.end(),
                                    [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
    if (wrong != ids.end()) {
      const std::int64_t position = first + (wrong - ids.begin());
      std::string where = fmt::format("token {}", position);
      if (index_is_valid) {
        const std::int64_t document = shard.document_of(position);
        where = fmt::format("document {}, token {} ({} of the shard)", document,
                            position - shard.document_begin(document), position);
      }
      problems.push_back(fmt::format("{}: {} has id {}, but the largest id of the vocabulary is {}",
                                     shard.name(), where, *wrong, vocab_size - 1));
      return;
    }
    first += count;
    if (read) read(count * token_bytes(shard));
  }
}

void check_mask(const TokenShard& shard, Problems& problems) {
  std::vector<std::uint8_t> buffer(shard.has_mask() ? 1 << 16 : 0);
  for (std::int64_t first = 0; shard.has_mask() && first < shard.tokens();) {
    const auto count = std::min<std::int64_t>(shard.tokens() - first, 1 << 16);
    const auto mask = std::span(buffer).first(static_cast<std::size_t>(count));
    shard.read_mask(first, mask);
    const auto wrong = std::find_if(mask.begin(), mask.end(), [](std::uint8_t m) { return m > 1; });
    if (wrong != mask.end()) {
      problems.push_back(fmt::format("{}.mask: byte {} is {}, not 0 or 1", shard.name(),
                                     first + (wrong - mask.begin()), *wrong));
      return;
    }
    first += count;
  }
}

// What `data prepare-chat` promises about the documents of its kinds. Returns the first problem.
std::string example_problem(const TokenShard& shard, const StoreInfo& info) {
  const auto classes = static_cast<std::int64_t>(info.labels.size());
  if (info.kind == "classification" && !shard.has_labels() && shard.documents() > 0)
    return fmt::format("{}.labels is missing", shard.name());
  for (std::int64_t d = 0; d < shard.documents(); ++d) {
    const std::int64_t sequences = shard.document_sequence(d + 1) - shard.document_sequence(d);
    if (info.kind == "preference" && sequences != 2)
      return fmt::format("{}.idx: document {} has {} sequences, a preference pair has 2",
                         shard.name(), d, sequences);
    if (!shard.has_labels()) continue;
    if (const std::int32_t label = shard.label(d); label >= classes)
      return fmt::format("{}.labels: document {} has label {}, but the store has {} classes",
                         shard.name(), d, label, classes);
  }
  return "";
}

void check_checksum(const std::filesystem::path& file, const std::string& expected,
                    const BytesRead& read, Problems& problems) {
  const MappedFile content(file);
  StreamHash hash;
  for (auto rest = content.bytes(); !rest.empty();) {
    const auto block = rest.first(std::min(rest.size(), kHashedBlock));
    hash.update(block.data(), block.size());
    rest = rest.subspan(block.size());
    if (read) read(static_cast<std::int64_t>(block.size()));
  }
  const std::string found = hex64(hash.digest());
  content.check_intact();
  if (found != expected)
    problems.push_back(
        fmt::format("{}: the checksum is {}, but {} was recorded: the content has changed",
                    file.string(), found, expected));
}

void check_checksums(const TokenShard& shard, const StoreInfo& info, const BytesRead& read,
                     Problems& problems) {
  const std::filesystem::path prefix = shard.name();
  auto entry = std::find_if(info.shards.begin(), info.shards.end(), [&](const StoreInfo::Shard& s) {
    return s.name == prefix.filename().string();
  });
  if (entry == info.shards.end() && info.shards.size() == 1)
    entry = info.shards.begin();  // renamed
  if (entry == info.shards.end()) {
    problems.push_back(fmt::format(
        "{}: {}.json names {} to {}, but not this shard: restore the file names", shard.name(),
        store_of_shard(prefix).string(), info.shards.empty() ? "nothing" : info.shards.front().name,
        info.shards.empty() ? "nothing" : info.shards.back().name));
    return;
  }
  check_checksum(with_ending(prefix, ".bin"), entry->bin, read, problems);
  check_checksum(with_ending(prefix, ".idx"), entry->idx, read, problems);
  if (!entry->mask.empty() && !shard.has_mask() && shard.tokens() > 0)
    problems.push_back(fmt::format("{}.mask is missing", shard.name()));
  else if (!entry->mask.empty())
    check_checksum(with_ending(prefix, ".mask"), entry->mask, read, problems);
  if (!entry->labels.empty() && shard.has_labels())
    check_checksum(with_ending(prefix, ".labels"), entry->labels, read, problems);
}

template <class Visit>
void each_length(const std::vector<TokenShard>& shards, Visit visit) {
  for (const TokenShard& shard : shards) {
    std::int64_t begin = shard.document_begin(0);
    for (std::int64_t d = 0; d < shard.documents(); ++d) {
      const std::int64_t end = shard.document_begin(d + 1);
      if (end < begin)
        user_error("{}.idx: document {} ends before it starts; run kintsugi data verify",
                   shard.name(), d);
      visit(end - begin);
      begin = end;
    }
  }
}

// The k-th smallest length without storing all lengths: first finds the power of two, then refines
// the interval with histograms.
std::int64_t kth_length(const std::vector<TokenShard>& shards, const LengthSummary& summary,
                        std::int64_t k) {
  std::size_t bucket = 0;
  while (k >= summary.by_log2[bucket]) k -= summary.by_log2[bucket++];
  if (bucket == 0) return 0;
  std::int64_t low = std::int64_t{1} << (bucket - 1), high = low * 2;  // result in [low, high)
  constexpr std::size_t kBins = 4096;
  while (high - low > 1) {
    const std::int64_t width = std::max<std::int64_t>((high - low) / kBins, 1);
    std::vector<std::int64_t> counts(static_cast<std::size_t>((high - low + width - 1) / width));
    each_length(shards, [&](std::int64_t length) {
      if (length >= low && length < high)
        ++counts[static_cast<std::size_t>((length - low) / width)];
    });
    std::size_t bin = 0;
    while (k >= counts[bin]) k -= counts[bin++];
    low += static_cast<std::int64_t>(bin) * width;
    high = std::min(high, low + width);
  }
  return low;
}

}  // namespace

std::int64_t bytes_to_check(const TokenShard& shard, bool ids, const StoreInfo* info) {
  std::int64_t bytes = ids ? shard.tokens() * token_bytes(shard) : 0;
  if (info == nullptr) return bytes;
  for (const char* ending : {".bin", ".idx", ".mask", ".labels"}) {
    std::error_code missing;
    const auto size = std::filesystem::file_size(with_ending(shard.name(), ending), missing);
    if (!missing) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

std::vector<std::string> check_shard(const TokenShard& shard,
                                     std::optional<std::int64_t> vocab_size, const StoreInfo* info,
                                     const BytesRead& read) {
  Problems problems;
  // The shard itself throws if an entry points outside the files.
  const auto guarded = [&](auto check) {
    try {
      check();
    } catch (const UserError& error) {
      problems.emplace_back(error.what());
    }
  };
  guarded([&] { check_sequences(shard, problems); });
  guarded([&] { check_documents(shard, problems); });
  if (vocab_size) {
    const bool index_is_valid = problems.empty();
    guarded([&] { check_ids(shard, *vocab_size, index_is_valid, read, problems); });
  }
  check_mask(shard, problems);
  if (info != nullptr)
    guarded([&] {
      if (std::string found = example_problem(shard, *info); !found.empty())
        problems.push_back(std::move(found));
    });
  if (info != nullptr) guarded([&] { check_checksums(shard, *info, read, problems); });
  return problems;
}

LengthSummary summarize_lengths(const std::vector<TokenShard>& shards) {
  LengthSummary summary;
  summary.shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t documents = 0;
  each_length(shards, [&](std::int64_t length) {
    ++documents;
    summary.shortest = std::min(summary.shortest, length);
    summary.longest = std::max(summary.longest, length);
    ++summary.by_log2[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)))];
  });
  if (documents == 0) summary.shortest = 0;
  if (documents > 0) summary.median = kth_length(shards, summary, documents / 2);
  return summary;
}

}  // namespace kintsugi
