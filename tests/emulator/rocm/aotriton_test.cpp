// Attention through AOTriton's interface, whose stand-in (aotriton.cpp) has the
// parameters of each release, against the CPU backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/attention.h"
#include "backend/gpu/gpu_backend.h"
#include "core/log.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using gpu::Attention;
using gpu::AttentionChoice;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Case {
  std::int64_t batch, queries, keys, heads, kv_heads, dim;
  AttentionOptions options = {};
  bool packed = false;  // q, k and v are columns of one buffer
};

struct Results {
  std::vector<double> out, lse, dq, dk, dv;
};

// Attention by one backend. Both compute with the same values, which every type holds.
class Operands {
 public:
  Operands(Backend& backend, DType type, const Case& c)
      : backend_(backend), type_(type), arena_(backend) {
    const Shape wide = {c.batch, c.queries, c.heads, c.dim},
                narrow = {c.batch, c.keys, c.kv_heads, c.dim};
    q = tensor(wide), k = tensor(narrow), v = tensor(narrow), dout = tensor(wide);
    if (c.packed) {  // the queries of all heads, then the keys and the values
      const Tensor all = tensor({c.batch, c.queries, c.heads + 2 * c.kv_heads, c.dim});
      q = all.part(2, 0, c.heads);
      k = all.part(2, c.heads, c.kv_heads);
      v = all.part(2, c.heads + c.kv_heads, c.kv_heads);
    }
    out = tensor(wide), dq = tensor(wide), dk = tensor(narrow), dv = tensor(narrow);
    lse = arena_.allocate(Region::Workspace, "lse", DType::F32, {c.batch, c.heads, c.queries});
  }

  Results read() { return {values(out), values(lse), values(dq), values(dk), values(dv)}; }

  Tensor q, k, v, dout, out, lse, dq, dk, dv;

 private:
  Tensor tensor(Shape shape) {
    const Tensor x = arena_.allocate(Region::Workspace, "test", type_, shape);
    std::normal_distribution<double> normal;
    visit_float(type_, [&]<class T>() {
      std::vector<T> host(static_cast<std::size_t>(shape.elements()));
      for (T& value : host)  // eighths
        value = static_cast<T>(static_cast<Accumulator<T>>(std::round(normal(random_) * 8) / 8));
      backend_.upload(x, host.data());
      backend_.synchronize();
    });
    return x;
  }
  std::vector<double> values(const Tensor& x) {
    std::vector<double> all;
    visit_float(x.dtype(), [&]<class T>() {
      std::vector<T> host(static_cast<std::size_t>(x.elements()));
      backend_.download(host.data(), x);
      for (const T value : host)
        all.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
    });
    return all;
  }
  Backend& backend_;
  DType type_;
  Arena arena_;
  std::mt19937 random_{11};
};

class Aotriton : public testing::Test {
 protected:
  // Its backend has no AOTriton, so that only `Attention` uses the library.
  void SetUp() override {
    backend_ = make_gpu_backend();
    setenv("ROCM_PATH", rocm_stand_in("aotriton").c_str(), 1);
  }
  void TearDown() override {
    for (const char* name :
         {"ROCM_PATH", "KINTSUGI_STAND_IN_AOTRITON", "KINTSUGI_STAND_IN_AOTRITON_FAULT"})
      unsetenv(name);
    redirect_log(nullptr);
  }
  static void use(const std::string& release, const std::string& fault = "") {
    setenv("KINTSUGI_STAND_IN_AOTRITON", release.c_str(), 1);
    setenv("KINTSUGI_STAND_IN_AOTRITON_FAULT", fault.c_str(), 1);
  }

  Results attend(DType type, const Case& c, bool deterministic = false) {
    Operands run(*backend_, type, c);
    Attention attention;
    attention.set_choice(AttentionChoice::Fused);
    attention.set_deterministic(deterministic);
    const gpu::Stream stream = backend_->device().stream;
    for (int i = 0; i < 2; ++i) {  // again: with memory that is in use
      attention.forward(run.out, run.lse, run.q, run.k, run.v, c.options, stream);
      attention.backward(run.dq, run.dk, run.dv, run.dout, run.out, run.lse, run.q, run.k, run.v,
                         c.options, stream);
    }
    EXPECT_THAT(attention.last_kernel(), HasSubstr("AOTriton"));
    return run.read();
  }
  static Results expected(const Case& c) {
    const auto backend = make_cpu_backend();
    Operands run(*backend, DType::F32, c);
    backend->attention_forward(run.out, run.lse, run.q, run.k, run.v, c.options);
    backend->attention_backward(run.dq, run.dk, run.dv, run.dout, run.out, run.lse, run.q, run.k,
                                run.v, c.options);
    return run.read();
  }
  static double largest_error(const std::vector<double>& a, const std::vector<double>& b) {
    double error = 0, size = 1;
    for (const double value : b) size = std::max(size, std::abs(value));
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
      error = std::max(error, std::abs(a[i] - b[i]) / size);
    }
    return error;
  }
  static void expect_close(const Results& found, const Results& right) {
    constexpr double kNarrow = 1.0 / 128;
    EXPECT_LT(largest_error(found.out, right.out), kNarrow);
    EXPECT_LT(largest_error(found.lse, right.lse), 1e-5);
    EXPECT_LT(largest_error(found.dq, right.dq), kNarrow);
    EXPECT_LT(largest_error(found.dk, right.dk), kNarrow);
    EXPECT_LT(largest_error(found.dv, right.dv), kNarrow);
  }

  // The warnings while a backend is made, and what it says of itself.
  static std::vector<std::string> warnings(std::string* description = nullptr,
                                           const GpuOptions& options = {}) {
    std::vector<std::string> all;
    redirect_log([&](LogLevel, std::string_view text) { all.emplace_back(text); });
    const auto backend = make_gpu_backend(options);
    if (description != nullptr) *description = backend->description();
    redirect_log(nullptr);
    return all;
  }

  std::unique_ptr<Backend> backend_;
};

constexpr const char* kReleases[] = {"0.10", "0.11", "0.12", "0.13"};

TEST_F(Aotriton, ComputesAttention) {
  const std::vector<Case> cases = {
      {2, 17, 17, 4, 2, 16, {.scale = 0.3}},
      {1, 20, 20, 2, 2, 8, {.scale = 0.4}, true},
      {2, 19, 19, 6, 1, 24, {.scale = 0.2}, true},
      {2, 9, 40, 3, 3, 24, {.scale = 0.2}},  // the last queries of longer sequences
      {3, 1, 20, 4, 2, 16, {.scale = 0.3}},  // one query, which sees all keys
      {1, 12, 12, 2, 1, 16, {.scale = 0.3, .window = 40}},
      // Queries behind all keys, and two chunks of positions: parts of a ring.
      {2, 12, 8, 2, 2, 16, {.scale = 0.3, .query_positions = TokenPositions{.first = 100}}},
      {1,
       12,
       12,
       2,
       1,
       16,
       {.scale = 0.3, .key_positions = {0, 6, 50}, .query_positions = TokenPositions{0, 6, 50}}},
  };
  for (const char* const release : kReleases)
    for (const DType type : {DType::BF16, DType::F16})
      for (std::size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(fmt::format("{} {} case {}", release, to_string(type), i));
        use(release);
        expect_close(attend(type, cases[i]), expected(cases[i]));
        expect_close(attend(type, cases[i], true), expected(cases[i]));
      }
}

TEST_F(Aotriton, ComputesWindows) {
  for (const std::int64_t window : {1, 5, 32}) {
    const Case c{2, 33, 33, 4, 2, 16, {.scale = 0.3, .window = window}};
    for (const char* const release : {"0.11", "0.13"}) {
      SCOPED_TRACE(fmt::format("{} window {}", release, window));
      use(release);
      expect_close(attend(DType::BF16, c), expected(c));
    }
    use("0.10");  // takes the left end of a window for its right one
    EXPECT_THROW(attend(DType::BF16, c), Failure);
  }
}

TEST_F(Aotriton, SumsWithoutAtomicsIfDeterministic) {
  const Case c{1, 20, 20, 2, 2, 16, {.scale = 0.3}};
  const Results right = expected(c);
  for (const char* const release : {"0.11", "0.13"}) {
    use(release, "atomics");
    EXPECT_GT(largest_error(attend(DType::BF16, c, false).dq, right.dq), 0.1) << release;
    expect_close(attend(DType::BF16, c, true), right);
  }
}

TEST_F(Aotriton, SaysWhatItDoesNotCompute) {
  use("0.13");
  const auto why = [&](DType type, const Case& c) -> std::string {
    try {
      attend(type, c);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  Arena arena(*backend_);
  const Tensor slopes = arena.allocate(Region::Workspace, "slopes", DType::F32, {2}),
               starts = arena.allocate(Region::Workspace, "starts", DType::I32, {1, 12});
  const Case plain{1, 12, 12, 2, 1, 16};
  EXPECT_EQ(why(DType::BF16, plain), "");
  EXPECT_THAT(why(DType::F32, plain), HasSubstr("bf16 and fp16 only"));
  EXPECT_THAT(why(DType::BF16, {1, 12, 12, 2, 1, 16, {.alibi_slopes = slopes}}),
              HasSubstr("no ALiBi"));
  EXPECT_THAT(why(DType::BF16, {1, 12, 12, 2, 1, 16, {.document_start = starts}}),
              HasSubstr("does not separate documents"));
  EXPECT_THAT(why(DType::BF16, {1, 12, 12, 2, 1, 20}), HasSubstr("multiple of 8"));
  EXPECT_THAT(why(DType::BF16, {1, 12, 20, 2, 1, 16, {.window = 3}}),
              HasSubstr("as many queries as keys"));
  EXPECT_THAT(
      why(DType::BF16, {1, 12, 12, 2, 1, 16, {.query_positions = TokenPositions{.first = 3}}}),
      HasSubstr("positions of the last keys"));
  // The first queries see none of these keys.
  const auto some = TokenPositions{.first = 4};
  EXPECT_THAT(
      why(DType::BF16,
          {1, 12, 8, 2, 1, 16, {.key_positions = some, .query_positions = TokenPositions{}}}),
      HasSubstr("positions of the last keys"));
  unsetenv("ROCM_PATH");
  EXPECT_THAT(why(DType::BF16, plain), HasSubstr("libaotriton_v2.so is not installed"));
}

TEST_F(Aotriton, IsUsedIfItIsRight) {
  std::string description;
  for (const char* const release : {"0.10", "0.11"}) {
    use(release);
    EXPECT_THAT(warnings(&description), IsEmpty());
    EXPECT_THAT(description, HasSubstr(fmt::format(", AOTriton {}", release)));
  }
  for (const char* const release : {"0.12", "0.13"}) {
    use(release);
    EXPECT_THAT(warnings(&description), IsEmpty());
    EXPECT_THAT(description, HasSubstr(", AOTriton 0.12 or 0.13"));
  }
  unsetenv("ROCM_PATH");
  EXPECT_THAT(warnings(&description), IsEmpty());
  EXPECT_THAT(description, Not(HasSubstr("AOTriton")));
}

TEST_F(Aotriton, IsNotUsedIfItIsWrong) {
  const auto warns = [](const std::string& what) {
    return ElementsAre(
        testing::MatchesRegex("attention runs on the portable kernel, which is slower: " + what));
  };
  for (const char* const release : kReleases) {
    SCOPED_TRACE(release);
    std::string description;
    use(release, "scale");
    EXPECT_THAT(warnings(&description),
                warns("AOTriton .* computes attention in bf16 wrongly: .*"));
    EXPECT_THAT(description, Not(HasSubstr("AOTriton")));
    use(release, "base");
    EXPECT_THAT(warnings(), warns(".* wrongly: element .* of log-sum-exp is .*"));
    use(release, "kernels");
    EXPECT_THAT(warnings(), warns("attention forward of 2 heads of 16, length 24: AOTriton .*"));
  }
  use("0.11", "atomics");
  EXPECT_THAT(warnings(nullptr, {.deterministic = false}),
              warns(".* wrongly: element .* of dq is .*"));
  EXPECT_THAT(warnings(), IsEmpty());
  use("0.14");
  EXPECT_THAT(warnings(), warns("libaotriton_v2.so is none of 0.10 to 0.13"));
}

// Afterwards attention is right, whatever the library computes.
TEST_F(Aotriton, GivesWayToTheOwnKernel) {
  use("0.11", "scale");
  const Case c{1, 20, 20, 2, 2, 16, {.scale = 0.3}};
  redirect_log([](LogLevel, std::string_view) {});
  const auto backend = make_gpu_backend();
  Operands run(*backend, DType::BF16, c);
  backend->attention_forward(run.out, run.lse, run.q, run.k, run.v, c.options);
  backend->attention_backward(run.dq, run.dk, run.dv, run.dout, run.out, run.lse, run.q, run.k,
                              run.v, c.options);
  expect_close(run.read(), expected(c));
}

}  // namespace
}  // namespace kintsugi
