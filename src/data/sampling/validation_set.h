#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/sampling/packing_index.h"
#include "data/sampling/token_stream.h"

namespace kintsugi {

// Validation samples: `count` windows of length + 1 tokens, or packed samples, spread evenly over
// the held-out part of one source (all if there are fewer, or if count is 0). Always the same.
class ValidationSet {
 public:
  ValidationSet(std::string name, const TokenStream& stream, std::int64_t length,
                std::int64_t count);
  ValidationSet(std::string name, const TokenStream& stream, PackingIndex packed,
                std::int64_t count);

  const std::string& name() const { return name_; }
  std::int64_t size() const { return count_; }
  void locate(std::int64_t i, std::vector<TokenRange>& ranges) const;

 private:
  std::string name_;
  const TokenStream* stream_;
  std::optional<PackingIndex> packed_;
  std::int64_t length_, available_, count_;
};

}  // namespace kintsugi
