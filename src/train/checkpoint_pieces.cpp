#include "train/checkpoint_pieces.h"

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

void PieceWriter::put(const std::string& folder, const std::string& prefix, int bucket,
                      Sharding::Range range, Tensor elements) {
  for (const Parameter& parameter : engine_.parameters().parameters()) {
    if (parameter.bucket != bucket) continue;
    const std::int64_t from = std::max(range.begin, parameter.offset),
                       to = std::min(range.end, parameter.offset + parameter.shape.elements());
    if (from >= to) continue;
    const Target target{folder, prefix + parameter.name, parameter};
    const Tensor piece = elements.rows(from - range.begin, to - from);
    if (parameter.cut.ranks > 1 && parameter.cut.dimension > 0)
      put_rows(target, from - parameter.offset, piece);
    else if (parameter.counted)
      put_runs(target, from - parameter.offset, piece);
  }
}

Tensor PieceWriter::download(const Tensor& elements) {
  mine_.resize(elements.bytes());
  engine_.backend().download(mine_.data(), elements);
  return Tensor(mine_.data(), elements.dtype(), {elements.elements()});
}

void PieceWriter::write(const Target& target, std::int64_t first, const Tensor& host) {
  if (error_) return;
  try {
    writer_.put(target.folder, target.name, first, host);
  } catch (...) {
    error_ = std::current_exception();
  }
}

void PieceWriter::put_runs(const Target& target, std::int64_t first, const Tensor& elements) {
  const Tensor host = download(elements);
  const Parameter& parameter = target.parameter;
  for_each_run(parameter.cut, parameter.global, engine_.parameters().tp_rank(), first,
               first + elements.elements(), [&](const CutRun& run) {
                 write(target, run.there, host.rows(run.here - first, run.count));
               });
}

void PieceWriter::put_rows(const Target& target, std::int64_t first, const Tensor& elements) {
  Communicator& group = *engine_.groups().host_tp;
  const Parameter& parameter = target.parameter;
  const std::int64_t width = parameter.shape[1], last = first + elements.elements();
  const auto size = static_cast<std::int64_t>(size_of(elements.dtype()));
  const std::int64_t step = std::max<std::int64_t>(1, kExchanged / width) * width;
  for (std::int64_t begin = first; begin < last;) {
    const std::int64_t end = std::min(last, begin / step * step + step), count = end - begin;
    download(elements.rows(begin - first, count));
    everybodys_.resize(mine_.size() * static_cast<std::size_t>(group.size()));
    group.wait(group.all_gather(
        Tensor(everybodys_.data(), DType::U8, {static_cast<std::int64_t>(everybodys_.size())}),
        Tensor(mine_.data(), DType::U8, {static_cast<std::int64_t>(mine_.size())})));
    if (turn_++ % group.size() == group.rank()) {
      std::vector<Source> sources;
      for (int rank = 0; rank < group.size(); ++rank)
        for_each_run(parameter.cut, parameter.global, rank, begin, end, [&](const CutRun& run) {
          sources.push_back({run.there, run.count, rank * count + run.here - begin});
        });
      std::sort(sources.begin(), sources.end(),
                [](const Source& a, const Source& b) { return a.there < b.there; });
      joined_.resize(everybodys_.size());
      std::int64_t start = 0, filled = 0;  // of the run that is being joined
      const auto flush = [&] {
        if (filled > 0) write(target, start, Tensor(joined_.data(), elements.dtype(), {filled}));
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
    begin = end;
  }
}

}  // namespace kintsugi
