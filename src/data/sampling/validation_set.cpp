#include "data/sampling/validation_set.h"

#include <algorithm>
#include <utility>

namespace kintsugi {

ValidationSet::ValidationSet(std::string name, const TokenStream& stream, std::int64_t length,
                             std::int64_t count)
    : name_(std::move(name)),
      stream_(&stream),
      length_(length),
      available_(std::max<std::int64_t>(stream.tokens() - 1, 0) / length),
      count_(count > 0 ? std::min(count, available_) : available_) {}

ValidationSet::ValidationSet(std::string name, const TokenStream& stream, PackingIndex packed,
                             std::int64_t count)
    : name_(std::move(name)),
      stream_(&stream),
      packed_(std::move(packed)),
      length_(0),
      available_(packed_->summary().samples),
      count_(count > 0 ? std::min(count, available_) : available_) {}

void ValidationSet::locate(std::int64_t i, std::vector<TokenRange>& ranges) const {
  const std::int64_t sample = i * available_ / count_;
  if (packed_) return packed_->locate(sample, *stream_, ranges);
  stream_->locate(sample * length_, length_ + 1, ranges);
}

}  // namespace kintsugi
