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

void ValidationSet::locate(std::int64_t i, std::vector<TokenRange>& ranges) const {
  stream_->locate(i * available_ / count_ * length_, length_ + 1, ranges);
}

}  // namespace kintsugi
