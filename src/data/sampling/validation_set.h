#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sampling/token_stream.h"

namespace kintsugi {

// Samples for validation: `count` windows of length + 1 tokens, spread evenly over what is held out
// of one source (all of them when there are fewer, or when count is 0). The same ones every time.
class ValidationSet {
 public:
  ValidationSet(std::string name, const TokenStream& stream, std::int64_t length,
                std::int64_t count);

  const std::string& name() const { return name_; }
  std::int64_t size() const { return count_; }
  void locate(std::int64_t i, std::vector<TokenPiece>& pieces) const;

 private:
  std::string name_;
  const TokenStream* stream_;
  std::int64_t length_, available_, count_;
};

}  // namespace kintsugi
