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

SampleReader::SampleReader(const SampleOptions& options)
    : options_(options),
      window_(static_cast<std::size_t>(options.length) + 1),
      mask_(window_.size()),
      starts_(window_.size()) {}

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

  if (!options_.document_mask && options_.boundary_loss) return;
  std::fill_n(starts_.begin() + static_cast<std::ptrdiff_t>(at), count, std::uint8_t{0});
  starts_[at] = 1;
  const std::int64_t end = range.first + range.count;
  for (std::int64_t next = range.shard->document_of(range.first) + 1;
       next < range.shard->documents(); ++next) {
    const std::int64_t begin = range.shard->document_begin(next);
    if (begin >= end) break;
    if (begin > range.first)  // false if the index is damaged
      starts_[at + static_cast<std::size_t>(begin - range.first)] = 1;
  }
}

void SampleReader::pad(std::size_t from) {
  if (from == window_.size()) return;
  std::fill(window_.begin() + static_cast<std::ptrdiff_t>(from), window_.end(), 0);
  std::fill(mask_.begin() + static_cast<std::ptrdiff_t>(from), mask_.end(), std::uint8_t{0});
  std::fill(starts_.begin() + static_cast<std::ptrdiff_t>(from), starts_.end(), std::uint8_t{0});
  starts_[from] = 1;
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
  for (std::size_t i = 0; i < length; ++i) {
    const bool counts = mask_[i + 1] != 0 && (options_.boundary_loss || starts_[i + 1] == 0);
    row.ids[i] = window_[i];
    row.targets[i] = counts ? window_[i + 1] : -1;
  }
  if (!options_.document_mask) return;
  std::int32_t start = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const auto index = static_cast<std::int32_t>(i);
    if (starts_[i] != 0) start = index;
    row.document_start[i] = start;
    row.positions[i] = index - start;
  }
}

}  // namespace kintsugi
