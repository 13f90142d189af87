// What follows from the list of operations, for every one of them.
#include <gtest/gtest.h>

#include <type_traits>

#include "backend/sim/sim_backend.h"
#include "backend/traced_backend.h"

namespace kintsugi {
namespace {

// Calls an operation with arguments that only sim can take.
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
    EXPECT_EQ(spans[i].name, names[i] == "matmul" ? "matmul 1x1x1" : names[i]);
    EXPECT_EQ(spans[i].lane, "compute");
    EXPECT_EQ(spans[i].kind, SpanKind::Compute);
  }
}

}  // namespace
}  // namespace kintsugi
