#include <gtest/gtest.h>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

void check(const RankLayout& layout, Training training) {
  SCOPED_TRACE(to_string(layout));
  Training alone = training;
  const Outcome expected = trained({}, alone, 4);
  const Outcome actual = trained(layout, training, 4);
  expect_same(actual, expected, training.precision, to_string(layout));
}

TEST(Layouts, Tensor) {
  for (const auto& kind : tiny_models()) {
    SCOPED_TRACE(kind);
    check({.tp = 2}, {.model = tiny_model(kind, 2), .sequences = 2});
    check({.tp = 4}, {.model = tiny_model(kind, 2), .sequences = 2, .micro = 2});
  }
}
TEST(Layouts, Sequence) {
  for (const auto& kind : tiny_models()) {
    SCOPED_TRACE(kind);
    check({.tp = 2, .sequence_parallel = true},
          {.model = tiny_model(kind, 2), .sequences = 2, .length = 8, .dropout = 0.2});
  }
}
TEST(Layouts, Context) {
  for (const auto& kind : tiny_models()) {
    SCOPED_TRACE(kind);
    check({.cp = 2}, {.model = tiny_model(kind, 2),
                      .sequences = 2,
                      .length = 8,
                      .dropout = 0.2,
                      .documents = true});
  }
}
TEST(Layouts, Pipeline) {
  for (const auto& kind : tiny_models()) {
    SCOPED_TRACE(kind);
    for (auto schedule :
         {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward, PipelineKind::ZeroBubbleH1})
      check({.pp = 2, .schedule = schedule}, {.model = tiny_model(kind, 3), .sequences = 4});
    check({.pp = 2, .chunks = 2, .schedule = PipelineKind::Interleaved},
          {.model = tiny_model(kind, 4), .sequences = 4});
  }
}
TEST(Layouts, All) {
  for (const auto& kind : tiny_models()) {
    SCOPED_TRACE(kind);
    for (int zero : {0, 1, 2, 3})
      check({.dp = 2, .zero = zero, .tp = 2, .cp = 2, .pp = 2, .sequence_parallel = true},
            {.model = tiny_model(kind, 3),
             .sequences = 8,
             .length = 8,
             .dropout = 0.1,
             .documents = true});
  }
}

}  // namespace
}  // namespace kintsugi
