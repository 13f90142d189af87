#include "data/sampling/sample_reader.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

SampleBatch::SampleBatch(std::int64_t samples, const SampleOptions& options)
    : length_(static_cast<std::size_t>(options.length)), document_mask_(options.document_mask) {
  resize(samples);
}

void SampleBatch::resize(std::int64_t samples) {
  const std::size_t tokens = static_cast<std::size_t>(samples) * length_;
  ids.resize(tokens);
  targets.resize(tokens);
  if (!document_mask_) return;
  positions.resize(tokens);
  document_start.resize(tokens);
}

SampleRow SampleBatch::row(std::int64_t i) {
  const auto row_of = [&](std::vector<std::int32_t>& all) {
    return all.empty() ? std::span<std::int32_t>()
                       : std::span(all).subspan(static_cast<std::size_t>(i) * length_, length_);
  };
  return {row_of(ids), row_of(targets), row_of(positions), row_of(document_start)};
}

namespace {

// Lists the two sequences of the pair in `range`, which is stored from at.begin on in row at.row.
void add_pair(const TokenRange& range, SampleSequence at, std::vector<SampleSequence>& sequences) {
  const TokenShard& shard = *range.shard;
  const std::int64_t document = shard.document_of(range.first);
  const std::int64_t first = shard.document_sequence(document);
  const std::int64_t end = range.first + range.count;
  const std::int64_t middle = shard.sequence_begin(std::min(first + 1, shard.sequences()));
  // Any other document would shift the turns of preferred and rejected sequences.
  if (shard.document_sequence(document + 1) != first + 2 || middle <= range.first ||
      middle >= end || shard.document_begin(document) != range.first ||
      shard.document_begin(document + 1) != end)
    user_error(
        "{}: document {} is not a preference pair of two sequences: make the store with `kintsugi "
        "data prepare-chat`",
        shard.name(), document);
  const std::int64_t split = at.begin + middle - range.first;
  sequences.push_back({at.row, at.begin, split, &shard, first});
  sequences.push_back({at.row, split, at.begin + range.count, &shard, first + 1});
}

}  // namespace

SampleReader::SampleReader(const SampleOptions& options)
    : options_(options),
      window_(static_cast<std::size_t>(options.length) + 1),
      mask_(window_.size()),
      starts_(window_.size()),
      labels_(options.kind == SampleKind::Labels ? window_.size() : 0) {}

void SampleReader::fail_at_bad_id(const TokenRange& range, std::size_t at) const {
  const auto wrong =
      std::find_if(window_.begin() + static_cast<std::ptrdiff_t>(at), window_.end(),
                   [&](std::int32_t id) { return id < 0 || id >= options_.vocab_size; });
  const std::int64_t token =
      range.first + (wrong - window_.begin()) - static_cast<std::int64_t>(at);
  user_error(
      "{} has token id {} at token {}, but model.vocab_size is {}: raise model.vocab_size, or use "
      "data made with the tokenizer of the model",
      range.shard->name(), *wrong, token, options_.vocab_size);
}

void SampleReader::add(const TokenRange& range, std::size_t at) {
  const auto count = static_cast<std::size_t>(range.count);
  const std::span<std::int32_t> ids = std::span(window_).subspan(at, count);
  range.shard->read(range.first, ids);
  // As unsigned values, negative ids are larger than any vocabulary.
  std::uint32_t largest = 0;
  for (const std::int32_t id : ids) largest = std::max(largest, static_cast<std::uint32_t>(id));
  if (static_cast<std::int64_t>(largest) >= options_.vocab_size) fail_at_bad_id(range, at);

  range.shard->read_mask(range.first, std::span(mask_).subspan(at, count));
  if (options_.packed &&
      range.shard->document_begin(range.shard->document_of(range.first)) != range.first)
    mask_[at] = 0;

  if (options_.kind == SampleKind::Labels) add_labels(range, at);
  if (options_.document_mask || !options_.boundary_loss || options_.kind == SampleKind::Pairs)
    add_starts(range, at);
}

void SampleReader::add_starts(const TokenRange& range, std::size_t at) {
  const auto count = static_cast<std::size_t>(range.count);
  std::fill_n(starts_.begin() + static_cast<std::ptrdiff_t>(at), count, std::uint8_t{0});
  starts_[at] = 1;
  const TokenShard& shard = *range.shard;
  const std::int64_t end = range.first + range.count;
  const std::int64_t document = shard.document_of(range.first);
  const bool pairs = options_.kind == SampleKind::Pairs;
  const std::int64_t units = pairs ? shard.sequences() : shard.documents();
  for (std::int64_t next = (pairs ? shard.document_sequence(document) : document) + 1; next < units;
       ++next) {
    const std::int64_t begin = pairs ? shard.sequence_begin(next) : shard.document_begin(next);
    if (begin >= end) break;
    if (begin > range.first)  // false if the index is damaged
      starts_[at + static_cast<std::size_t>(begin - range.first)] = 1;
  }
}

void SampleReader::add_labels(const TokenRange& range, std::size_t at) {
  const TokenShard& shard = *range.shard;
  std::fill_n(labels_.begin() + static_cast<std::ptrdiff_t>(at), range.count, -1);
  const std::int64_t range_end = range.first + range.count;
  for (std::int64_t d = shard.document_of(range.first); d < shard.documents(); ++d) {
    const std::int64_t begin = shard.document_begin(d), end = shard.document_begin(d + 1);
    if (end > range_end) break;
    if (end <= std::max(begin, range.first)) continue;  // empty, or the index is damaged
    const std::int32_t label = shard.label(d);
    if (label >= options_.classes)
      user_error(
          "{}.labels: document {} has label {}, but the model has {} classes: use the classes that "
          "the store was made with",
          shard.name(), d, label, options_.classes);
    labels_[at + static_cast<std::size_t>(end - 1 - range.first)] = label;
  }
}

void SampleReader::pad(std::size_t from) {
  if (from == window_.size()) return;
  std::fill(window_.begin() + static_cast<std::ptrdiff_t>(from), window_.end(), 0);
  std::fill(mask_.begin() + static_cast<std::ptrdiff_t>(from), mask_.end(), std::uint8_t{0});
  std::fill(starts_.begin() + static_cast<std::ptrdiff_t>(from), starts_.end(), std::uint8_t{0});
  starts_[from] = 1;
  if (options_.kind == SampleKind::Labels)
    std::fill(labels_.begin() + static_cast<std::ptrdiff_t>(from), labels_.end(), -1);
}

void SampleReader::write_targets(SampleRow row) const {
  if (options_.kind == SampleKind::Labels) {
    std::copy_n(labels_.begin(), row.targets.size(), row.targets.begin());
    return;
  }
  const bool across = options_.boundary_loss && options_.kind == SampleKind::Text;
  for (std::size_t i = 0; i < row.targets.size(); ++i) {
    const bool counts = mask_[i + 1] != 0 && (across || starts_[i + 1] == 0);
    row.targets[i] = counts ? window_[i + 1] : -1;
  }
}

void SampleReader::read(const std::vector<TokenRange>& ranges, SampleRow row) {
  std::size_t filled = 0;
  for (const TokenRange& range : ranges) {
    KINTSUGI_CHECK(filled + static_cast<std::size_t>(range.count) <= window_.size(),
                   "the ranges of a sample have more than {} tokens", window_.size());
    if (range.count == 0) continue;
    add(range, filled);
    filled += static_cast<std::size_t>(range.count);
  }
  KINTSUGI_CHECK(filled == window_.size() || options_.packed, "a sample has {} tokens, not {}",
                 filled, window_.size());
  pad(filled);
  const std::size_t length = row.ids.size();
  std::copy_n(window_.begin(), length, row.ids.begin());
  write_targets(row);
  if (!options_.document_mask) return;
  std::int32_t start = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const auto index = static_cast<std::int32_t>(i);
    if (starts_[i] != 0) start = index;
    row.document_start[i] = start;
    row.positions[i] = index - start;
  }
}

void SampleReader::read(const std::vector<TokenRange>& ranges, SampleBatch& batch, std::int64_t i) {
  read(ranges, batch.row(i));
  if (options_.kind != SampleKind::Pairs) return;
  while (!batch.sequences.empty() && batch.sequences.back().row >= i) batch.sequences.pop_back();
  std::int64_t at = 0;
  for (const TokenRange& range : ranges) {
    if (range.count > 0) add_pair(range, {.row = i, .begin = at}, batch.sequences);
    at += range.count;
  }
}

}  // namespace kintsugi
