#include "data/stores/store_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

using Problems = std::vector<std::string>;

void check_sequences(const TokenShard& shard, Problems& problems) {
  std::int64_t place = 0;
  for (std::int64_t s = 0; s < shard.sequences(); ++s) {
    const std::int64_t begin = shard.sequence_begin(s);
    if (begin != place) {
      problems.push_back(
          fmt::format("{}.idx: sequence {} starts at token {}, the ones before it end at {}",
                      shard.name(), s, begin, place));
      return;
    }
    place += shard.sequence_length(s);
  }
  if (place != shard.tokens())
    problems.push_back(fmt::format("{}.idx: the lengths add up to {} tokens, {}.bin has {}",
                                   shard.name(), place, shard.name(), shard.tokens()));
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

void check_ids(const TokenShard& shard, std::int64_t vocab_size, bool index_is_sound,
               Problems& problems) {
  std::vector<std::int32_t> ids(1 << 16);
  for (std::int64_t first = 0; first < shard.tokens();) {
    const auto count = std::min<std::int64_t>(shard.tokens() - first, 1 << 16);
    const auto piece = std::span(ids).first(static_cast<std::size_t>(count));
    shard.read(first, piece);
    const auto wrong = std::find_if(piece.begin(), piece.end(),
                                    [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
    if (wrong != piece.end()) {
      const std::int64_t place = first + (wrong - piece.begin());
      std::string where = fmt::format("token {}", place);
      if (index_is_sound) {
        const std::int64_t document = shard.document_of(place);
        where = fmt::format("document {}, token {} of it ({} of the shard)", document,
                            place - shard.document_begin(document), place);
      }
      problems.push_back(fmt::format("{}: {} has id {}, the vocabulary ends at {}", shard.name(),
                                     where, *wrong, vocab_size - 1));
      return;
    }
    first += count;
  }
}

void check_mask(const TokenShard& shard, Problems& problems) {
  std::vector<std::uint8_t> part(shard.has_mask() ? 1 << 16 : 0);
  for (std::int64_t first = 0; shard.has_mask() && first < shard.tokens();) {
    const auto count = std::min<std::int64_t>(shard.tokens() - first, 1 << 16);
    const auto mask = std::span(part).first(static_cast<std::size_t>(count));
    shard.read_mask(first, mask);
    const auto wrong = std::find_if(mask.begin(), mask.end(), [](std::uint8_t m) { return m > 1; });
    if (wrong != mask.end()) {
      problems.push_back(fmt::format("{}.mask: byte {} is {}, neither 0 nor 1", shard.name(),
                                     first + (wrong - mask.begin()), *wrong));
      return;
    }
    first += count;
  }
}

void check_sum(const std::filesystem::path& file, const std::string& expected, Problems& problems) {
  const MappedFile content(file);
  const std::string found = hex64(hash64(content.bytes().data(), content.bytes().size()));
  content.check_intact();
  if (found != expected)
    problems.push_back(
        fmt::format("{}: its checksum is {}, {} when it was written: the content has changed",
                    file.string(), found, expected));
}

void check_sums(const TokenShard& shard, const StoreInfo& info, Problems& problems) {
  const std::filesystem::path prefix = shard.name();
  auto entry = std::find_if(info.shards.begin(), info.shards.end(), [&](const StoreInfo::Shard& s) {
    return s.name == prefix.filename().string();
  });
  if (entry == info.shards.end() && info.shards.size() == 1)
    entry = info.shards.begin();  // renamed
  if (entry == info.shards.end()) {
    problems.push_back(fmt::format(
        "{}: {}.json beside it names {} to {}, but not this shard: give the files their names back",
        shard.name(), store_of_shard(prefix).string(),
        info.shards.empty() ? "nothing" : info.shards.front().name,
        info.shards.empty() ? "nothing" : info.shards.back().name));
    return;
  }
  check_sum(with_ending(prefix, ".bin"), entry->bin, problems);
  check_sum(with_ending(prefix, ".idx"), entry->idx, problems);
  if (!entry->mask.empty() && !shard.has_mask() && shard.tokens() > 0)
    problems.push_back(fmt::format("{}.mask is missing", shard.name()));
  else if (!entry->mask.empty())
    check_sum(with_ending(prefix, ".mask"), entry->mask, problems);
}

}  // namespace

std::vector<std::string> check_shard(const TokenShard& shard,
                                     std::optional<std::int64_t> vocab_size,
                                     const StoreInfo* info) {
  Problems problems;
  // An entry that points outside the files is told by the shard itself.
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
    const bool sound = problems.empty();
    guarded([&] { check_ids(shard, *vocab_size, sound, problems); });
  }
  check_mask(shard, problems);
  if (info != nullptr) guarded([&] { check_sums(shard, *info, problems); });
  return problems;
}

}  // namespace kintsugi
