#include <gtest/gtest.h>

#include "core/file.h"
#include "data/stores/store_output.h"
#include "support/counting_store.h"

namespace kintsugi {
namespace {

// Documents without sequences keep their positions: at the start, in the middle and at the end.
TEST(StoreMerge, KeepsDocumentsWithoutSequences) {
  const TemporaryDirectory directory;
  const auto path = [&](const char* name) { return (directory / name).string(); };
  write_megatron(path("a"), TokenType::U16, {{1, 2, 3}, {4}}, {0, 0, 1, 1, 2, 2});
  write_megatron(path("b"), TokenType::U16, {{5}, {6, 7}, {8}}, {0, 2, 2, 3});
  const StoreInfo merged = merge_stores({path("a"), path("b")}, path("out"), false);
  EXPECT_EQ(merged.documents, 8);
  EXPECT_EQ(merged.tokens, 8);
  write_megatron(path("expected"), TokenType::U16, {{1, 2, 3}, {4}, {5}, {6, 7}, {8}},
                 {0, 0, 1, 1, 2, 2, 4, 4, 5});
  EXPECT_EQ(read_text_file(path("out.idx")), read_text_file(path("expected.idx")));
  EXPECT_EQ(read_text_file(path("out.bin")), read_text_file(path("expected.bin")));
}

}  // namespace
}  // namespace kintsugi
