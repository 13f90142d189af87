#include "train/checkpoint/pieces.h"

#include <algorithm>
#include <cstring>

namespace kintsugi {
namespace {

constexpr std::int64_t kExchanged = std::int64_t{1} << 22;  // elements of a rank at a time

// A run of the whole tensor, and where it lies in what the ranks exchanged.
struct Source {
  std::int64_t there = 0, count = 0;
  std::int64_t at = 0;
};

}  // namespace

PieceWriter::PieceWriter(Engine& engine) : engine_(engine) {
  std::int64_t most = 0;  // elements that are exchanged at a time
  for (const Parameter& parameter : engine.parameters().parameters())
    if (parameter.cut.ranks > 1 && parameter.cut.dimension > 0)
      most = std::max({most, parameter.shape[1], std::min(kExchanged, parameter.shape.elements())});
  const auto ranks = static_cast<std::size_t>(engine.groups()[GroupKind::HostTp].size());
  const std::size_t bytes = static_cast<std::size_t>(most) * sizeof(double);
  mine_.resize(bytes);
  everybodys_.resize(bytes * ranks);
  joined_.resize(bytes * ranks);
}

void PieceWriter::put(CheckpointWriter& writer, const std::string& prefix, int bucket,
                      Sharding::Range range, Tensor elements) {
  for (const Parameter& parameter : engine_.parameters().parameters()) {
    if (parameter.bucket != bucket) continue;
    const std::int64_t from = std::max(range.begin, parameter.offset),
                       to = std::min(range.end, parameter.offset + parameter.shape.elements());
    if (from >= to) continue;
    const Target target{writer, prefix + parameter.name, parameter};
    const Tensor piece = elements.rows(from - range.begin, to - from);
    if (parameter.cut.ranks > 1 && parameter.cut.dimension > 0)
      put_rows(target, from - parameter.offset, piece);
    else if (parameter.counted)
      put_runs(target, from - parameter.offset, piece);
  }
}

template <class F>
void PieceWriter::guarded(const F& work) {
  if (error_) return;
  try {
    work();
  } catch (...) {
    error_ = std::current_exception();
  }
}

Tensor PieceWriter::download(const Tensor& elements) {
  if (mine_.size() < elements.bytes()) mine_.resize(elements.bytes());
  engine_.backend().download(mine_.data(), elements);
  return Tensor(mine_.data(), elements.dtype(), {elements.elements()});
}

void PieceWriter::put_runs(const Target& target, std::int64_t first, const Tensor& elements) {
  const Parameter& parameter = target.parameter;
  guarded([&] {
    const Tensor host = download(elements);
    for_each_run(parameter.cut, parameter.global, engine_.parameters().tp_rank(), first,
                 first + elements.elements(), [&](const CutRun& run) {
                   target.writer.put(target.name, run.there,
                                     host.rows(run.here - first, run.count));
                 });
  });
}

void PieceWriter::put_rows(const Target& target, std::int64_t first, const Tensor& elements) {
  Communicator& group = engine_.groups()[GroupKind::HostTp];
  const std::int64_t width = target.parameter.shape[1], last = first + elements.elements();
  const std::int64_t step = std::max<std::int64_t>(1, kExchanged / width) * width;
  for (std::int64_t begin = first; begin < last;) {
    const std::int64_t end = std::min(last, begin / step * step + step);
    const Tensor part = elements.rows(begin - first, end - begin);
    guarded([&] { download(part); });
    // Also after an error: the others count on it.
    const auto bytes = static_cast<std::int64_t>(part.bytes());
    group.wait(group.all_gather(Tensor(everybodys_.data(), DType::U8, {bytes * group.size()}),
                                Tensor(mine_.data(), DType::U8, {bytes})));
    if (turn_++ % group.size() == group.rank())
      guarded([&] { join_rows(target, begin, end, part.dtype()); });
    begin = end;
  }
}

void PieceWriter::join_rows(const Target& target, std::int64_t begin, std::int64_t end,
                            DType dtype) {
  const Parameter& parameter = target.parameter;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::vector<Source> sources;
  for (int rank = 0; rank < engine_.groups()[GroupKind::HostTp].size(); ++rank)
    for_each_run(parameter.cut, parameter.global, rank, begin, end, [&](const CutRun& run) {
      sources.push_back({run.there, run.count, rank * (end - begin) + run.here - begin});
    });
  std::sort(sources.begin(), sources.end(),
            [](const Source& a, const Source& b) { return a.there < b.there; });
  std::int64_t start = 0, filled = 0;  // of the run that is being joined
  const auto flush = [&] {
    if (filled > 0) target.writer.put(target.name, start, Tensor(joined_.data(), dtype, {filled}));
  };
  for (const Source& source : sources) {
    if (start + filled != source.there) {
      flush();
      start = source.there;
      filled = 0;
    }
    std::memcpy(joined_.data() + filled * size, everybodys_.data() + source.at * size,
                static_cast<std::size_t>(source.count * size));
    filled += source.count;
  }
  flush();
}

}  // namespace kintsugi
