#include "data/tokenizers/same_ids.h"

namespace kintsugi {
namespace {

std::vector<std::int32_t> probe_ids(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  tokenizer.clone()->encode("The year 1984, in Jyväskylä:\n\tint main() { return 0; } // 金継ぎ",
                            ids, SpecialTokens::AsText);
  return ids;
}

}  // namespace

bool gives_same_ids(const Tokenizer& a, const Tokenizer& b) { return probe_ids(a) == probe_ids(b); }

}  // namespace kintsugi
