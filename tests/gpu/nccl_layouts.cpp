// Random layouts on GPUs, under mpirun: the run of many ranks against that of one on the same GPU.
//   mpirun -np 4 nccl_layouts COUNT SEED [STEPS] [CASE]
// COUNT cases of as many ranks as were started; the draws bring as many pairs of features as they
// can. Half of them in fp32, half in bf16.
#include <cstdio>
#include <cstdlib>
#include <set>

#include "backend/cuda/cuda_backend.h"
#include "cli/worlds.h"
#include "comm/exchange.h"
#include "support/layout_case.h"

namespace kintsugi {
namespace {

using Pair = std::array<int, 4>;  // factor, level, factor, level

std::set<Pair> pairs_of(const LayoutCase& one) {
  std::set<Pair> pairs;
  for (int f = 0; f < static_cast<int>(kFactors); ++f)
    for (int g = f + 1; g < static_cast<int>(kFactors); ++g)
      pairs.insert({f, one[static_cast<std::size_t>(f)], g, one[static_cast<std::size_t>(g)]});
  return pairs;
}

// Of many draws with that many ranks, those that bring the most new pairs.
std::vector<LayoutCase> choose_cases(int ranks, std::size_t count, std::uint64_t seed,
                                     bool speaks) {
  std::mt19937_64 random(seed);
  std::vector<LayoutCase> drawn;
  std::set<Pair> possible, covered;
  while (drawn.size() < 1500) {
    LayoutCase one = draw_case(random);
    if (one.layout().ranks() != ranks) continue;
    one.values[kPrecision] = 1;  // fp32; bf16 is another run of the same
    const std::set<Pair> pairs = pairs_of(one);
    possible.insert(pairs.begin(), pairs.end());
    drawn.push_back(one);
  }
  std::vector<LayoutCase> chosen;
  while (chosen.size() < count && covered.size() < possible.size()) {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      std::size_t brought = 0;
      for (const Pair& pair : pairs_of(drawn[i])) brought += covered.contains(pair) ? 0 : 1;
      if (brought > most) most = brought, best = i;
    }
    covered.merge(pairs_of(drawn[best]));
    chosen.push_back(drawn[best]);
  }
  if (speaks)
    std::printf("%zu cases of %d ranks with %zu of the %zu pairs of features\n", chosen.size(),
                ranks, covered.size(), possible.size());
  return chosen;
}

std::vector<double> losses_of(const Member& member, std::int64_t steps) {
  std::vector<double> losses;
  for (std::int64_t step = 1; step <= steps; ++step) losses.push_back(member.step(step).loss);
  return losses;
}

std::vector<double> alone(World& world, Backend& backend, Training training, std::int64_t steps) {
  const Groups groups = groups_of_one(backend);
  training.micro = training.sequences % 4 == 0 ? training.sequences / 4 : training.sequences;
  const RankLayout layout;
  Engine engine(backend, backend, training.engine(layout), groups);
  engine.initialize(11);
  return losses_of({world, groups, engine, layout, training}, steps);
}

std::vector<double> together(World& hosts, World& gpus, Backend& backend, const RankLayout& layout,
                             const Training& training, std::int64_t steps) {
  const Groups groups = make_groups(hosts, gpus,
                                    {.tp = layout.tp,
                                     .cp = layout.cp,
                                     .dp = layout.dp,
                                     .pp = layout.pp,
                                     .shard_group = layout.shard(),
                                     .kv_copies = kv_copies(training.model, layout.tp)});
  Engine engine(backend, backend, training.engine(layout), groups);
  engine.initialize(11);
  const std::vector<double> losses = losses_of({hosts, groups, engine, layout, training}, steps);
  engine.sharding().finish_weights();
  backend.synchronize();
  return losses;
}

// How far apart bf16 and fp32 runs are anyway; nothing can be expected to agree better.
double noise(World& hosts, Backend& backend, Training training, std::int64_t steps) {
  training.precision = DType::F32;
  const std::vector<double> fine = alone(hosts, backend, training, steps);
  training.precision = DType::BF16;
  return difference(alone(hosts, backend, training, steps), fine);
}

int run(World& hosts, std::size_t count, std::uint64_t seed, std::int64_t steps,
        const std::string& text) {
  const bool speaks = hosts.rank() == 0;
  const auto backend = make_backend(DeviceChoice::Cuda, 1, {}, hosts.local_rank());
  const DeviceWorld gpus =
      make_device_world(hosts, *backend, {.share_gpu = true}, [](const std::string& why) {
        std::printf("FAILED: %s\n", why.c_str());
        std::fflush(stdout);
        _exit(1);
      });
  const auto control = hosts.split("control", 0, hosts.rank());
  const std::vector<LayoutCase> cases = text.empty()
                                            ? choose_cases(hosts.size(), count, seed, speaks)
                                            : std::vector<LayoutCase>{parse_layout_case(text)};
  double worst_fp32 = 0, worst_bf16 = 0;
  int bad = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const RankLayout layout = cases[i].layout();
    for (const DType precision : {DType::F32, DType::BF16}) {
      Training training = cases[i].training();
      training.precision = precision;
      const bool fine = precision == DType::F32;
      // At the usual rate long runs on random tokens leave each other for good.
      if (!fine) training.lr = 3e-4;
      const std::int64_t many = fine ? cases[i][kSteps] : steps;
      // bf16 in a few cases only: its runs are long.
      if (!fine && i % 6 != 0) continue;
      if (speaks && std::getenv("KINTSUGI_VERBOSE") != nullptr) {
        std::printf("%s: %s\n", to_string(precision).data(), to_string(cases[i]).c_str());
        std::fflush(stdout);
      }
      std::vector<double> expected;
      double tolerance = 2e-5;
      if (speaks) expected = alone(hosts, *backend, training, many);
      if (speaks && !fine) tolerance = std::max(1e-3, 2 * noise(hosts, *backend, training, many));
      control->barrier();
      const std::vector<double> actual =
          gpus.gpus ? together(hosts, *gpus.gpus, *backend, layout, training, many)
                    : alone(hosts, *backend, training, many);
      if (!speaks) continue;
      if (!text.empty())
        std::printf("losses %.6f … %.6f, alone %.6f … %.6f\n", actual.front(), actual.back(),
                    expected.front(), expected.back());
      const double apart = difference(actual, expected);
      double& worst = fine ? worst_fp32 : worst_bf16;
      worst = std::max(worst, apart);
      const bool same = apart <= tolerance;
      bad += same ? 0 : 1;
      if (!same || !text.empty())
        std::printf("%s %s by %.2g (%.2g allowed): %s\n", to_string(precision).data(),
                    same ? "agrees" : "DIFFERS", apart, tolerance, to_string(cases[i]).c_str());
      std::fflush(stdout);
    }
    if (speaks && (i + 1) % 5 == 0) {
      std::printf("%zu of %zu, largest difference fp32 %.2g, bf16 %.2g\n", i + 1, cases.size(),
                  worst_fp32, worst_bf16);
      std::fflush(stdout);
    }
  }
  if (speaks)
    std::printf("%s on %d ranks: %zu cases, fp32 within %.2g, bf16 within %.2g, %d differ\n",
                bad == 0 ? "passed" : "FAILED", hosts.size(), cases.size(), worst_fp32, worst_bf16,
                bad);
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  const auto number = [&](int i, std::uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  try {
    const auto hosts = kintsugi::make_world();
    return kintsugi::run(*hosts, number(1, 20), number(2, 1),
                         static_cast<std::int64_t>(number(3, 50)), argc > 4 ? argv[4] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
