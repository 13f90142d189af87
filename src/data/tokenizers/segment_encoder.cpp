#include "data/tokenizers/segment_encoder.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::string_view kContext = "a\n";

using Ids = std::vector<std::int32_t>;

Ids ids_of(Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

bool starts_with(const Ids& ids, std::size_t from, const Ids& start) {
  return ids.size() - from >= start.size() &&
         std::equal(start.begin(), start.end(), ids.begin() + static_cast<std::ptrdiff_t>(from));
}

}  // namespace

SegmentEncoder::SegmentEncoder(Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  try {
    const Ids whole = ids_of(tokenizer_, "a\na"), letter = ids_of(tokenizer_, "a");
    context_ids_ = ids_of(tokenizer_, kContext);
    Ids parts = context_ids_;
    parts.insert(parts.end(), letter.begin(), letter.end());
    plain_ = whole == parts;
    break_first_ = !starts_with(whole, 0, context_ids_);
    if (break_first_) context_ids_ = letter;
  } catch (const UserError&) {
    plain_ = true;  // it cannot encode the context
  }
}

void SegmentEncoder::encode(const TextSegment& segment, Ids& ids) {
  std::string_view text = segment.text;
  // The next segment then begins with this line break.
  if (!plain_ && break_first_ && !segment.ends_document && text.ends_with('\n'))
    text.remove_suffix(1);
  if (plain_ || segment.starts_document || (break_first_ && !segment.after_break))
    return tokenizer_.encode(text, ids);
  joined_.assign(kContext).append(text);
  const std::size_t before = ids.size();
  tokenizer_.encode(joined_, ids);
  const auto first = ids.begin() + static_cast<std::ptrdiff_t>(before);
  if (starts_with(ids, before, context_ids_)) {
    ids.erase(first, first + static_cast<std::ptrdiff_t>(context_ids_.size()));
  } else {  // the context and this text share a token
    ids.resize(before);
    tokenizer_.encode(text, ids);
  }
}

}  // namespace kintsugi
