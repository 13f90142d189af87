// Device time of attention to one sequence on one GPU: one rank alone, and the sum over the ranks
// of a ring and of Ulysses, which run one after another without communication. A second table has
// our own kernels.
//   build/bench_context_attention [--length 32768] [--ranks 2,4] [--window 4096] [--document 4096]
//   [--no-own] [--deterministic]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"
#include "model/layers/ring_attention.h"
#include "model/layers/ulysses_attention.h"
#include "model/shard.h"
#include "tensor/arena.h"

using namespace kintsugi;

namespace {

struct Options {
  std::int64_t length = 32768, heads = 32, kv_heads = 8, dim = 128, repeats = 3;
  std::int64_t window = 0, document = 0;  // 0: none; one document
  std::vector<int> ranks = {2, 4};
  bool deterministic = false, own = true;
};

// A rank of a group whose messages have arrived when they are sent.
class SilentCommunicator final : public Communicator {
 public:
  SilentCommunicator(int rank, int size) : Communicator("cp", rank, size) {}
  Work start(const Call&) override { return {}; }
  void wait(Work) override {}
  void barrier() override {}
};

struct Times {
  double attention_ms = 0, all_ms = 0;  // all: and merges, sums and copies
  void operator+=(const Times& more) {
    attention_ms += more.attention_ms;
    all_ms += more.all_ms;
  }
};
struct BothTimes {
  Times forward, backward;
};

// The operands of one rank.
class Problem {
 public:
  Problem(Backend& backend, const Options& o, std::int64_t length)
      : backend_(backend), o_(o), arena_(backend) {
    qkv_ = random(o.heads + 2 * o.kv_heads, length);
    dout_ = random(o.heads, length);
    dqkv_ = random(o.heads + 2 * o.kv_heads, length);
    out_ = random(o.heads, length);
    lse_ = arena_.allocate(Region::Workspace, "sums", DType::F32, {1, o.heads, length});
  }

  BothTimes alone() {
    const AttentionOptions options{
        .scale = scale(), .document_start = starts({}), .window = o_.window};
    const auto [q, k, v] = split(qkv_);
    const auto [dq, dk, dv] = split(dqkv_);
    return measure(
        [&, q = q, k = k, v = v] { backend_.attention_forward(out_, lse_, q, k, v, options); },
        [&, q = q, k = k, v = v, dq = dq, dk = dk, dv = dv] {
          backend_.attention_backward(dq, dk, dv, dout_, out_, lse_, q, k, v, options);
        });
  }

  BothTimes sharded(ContextMethod method, int rank, int ranks) {
    SilentCommunicator group(rank, ranks);
    const ContextAttentionSizes sizes{1, out_.extent(1), o_.heads, o_.kv_heads, o_.dim, o_.dim};
    const auto attention = make(method, group, sizes);
    const Tensor first = starts(ContextShard{ranks, rank, o_.length, method});
    const auto [q, k, v] = split(qkv_);
    const auto [dq, dk, dv] = split(dqkv_);
    return measure([&, q = q, k = k,
                    v = v] { attention->forward(out_, lse_, q, k, v, scale(), first, o_.window); },
                   [&, q = q, k = k, v = v, dq = dq, dk = dk, dv = dv] {
                     attention->backward(dq, dk, dv, dout_, out_, lse_, q, k, v, scale(), first,
                                         o_.window);
                   });
  }

 private:
  struct Heads {
    Tensor q, k, v;
  };
  Heads split(const Tensor& rows) const {
    return {rows.part(2, 0, o_.heads), rows.part(2, o_.heads, o_.kv_heads),
            rows.part(2, o_.heads + o_.kv_heads, o_.kv_heads)};
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(o_.dim)); }

  std::unique_ptr<ContextAttention> make(ContextMethod method, Communicator& group,
                                         const ContextAttentionSizes& sizes) {
    if (method == ContextMethod::Ring)
      return std::make_unique<RingAttention>(backend_, arena_, group, sizes, DType::BF16, true);
    return std::make_unique<UlyssesAttention>(backend_, arena_, group, sizes, DType::BF16, true);
  }

  // Where documents start, as attention of a shard gets it; empty: one document.
  Tensor starts(const std::optional<ContextShard>& shard) {
    if (o_.document == 0) return {};
    const bool ring = shard && shard->method == ContextMethod::Ring;
    const std::int64_t count = ring ? shard->local_length() : o_.length;
    std::vector<std::int32_t> first;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t position = ring ? shard->position(i) : i;
      first.push_back(static_cast<std::int32_t>(position / o_.document * o_.document));
    }
    if (ring) {
      const std::vector<std::int32_t> local = first;
      first.resize(static_cast<std::size_t>(o_.length));
      first_visible_keys(first, *shard, local);
    }
    const Tensor x = arena_.allocate(Region::Workspace, "documents", DType::I32,
                                     {ring ? shard->ranks : 1, count});
    backend_.upload(x, first.data());
    backend_.synchronize();
    return x;
  }

  Tensor random(std::int64_t heads, std::int64_t length) {
    const Tensor x =
        arena_.allocate(Region::Workspace, "rows", DType::BF16, {1, length, heads, o_.dim});
    Arena temporary(backend_);
    const Tensor wide =
        temporary.allocate(Region::Workspace, "random", DType::F32, {length * heads, o_.dim});
    backend_.draw(wide, {.key = ++key_, .row_stride = o_.dim});
    backend_.copy(x.view(wide.shape()), wide);
    backend_.synchronize();
    return x;
  }

  template <class F, class B>
  BothTimes measure(const F& forward, const B& backward) {
    forward(), backward();  // plans are built
    return {time_of(forward), time_of(backward)};
  }
  template <class F>
  Times time_of(const F& calls) {
    backend_.take_operation_times();
    for (std::int64_t i = 0; i < o_.repeats; ++i) calls();
    Times sum;
    for (const OperationTime& time : backend_.take_operation_times()) {
      const double ms = time.milliseconds / static_cast<double>(o_.repeats);
      sum.all_ms += ms;
      if (time.name.starts_with("attention_forward") || time.name.starts_with("attention_backward"))
        sum.attention_ms += ms;
    }
    return sum;
  }

  Backend& backend_;
  const Options o_;
  Arena arena_;
  Tensor qkv_, dqkv_, out_, dout_, lse_;
  std::uint64_t key_ = 0;
};

void print_row(const std::string& name, const BothTimes& times, const BothTimes& alone) {
  const auto [forward, backward] = times;
  fmt::print("{:<22}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}{:>9.3f}{:>9.3f}{:>9.3f}\n", name,
             forward.attention_ms, forward.all_ms, backward.attention_ms, backward.all_ms,
             forward.all_ms / alone.forward.all_ms, backward.all_ms / alone.backward.all_ms,
             (forward.all_ms + backward.all_ms) / (alone.forward.all_ms + alone.backward.all_ms));
}

void print_table(const Options& o, bool own_kernels) {
  const auto backend = make_gpu_backend({.deterministic = o.deterministic,
                                         .own_attention = own_kernels,
                                         .graphs = false,
                                         .time_operations = true,
                                         .host = make_cpu_backend()});
  fmt::print("\n{:<22}{:>10}{:>10}{:>10}{:>10}{:>9}{:>9}{:>9}\n",
             own_kernels ? "our kernels, ms" : "ms", "forward", "and sums", "backward", "and sums",
             "fwd", "bwd", "both");
  const BothTimes alone = Problem(*backend, o, o.length).alone();
  print_row("1 rank", alone, alone);
  for (const ContextMethod method : {ContextMethod::Ring, ContextMethod::Ulysses})
    for (const int ranks : o.ranks) {
      if (method == ContextMethod::Ulysses && o.heads % ranks != 0) continue;
      BothTimes sum;
      for (int rank = 0; rank < ranks; ++rank) {
        const BothTimes one = Problem(*backend, o, o.length / ranks).sharded(method, rank, ranks);
        sum.forward += one.forward;
        sum.backward += one.backward;
      }
      print_row(fmt::format("{}, {} ranks", to_string(method), ranks), sum, alone);
    }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times attention of context parallelism on one GPU");
  Options o;
  app.add_option("--length", o.length, "tokens of the sequence");
  app.add_option("--heads", o.heads);
  app.add_option("--kv-heads", o.kv_heads);
  app.add_option("--dim", o.dim);
  app.add_option("--repeats", o.repeats);
  app.add_option("--ranks", o.ranks)->delimiter(',');
  app.add_option("--window", o.window, "tokens that a query sees");
  app.add_option("--document", o.document, "tokens of a document");
  app.add_flag("!--no-own", o.own, "only the library's kernels");
  app.add_flag("--deterministic", o.deterministic);
  CLI11_PARSE(app, argc, argv);
  try {
    fmt::print("{} tokens, {} heads over {} of {}, bf16{}\n", o.length, o.heads, o.kv_heads, o.dim,
               o.deterministic ? ", deterministic" : "");
    print_table(o, false);
    if (o.own) print_table(o, true);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
