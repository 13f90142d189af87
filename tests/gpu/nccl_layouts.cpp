// Random layouts on GPUs, under mpirun: compares training on many ranks with training on one rank
// of the same GPU.
//   scripts/share_gpu.sh mpirun -np 4 nccl_layouts COUNT SEED [STEPS] [CASE;CASE… | FROM]
// Draws random cases with SEED for the number of ranks that were started, and chooses up to COUNT
// of them that cover as many pairs of features as possible. Every case runs in fp32 (at most 10
// steps) and in bf16. CASE runs only these cases; FROM skips the cases before this index. Cases of
// context parallelism always run; `context` in place of CASE runs only these.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <unordered_set>

#include "backend/gpu/gpu_backend.h"
#include "cli/backends.h"
#include "comm/exchange.h"
#include "support/layout_case.h"

namespace kintsugi {
namespace {

// The pairs of features of a case, each as one number. Steps and precision are the same in all
// cases: the caller gives the number of steps, and every case runs in both precisions.
std::vector<std::size_t> pairs_of(const LayoutCase& one) {
  constexpr std::size_t kLevels = 64;
  std::vector<std::size_t> pairs;
  for (std::size_t f = 0; f < kFactors; ++f)
    for (std::size_t g = f + 1; g < kFactors; ++g)
      pairs.push_back(((f * kFactors + g) * kLevels + static_cast<std::size_t>(one[f])) * kLevels +
                      static_cast<std::size_t>(one[g]));
  return pairs;
}

// Draws many cases with this number of ranks and chooses at most `count` of them, each time the one
// with the most new pairs.
std::vector<LayoutCase> choose_cases(int ranks, std::size_t count, std::uint64_t seed,
                                     bool reports) {
  constexpr std::size_t kDraws = 3000;
  std::mt19937_64 random(seed);
  std::vector<LayoutCase> drawn, chosen;
  std::vector<std::vector<std::size_t>> pairs;
  std::unordered_set<std::size_t> uncovered;
  while (drawn.size() < kDraws) {
    LayoutCase one = draw_case(random);
    if (one.layout().ranks() != ranks) continue;
    one.values[kPrecision] = 1;
    one.values[kSteps] = 1;
    drawn.push_back(one);
    pairs.push_back(pairs_of(one));
    uncovered.insert(pairs.back().begin(), pairs.back().end());
  }
  const std::size_t possible = uncovered.size();
  while (chosen.size() < count && !uncovered.empty()) {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const auto added = static_cast<std::size_t>(
          std::count_if(pairs[i].begin(), pairs[i].end(),
                        [&](std::size_t pair) { return uncovered.contains(pair); }));
      if (added > most) most = added, best = i;
    }
    for (const std::size_t pair : pairs[best]) uncovered.erase(pair);
    chosen.push_back(drawn[best]);
  }
  if (reports)
    std::printf("%zu cases of %d ranks cover %zu of the %zu pairs of features in %zu draws\n",
                chosen.size(), ranks, possible - uncovered.size(), possible, kDraws);
  return chosen;
}

// Context parallelism in both ways, with keys for each rank and keys that ranks share, with
// documents and windows. With two heads, heads and chunks have sizes that the fused attention
// takes. In bf16 a last bit decides between experts, so there are none.
std::vector<LayoutCase> context_cases(int ranks) {
  std::vector<LayoutCase> cases;
  const auto add = [&](int cp, std::string_view rest) {
    cases.push_back(
        parse_layout_case(fmt::format("cp={} dp={} length=32 {}", cp, ranks / cp, rest)));
  };
  for (const int cp : {2, 4}) {
    if (ranks % cp != 0) continue;
    for (const char* documents : {"", " documents=1"}) {
      add(cp, fmt::format("heads=2 family=llama-gqa{}", documents));
      add(cp, fmt::format("heads=2 family=gpt2 micro=2{}", documents));
      if (cp == 2) add(cp, fmt::format("heads=2 family=llama-gqa context=ulysses{}", documents));
      for (const int heads : {4, 8})
        for (const char* context : {"ring", "ulysses"})
          add(cp, fmt::format("heads={} family=llama-gqa context={}{}", heads, context, documents));
    }
    add(cp, "heads=4 family=qwen3 context=ulysses");
    add(cp, "heads=4 family=olmo3 context=ulysses");
    add(cp, "heads=2 family=olmo3");
  }
  return cases;
}

Grid grid_of(const LayoutCase& one) {
  const Training training = one.training();
  return grid_of(training.layout(one.layout()), training.model);
}

// NCCL needs a second or two to create groups, so cases with the same groups follow each other.
void sort_by_grid(std::vector<LayoutCase>& cases) {
  const auto key = [](const LayoutCase& one) {
    const Grid grid = grid_of(one);
    return std::array{grid.tp,      grid.cp,        grid.dp,     grid.pp,
                      grid.shard(), grid.kv_copies, grid.experts};
  };
  std::stable_sort(cases.begin(), cases.end(),
                   [&](const LayoutCase& a, const LayoutCase& b) { return key(a) < key(b); });
}

std::vector<double> losses_of(const Member& member, std::int64_t steps) {
  std::vector<double> losses;
  for (std::int64_t step = 1; step <= steps; ++step) losses.push_back(member.step(step).loss);
  return losses;
}

std::vector<double> train_on_one_rank(World& world, Backend& backend, Training training,
                                      std::int64_t steps) {
  const Groups groups = single_rank_groups(backend);
  training.micro = training.sequences % 4 == 0 ? training.sequences / 4 : training.sequences;
  training.offload = {};
  const RankLayout layout;
  Engine engine(backend, backend, training.engine(layout), groups);
  engine.initialize(11);
  return losses_of({world, groups, engine, layout, training}, steps);
}

std::vector<double> train_on_all_ranks(World& hosts, Backend& backend, const Groups& groups,
                                       const RankLayout& layout, const Training& training,
                                       std::int64_t steps) {
  Engine engine(backend, backend, training.engine(layout), groups);
  engine.initialize(11);
  const std::vector<double> losses = losses_of({hosts, groups, engine, layout, training}, steps);
  engine.sharding().finish_weights();
  backend.synchronize();
  return losses;
}

// The difference between bf16 and fp32 on one rank: layouts cannot be expected to agree better.
double noise(World& hosts, Backend& backend, Training training, std::int64_t steps) {
  training.precision = DType::F32;
  const std::vector<double> fp32_losses = train_on_one_rank(hosts, backend, training, steps);
  training.precision = DType::BF16;
  return difference(train_on_one_rank(hosts, backend, training, steps), fp32_losses);
}

// The suite on one rank.
class Suite {
 public:
  Suite(World& hosts, std::int64_t steps, bool verbose)
      : hosts_(hosts),
        steps_(steps),
        verbose_(verbose),
        backend_(make_backend(DeviceChoice::Cuda, 1, {}, hosts.local_rank())),
        gpus_(make_device_world(hosts, *backend_, {.share_gpu = true},
                                [](const RankFailure& why) {
                                  std::printf("FAILED: %s\n", why.text.c_str());
                                  std::fflush(stdout);
                                  _exit(1);
                                })),
        control_(hosts.split("control", 0, hosts.rank())) {}

  void run(const LayoutCase& one, DType precision) {
    const bool is_fp32 = precision == DType::F32;
    Training training = one.training();
    training.precision = precision;
    // At the usual learning rate long runs on random tokens diverge from each other.
    if (!is_fp32) training.lr = 3e-4;
    const std::int64_t steps = is_fp32 ? std::min<std::int64_t>(steps_, kFp32Steps) : steps_;
    std::vector<double> expected;
    double tolerance = 2e-5;
    if (reports()) expected = train_on_one_rank(hosts_, *backend_, training, steps);
    if (reports() && !is_fp32)
      tolerance = std::max(1e-3, 2 * noise(hosts_, *backend_, training, steps));
    control_->barrier();
    use_groups(grid_of(one));
    const auto start = std::chrono::steady_clock::now();
    const std::vector<double> actual =
        gpus_.gpus ? train_on_all_ranks(hosts_, *backend_, *groups_, one.layout(), training, steps)
                   : train_on_one_rank(hosts_, *backend_, training, steps);
    if (!reports()) return;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double error = difference(actual, expected);
    double& worst = is_fp32 ? worst_fp32 : worst_bf16;
    worst = std::max(worst, error);
    const bool same = error <= tolerance;
    bad += same ? 0 : 1;
    ++runs;
    if (!same || verbose_)
      std::printf("%s %s by %.2g (%.2g allowed; %.1g in the first step) in %.1f s: %s\n",
                  to_string(precision).data(), same ? "agrees" : "DIFFERS", error, tolerance,
                  difference({actual.front()}, {expected.front()}), took.count(),
                  to_string(one).c_str());
    std::fflush(stdout);
  }

  bool reports() const { return hosts_.rank() == 0; }
  std::string figures() const {
    return fmt::format("{} runs, fp32 within {:.2g}, bf16 within {:.2g}, {} differ", runs,
                       worst_fp32, worst_bf16, bad);
  }

  double worst_fp32 = 0, worst_bf16 = 0;
  int bad = 0, runs = 0;

 private:
  static constexpr std::int64_t kFp32Steps = 10;

  void use_groups(const Grid& grid) {
    if (!gpus_.gpus || (groups_ && groups_->grid == grid)) return;
    groups_.reset();
    groups_.emplace(make_groups(hosts_, *gpus_.gpus, grid));
  }

  World& hosts_;
  std::int64_t steps_;
  bool verbose_;
  std::unique_ptr<Backend> backend_;
  DeviceWorld gpus_;
  std::unique_ptr<Communicator> control_;
  std::optional<Groups> groups_;
};

std::vector<LayoutCase> parse_cases(const std::string& text) {
  std::vector<LayoutCase> cases;
  std::istringstream all(text);
  for (std::string one; std::getline(all, one, ';');) cases.push_back(parse_layout_case(one));
  return cases;
}

int run(World& hosts, std::size_t count, std::uint64_t seed, std::int64_t steps,
        const std::string& which) {
  const bool numbered = which.find_first_not_of("0123456789") == std::string::npos;
  const std::string text = numbered ? "" : which;
  const std::size_t first = numbered && !which.empty() ? std::stoul(which) : 0;
  Suite suite(hosts, steps, !text.empty() || std::getenv("KINTSUGI_VERBOSE") != nullptr);
  std::vector<LayoutCase> cases = text.empty()
                                      ? choose_cases(hosts.size(), count, seed, suite.reports())
                                  : text == "context" ? context_cases(hosts.size())
                                                      : parse_cases(text);
  if (text.empty())
    for (const LayoutCase& one : context_cases(hosts.size())) cases.push_back(one);
  sort_by_grid(cases);
  for (std::size_t i = first; i < cases.size(); ++i) {
    for (const DType precision : {DType::F32, DType::BF16}) suite.run(cases[i], precision);
    if (suite.reports() && (i + 1) % 10 == 0)
      std::printf("%zu of %zu cases: %s\n", i + 1, cases.size(), suite.figures().c_str());
  }
  if (suite.reports())
    std::printf("%s on %d ranks: %zu cases, %s\n", suite.bad == 0 ? "passed" : "FAILED",
                hosts.size(), cases.size(), suite.figures().c_str());
  return suite.bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  const auto number = [&](int i, std::uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  try {
    const auto hosts = kintsugi::make_world();
    return kintsugi::run(*hosts, number(1, 1000), number(2, 1),
                         static_cast<std::int64_t>(number(3, 50)), argc > 4 ? argv[4] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
