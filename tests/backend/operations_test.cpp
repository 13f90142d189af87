// Tests of every operation in backend/operations.def.
#include <gtest/gtest.h>

#include <type_traits>

#include "backend/sim/sim_backend.h"
#include "backend/traced_backend.h"

namespace kintsugi {
namespace {

// Calls an operation with arguments that only the sim backend accepts.
template <class... Arguments>
void call(Backend& backend, void (Backend::*operation)(Arguments...)) {
  const auto argument = []<class T>() -> T {
    if constexpr (std::is_same_v<T, Tensor>)
      return Tensor(nullptr, DType::F32, {1, 1, 1, 1});
    else
      return {};
  };
  (backend.*operation)(argument.template operator()<std::decay_t<Arguments>>()...);
}

TEST(Operations, EachIsOneEntryOfSimAndOneSpanUnderItsName) {
  OperationTrace operations;
  Trace trace;
  const auto backend = make_traced_backend(std::make_unique<SimBackend>(operations), trace);
  std::vector<std::string> names;
  trace.begin();
#define KINTSUGI_OPERATION(name, parameters, ...) \
  names.push_back(#name);                         \
  call(*backend, &Backend::name);
#include "backend/operations.def"
  trace.end();
  const auto spans = trace.take();
  ASSERT_EQ(spans.size(), names.size());
  ASSERT_EQ(operations.operations.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(operations.operations[i].name, names[i]);
    const std::string shape = names[i] == "matmul"               ? " 1x1x1"
                              : names[i] == "matmul_fp8"         ? " 1x1x0"
                              : names[i] == "attention_forward"  ? " 1x1x1x1 causal"
                              : names[i] == "attention_backward" ? " 1x1x1x1 causal"
                                                                 : "";
    EXPECT_EQ(spans[i].name, names[i] + shape);
    EXPECT_EQ(spans[i].operation, static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(spans[i].bytes, static_cast<std::int64_t>(operations.operations[i].bytes));
    EXPECT_EQ(spans[i].flops, operations.operations[i].flops);
    EXPECT_EQ(spans[i].lane, "compute");
    EXPECT_EQ(spans[i].kind, SpanKind::Operation);
  }
}

// The sim backend counts only the (query, key) pairs that the mask keeps.
TEST(Operations, SimCountsAttentionInWindows) {
  const TokenPositions together{}, behind{.first = 9}, chunks{3, 4, 20}, others{7, 5, 12};
  for (const TokenPositions& queries : {together, behind, chunks})
    for (const TokenPositions& keys : {together, chunks, others})
      for (const std::int64_t window : {0, 1, 2, 5, 8, 13, 100}) {
        OperationTrace trace;
        SimBackend backend(trace);
        const auto tensor = [](std::int64_t tokens, std::int64_t heads) {
          return Tensor(nullptr, DType::F32, {2, tokens, heads, 8});
        };
        backend.attention_forward(
            tensor(11, 6), {}, tensor(11, 6), tensor(9, 3), tensor(9, 3),
            {.window = window, .key_positions = keys, .query_positions = queries});
        std::int64_t pairs = 0;
        for (std::int64_t i = 0; i < 11; ++i)
          for (std::int64_t j = 0; j < 9; ++j) {
            const std::int64_t distance = queries.of(i) - keys.of(j);
            pairs += distance >= 0 && (window == 0 || distance < window);
          }
        EXPECT_EQ(trace.flops(), 2.0 * 2 * 8 * 2 * 6 * static_cast<double>(pairs))
            << queries.first << " " << keys.first << " " << window;
      }
}

}  // namespace
}  // namespace kintsugi
