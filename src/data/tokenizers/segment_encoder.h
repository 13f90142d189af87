#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// A part of a document that is too long to encode at once (record_reader.h).
struct TextSegment {
  std::string_view text;
  bool starts_document = true, ends_document = true;
  bool after_break = false;  // the text before it ends with a line break
};

// Encodes the segments of a document to the tokens of the whole document. Many tokenizers treat the
// start of a text in another way: they put a space before it (SentencePiece's add_dummy_prefix,
// Prepend, Metaspace), which only the start of the document must get. So a later segment is encoded
// after a short context, whose tokens are removed.
class SegmentEncoder {
 public:
  explicit SegmentEncoder(Tokenizer& tokenizer);  // it must outlive this object
  void encode(const TextSegment& segment, std::vector<std::int32_t>& ids);

 private:
  Tokenizer& tokenizer_;
  bool plain_ = false;        // the start of a text is like any other position
  bool break_first_ = false;  // a line break may be one token with the text after it
  std::vector<std::int32_t> context_ids_;
  std::string joined_;
};

}  // namespace kintsugi
