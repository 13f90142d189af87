#include "train/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>

namespace kintsugi {
namespace {

constexpr std::int64_t kExchanged = std::int64_t{1}
                                    << 22;  // elements that a rank exchanges at a time

// A range of the whole tensor, and its index in the shards that the ranks exchanged.
struct Source {
  std::int64_t global = 0, count = 0;
  std::int64_t at = 0;
};

std::size_t largest_bytes(const ParameterSet& set) {
  std::int64_t most = 0;
  for (const Parameter& parameter : set.parameters())
    most = std::max(most, parameter.shape.elements());
  return static_cast<std::size_t>(most) * sizeof(double);
}

}  // namespace

ShardWriter::ShardWriter(Engine& engine, Backend* device)
    : engine_(engine), device_(device), queue_(device, largest_bytes(engine.parameters())) {
  std::int64_t most = 0;  // elements exchanged at a time
  for (const Parameter& parameter : engine.parameters().parameters())
    if (parameter.shard.ranks > 1 && parameter.shard.dimension > 0)
      most = std::max({most, parameter.shape[1], std::min(kExchanged, parameter.shape.elements())});
  const auto ranks = static_cast<std::size_t>(engine.groups()[GroupKind::HostTp].size());
  const std::size_t bytes = static_cast<std::size_t>(most) * sizeof(double);
  shard_.resize(bytes);
  all_shards_.resize(bytes * ranks);
  joined_.resize(bytes * ranks);
}

void ShardWriter::put(CheckpointWriter& writer, const SavedKind& kind, int bucket,
                      Sharding::Range range, Tensor elements) {
  for (const Parameter& parameter : engine_.parameters().parameters()) {
    if (parameter.bucket != bucket) continue;
    const std::int64_t from = std::max(range.begin, parameter.offset),
                       to = std::min(range.end, parameter.offset + parameter.shape.elements());
    if (from >= to) continue;
    const Target target{writer, kind.name_of(parameter), parameter};
    const Tensor part = elements.rows(from - range.begin, to - from);
    if (parameter.shard.ranks > 1 && parameter.shard.dimension > 0)
      put_rows(target, from - parameter.offset, part);
    else if (parameter.counted)
      put_ranges(target, from - parameter.offset, part);
  }
}

template <class F>
void ShardWriter::guarded(const F& work) {
  if (error_) return;
  try {
    work();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void ShardWriter::finish() {
  guarded([&] { queue_.finish(); });
  if (error_) std::rethrow_exception(error_);
}

void ShardWriter::put_ranges(const Target& target, std::int64_t first, const Tensor& elements) {
  const Parameter& parameter = target.parameter;
  guarded([&] {
    for_each_range(parameter.shard, parameter.global, engine_.parameters().tp_rank(), first,
                   first + elements.elements(), [&](const ShardRange& range) {
                     target.writer.put(queue_, target.name, range.global,
                                       elements.rows(range.local - first, range.count));
                   });
  });
}

void ShardWriter::put_rows(const Target& target, std::int64_t first, const Tensor& elements) {
  Communicator& group = engine_.groups()[GroupKind::HostTp];
  const std::int64_t width = target.parameter.shape[1], last = first + elements.elements();
  const std::int64_t step = std::max<std::int64_t>(1, kExchanged / width) * width;
  for (std::int64_t begin = first; begin < last;) {
    const std::int64_t end = std::min(last, begin / step * step + step);
    const Tensor part = elements.rows(begin - first, end - begin);
    guarded([&] {
      if (device_ != nullptr)
        device_->download(shard_.data(), part);
      else
        std::memcpy(shard_.data(), part.data(), part.bytes());
    });
    // Also after an error, because the other ranks wait for it.
    const auto bytes = static_cast<std::int64_t>(part.bytes());
    group.wait(group.all_gather(Tensor(all_shards_.data(), DType::U8, {bytes * group.size()}),
                                Tensor(shard_.data(), DType::U8, {bytes})));
    if (turn_++ % group.size() == group.rank())
      guarded([&] { join_rows(target, begin, end, part.dtype()); });
    begin = end;
  }
}

void ShardWriter::join_rows(const Target& target, std::int64_t begin, std::int64_t end,
                            DType dtype) {
  const Parameter& parameter = target.parameter;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::vector<Source> sources;
  for (int rank = 0; rank < engine_.groups()[GroupKind::HostTp].size(); ++rank)
    for_each_range(parameter.shard, parameter.global, rank, begin, end,
                   [&](const ShardRange& range) {
                     sources.push_back(
                         {range.global, range.count, rank * (end - begin) + range.local - begin});
                   });
  std::sort(sources.begin(), sources.end(),
            [](const Source& a, const Source& b) { return a.global < b.global; });
  std::int64_t start = 0, filled = 0;  // of the range that is being joined
  const auto flush = [&] {
    if (filled > 0)
      target.writer.put_copy(queue_, target.name, start, Tensor(joined_.data(), dtype, {filled}));
  };
  for (const Source& source : sources) {
    if (start + filled != source.global) {
      flush();
      start = source.global;
      filled = 0;
    }
    std::memcpy(joined_.data() + filled * size, all_shards_.data() + source.at * size,
                static_cast<std::size_t>(source.count * size));
    filled += source.count;
  }
  flush();
}

}  // namespace kintsugi
