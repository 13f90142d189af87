// The batches of an Engine: which tokens a micro-batch has, and their copy to the device.
#include <algorithm>

#include "core/error.h"
#include "model/families/family.h"
#include "tensor/dtype.h"
#include "train/engine.h"

namespace kintsugi {

// The buffers of retention have one state per sequence; those of attention are by token.
std::int64_t Engine::micro_sequences(std::int64_t length) const {
  const bool by_token = family_info(options_.model.family).document_masks;
  return options_.layout.micro_batch * (by_token ? options_.length / length : 1);
}

int Engine::micro_batches_of(const TokenBatch& batch) const {
  const std::int64_t micro = micro_sequences(length_of(batch));
  return static_cast<int>((sequences_of(batch) + micro - 1) / micro);
}

const std::int32_t* Engine::context_shard_of(const ContextShard& shard,
                                             std::span<const std::int32_t> whole,
                                             std::int64_t first, std::int64_t count) {
  const std::int32_t* from = whole.data() + first * shard.length;
  if (shard.ranks == 1) return from;
  staging_.tokens.clear();
  for (std::int64_t sequence = 0; sequence < count; ++sequence)
    for (std::int64_t i = 0; i < shard.local_length(); ++i)
      staging_.tokens.push_back(from[sequence * shard.length + shard.position(i)]);
  return staging_.tokens.data();
}

Tensor Engine::upload_shard(Tensor to, const ContextShard& shard,
                            std::span<const std::int32_t> whole, std::int64_t first,
                            std::int64_t count) {
  const Tensor rows = to.rows(0, count * shard.local_length());
  backend_->upload(rows, context_shard_of(shard, whole, first, count));
  return rows;
}

void Engine::upload_numbers(Tensor to, std::span<const double> numbers) {
  staging_.rounded.resize(numbers.size() * size_of(to.dtype()));
  from_doubles(numbers, to.dtype(), staging_.rounded.data());
  backend_->upload(to, staging_.rounded.data());
}

Tensor Engine::upload_weights(Tensor to, const ContextShard& shard, std::span<const float> whole,
                              std::int64_t first, std::int64_t count) {
  staging_.numbers.clear();
  for (std::int64_t sequence = first; sequence < first + count; ++sequence)
    for (std::int64_t i = 0; i < shard.local_length(); ++i)
      staging_.numbers.push_back(whole[sequence * shard.length + shard.position(i)]);
  const Tensor rows = to.rows(0, std::ssize(staging_.numbers));
  upload_numbers(rows, staging_.numbers);
  return rows;
}

// The local tokens of a sequence are consecutive: positions ascend.
void Engine::upload_pairs(MicroBatch& micro, const MicroBatchBuffers& slot, const TokenBatch& batch,
                          std::int64_t first, std::int64_t count) {
  const auto most = static_cast<std::size_t>(slot.pair_reference.elements());
  const auto before = [](const TokenSequence& sequence, std::int64_t row) {
    return sequence.row < row;
  };
  const auto begin =
                 std::lower_bound(batch.sequences.begin(), batch.sequences.end(), first, before),
             end = std::lower_bound(begin, batch.sequences.end(), first + count, before);
  const auto found = static_cast<std::size_t>(end - begin);
  KINTSUGI_CHECK(found % 2 == 0 && found <= most, "{} sequences of pairs, at most {} fit", found,
                 most);
  const auto local = [&](std::int64_t position) {
    if (context_shard_.ranks == 1) return position;
    std::int64_t i = 0;
    while (i < micro.length && context_shard_.position(i) < position) ++i;
    return i;
  };
  staging_.pairs.assign(2 * most, -1);
  staging_.numbers.assign(most, 0.0);
  for (std::size_t i = 0; i < found; ++i) {
    const TokenSequence& sequence = begin[static_cast<std::ptrdiff_t>(i)];
    KINTSUGI_CHECK(0 <= sequence.begin && sequence.begin <= sequence.end &&
                       sequence.end <= context_shard_.length,
                   "a sequence with the tokens [{}, {})", sequence.begin, sequence.end);
    const std::int64_t row = (sequence.row - first) * micro.length;
    staging_.pairs[2 * i] = static_cast<std::int32_t>(row + local(sequence.begin));
    staging_.pairs[2 * i + 1] = static_cast<std::int32_t>(row + local(sequence.end));
    staging_.numbers[i] = sequence.reference;
  }
  backend_->upload(slot.pair_ranges, staging_.pairs.data());
  upload_numbers(slot.pair_reference, staging_.numbers);
  micro.pair_ranges = slot.pair_ranges;
  micro.pair_reference = slot.pair_reference;
}

MicroBatch Engine::upload(const TokenBatch& batch, int number, bool plain) {
  const ContextShard shard = shard_of(batch);
  const std::int64_t micro_batch = micro_sequences(shard.length), first = number * micro_batch,
                     count = std::min(micro_batch, sequences_of(batch) - first);
  const MicroBatchBuffers& slot = batches_[static_cast<std::size_t>(number) % batches_.size()];
  MicroBatch micro{.sequences = count,
                   .length = shard.local_length(),
                   .ids = upload_shard(slot.ids, shard, batch.ids, first, count),
                   .targets = upload_shard(slot.targets, shard, batch.targets, first, count),
                   .positions = slot.positions.rows(0, count * shard.local_length()),
                   .first_token = first * shard.length};
  if (token_rows_) micro.token_rows = token_rows_.rows(0, micro.tokens());
  if (!batch.weights.empty() && !plain) {
    KINTSUGI_CHECK(slot.weights && batch.weights.size() == batch.ids.size(),
                   "{} tokens with {} weights, and EngineOptions::weights is {}", batch.ids.size(),
                   batch.weights.size(), options_.weights);
    micro.weights = upload_weights(slot.weights, shard, batch.weights, first, count);
  }
  if (slot.pair_ranges && !plain) upload_pairs(micro, slot, batch, first, count);
  if (!options_.documents) return micro;
  KINTSUGI_CHECK(
      batch.positions.size() == batch.ids.size() && batch.document_start.size() == batch.ids.size(),
      "{} tokens with {} positions and {} document starts", batch.ids.size(),
      batch.positions.size(), batch.document_start.size());
  upload_shard(slot.positions, shard, batch.positions, first, count);
  micro.document_start = slot.document_start.rows(0, shard.ranks * count);
  if (shard.ranks == 1 || shard.method == ContextMethod::Ulysses) {  // of the whole sequences
    micro.document_start = micro.document_start.view({count, shard.length});
    backend_->upload(micro.document_start, batch.document_start.data() + first * shard.length);
    return micro;
  }
  const std::int32_t* const starts = context_shard_of(shard, batch.document_start, first, count);
  staging_.first_keys.resize(static_cast<std::size_t>(micro.document_start.elements()));
  first_visible_keys(staging_.first_keys, shard, {starts, staging_.tokens.size()});
  backend_->upload(micro.document_start, staging_.first_keys.data());
  return micro;
}

}  // namespace kintsugi
