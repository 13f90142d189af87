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
  std::int64_t most = 0;  // elements exchanged or rounded at a time
  for (const Parameter& parameter : engine.parameters().parameters())
    if ((parameter.shard.ranks > 1 && parameter.shard.dimension > 0) ||
        engine.sharding().is_unrounded(parameter.bucket))
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
    const Target target{writer, kind.name_of(parameter), parameter, kind.dtype};
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
                     const Tensor part = elements.rows(range.local - first, range.count);
                     if (part.dtype() != target.dtype)
                       put_rounded(target, range.global, part);
                     else
                       target.writer.put(queue_, target.name, range.global, part);
                   });
  });
}

void ShardWriter::put_rounded(const Target& target, std::int64_t global, const Tensor& elements) {
  for (std::int64_t first = 0; first < elements.elements(); first += kExchanged) {
    const Tensor part = elements.rows(first, std::min(kExchanged, elements.elements() - first));
    fetch(part, target.dtype);
    target.writer.put_copy(queue_, target.name, global + first,
                           Tensor(shard_.data(), target.dtype, part.shape()));
  }
}

void ShardWriter::fetch(const Tensor& elements, DType dtype) {
  if (device_ != nullptr)
    device_->download(shard_.data(), elements);
  else
    std::memcpy(shard_.data(), elements.data(), elements.bytes());
  if (elements.dtype() == dtype) return;
  KINTSUGI_CHECK(elements.dtype() == DType::F32 && dtype == DType::BF16, "{} rounded to {}",
                 to_string(elements.dtype()), to_string(dtype));
  for (std::size_t i = 0; i < static_cast<std::size_t>(elements.elements()); ++i) {  // in place
    float number;
    std::memcpy(&number, shard_.data() + i * sizeof(float), sizeof(number));
    const bf16 rounded(number);
    std::memcpy(shard_.data() + i * sizeof(bf16), &rounded, sizeof(rounded));
  }
}

void ShardWriter::put_rows(const Target& target, std::int64_t first, const Tensor& elements) {
  Communicator& group = engine_.groups()[GroupKind::HostTp];
  const std::int64_t width = target.parameter.shape[1], last = first + elements.elements();
  const std::int64_t step = std::max<std::int64_t>(1, kExchanged / width) * width;
  for (std::int64_t begin = first; begin < last;) {
    const std::int64_t end = std::min(last, begin / step * step + step);
    const Tensor part = elements.rows(begin - first, end - begin);
    guarded([&] { fetch(part, target.dtype); });
    // Also after an error, because the other ranks wait for it.
    const auto bytes = part.elements() * static_cast<std::int64_t>(size_of(target.dtype));
    group.wait(group.all_gather(Tensor(all_shards_.data(), DType::U8, {bytes * group.size()}),
                                Tensor(shard_.data(), DType::U8, {bytes})));
    if (turn_++ % group.size() == group.rank()) guarded([&] { join_rows(target, begin, end); });
    begin = end;
  }
}

void ShardWriter::join_rows(const Target& target, std::int64_t begin, std::int64_t end) {
  const Parameter& parameter = target.parameter;
  const auto size = static_cast<std::int64_t>(size_of(target.dtype));
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
      target.writer.put_copy(queue_, target.name, start,
                             Tensor(joined_.data(), target.dtype, {filled}));
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
