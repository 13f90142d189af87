#include "plan/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/error.h"
#include "core/units.h"
#include "model/fp8.h"
#include "plan/costs/footprint.h"
#include "plan/search/interval.h"

namespace kintsugi {

RankBy parse_rank_by(const std::string& word) {
  if (word == "time") return RankBy::Time;
  if (word == "energy") return RankBy::Energy;
  if (word == "cost") return RankBy::Cost;
  user_error("--rank-by is '{}': give time, energy or cost", word);
}

double score(const Evaluation& e, const Machine& machine, RankBy rank_by) {
  switch (rank_by) {
    case RankBy::Time:
      return e.step_s;
    case RankBy::Energy:
      return e.node_joule;
    case RankBy::Cost:
      return e.step_s * e.layout.ranks() * std::max(1e-9, machine.facility.eur_per_gpu_hour);
  }
  return e.step_s;
}

// ---- enumerate layouts

namespace {

template <class T>
bool allowed(T limit, T value) {
  return limit <= 0 || limit == value;
}

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int i = 1; i <= n; ++i)
    if (n % i == 0) all.push_back(i);
  return all;
}

bool can_shard(const PlanJob& job, int tp) {
  const ModelConfig& m = job.model;
  const std::int64_t rows = (m.vocab_size + tp - 1) / tp;
  return m.heads % tp == 0 && m.feed_forward_parts() % tp == 0 &&
         (m.kv_heads % tp == 0 || tp % m.kv_heads == 0) && (tp - 1) * rows < m.vocab_size;
}

// Micro-batch sizes: --micro, or else powers of two.
std::vector<std::int64_t> micro_batches(const SearchLimits& limits, std::int64_t sequences) {
  if (limits.micro > 0)
    return sequences % limits.micro == 0 ? std::vector{limits.micro} : std::vector<std::int64_t>();
  std::vector<std::int64_t> all;
  for (std::int64_t micro = 1; micro <= 64 && sequences % micro == 0; micro *= 2)
    all.push_back(micro);
  return all;
}

struct Pipelining {
  PipelineKind kind = PipelineKind::OneForwardOneBackward;
  int chunks = 1;
};
std::vector<Pipelining> pipelinings(const PlanJob& job, const SearchLimits& limits, int pp,
                                    std::int64_t micro_batches) {
  if (pp == 1) return {{}};
  std::vector<Pipelining> all;
  const auto add = [&](PipelineKind kind, int chunks) {
    if (limits.schedule.empty() || parse_pipeline_kind(limits.schedule) == kind)
      all.push_back({kind, chunks});
  };
  add(PipelineKind::OneForwardOneBackward, 1);
  add(PipelineKind::ZeroBubbleH1, 1);
  if (!limits.schedule.empty()) add(PipelineKind::GPipe, 1);  // never better than 1F1B
  if (micro_batches % pp == 0)
    for (const int chunks : {2, 3, 4, 6, 8})
      if (job.model.layers >= std::int64_t{pp} * chunks) add(PipelineKind::Interleaved, chunks);
  return all;
}

struct Recomputation {
  Recompute mode;
  int every;
};
struct ExpertRanks {
  int ep = 0;  // Layout::ep
  Dispatch dispatch = Dispatch::AllGather;
};
// On 2 data ranks both ways of dispatching send the same, and an all-gather needs no counts; on
// more than 8 it sends several times as much.
std::vector<ExpertRanks> expert_ranks(const PlanJob& job, const SearchLimits& limits, int tp,
                                      int data) {
  constexpr int kMostRanks = 64;
  std::vector<ExpertRanks> all;
  const auto add = [&](int ep, Dispatch dispatch) {
    if (allowed(limits.ep, std::max(ep, tp))) all.push_back({ep, dispatch});
  };
  add(0, Dispatch::AllGather);
  if (!job.model.experts) return all;
  for (const int ranks : divisors(data)) {
    const int ep = tp * ranks;
    if (ranks == 1 || job.model.experts->count % ep != 0) continue;
    if (ep > kMostRanks && limits.ep == 0) break;
    if (ranks <= 8) add(ep, Dispatch::AllGather);
    if (ranks > 2) add(ep, Dispatch::AllToAll);
  }
  return all;
}

// How cp ranks can share a sequence. Fewer than 2048 tokens per rank do not fill a GPU.
std::vector<ContextMethod> context_methods(const PlanJob& job, const SearchLimits& limits, int tp,
                                           int cp) {
  if (cp == 1) return {ContextMethod::Ring};
  if (limits.cp == 0 && job.length / cp < 2048) return {};
  std::vector<ContextMethod> all;
  for (const ContextMethod method : {ContextMethod::Ring, ContextMethod::Ulysses}) {
    if (!limits.context.empty() && parse_context_method(limits.context) != method) continue;
    if (job.length % Layout{.cp = cp, .context = method}.context_chunks() != 0) continue;
    if (method == ContextMethod::Ring || fits_ulysses(job.model, tp, cp)) all.push_back(method);
  }
  return all;
}

constexpr std::array<Recomputation, 5> kRecomputations = {{{Recompute::None, 1},
                                                           {Recompute::Selective, 1},
                                                           {Recompute::Full, 1},
                                                           {Recompute::Full, 2},
                                                           {Recompute::Full, 4}}};

}  // namespace

void for_each_layout(const PlanJob& job, const Machine& machine, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& use) {
  const int node = static_cast<int>(machine.node.gpus);
  for (const int tp : divisors(limits.gpus)) {
    // Across more than two nodes the collectives of every layer are too slow.
    if (!allowed(limits.tp, tp) || (limits.tp <= 0 && tp > 2 * node) || !can_shard(job, tp))
      continue;
    for (const int cp : divisors(limits.gpus / tp)) {
      if (!allowed(limits.cp, cp)) continue;
      const std::vector<ContextMethod> contexts = context_methods(job, limits, tp, cp);
      if (contexts.empty()) continue;
      for (const int pp : divisors(limits.gpus / (tp * cp))) {
        const int dp = limits.gpus / (tp * cp * pp);
        if (!allowed(limits.pp, pp) || pp > job.model.layers || job.batch % dp != 0) continue;
        const std::int64_t sequences = job.batch / dp;
        for (const std::int64_t micro : micro_batches(limits, sequences)) {
          if (job.model.fp8.on() && !fits_fp8(job.length, cp)) continue;
          for (const Pipelining& pipelining : pipelinings(job, limits, pp, sequences / micro))
            for (const Recomputation& recompute : kRecomputations) {
              if (!limits.recompute.empty() && parse_recompute(limits.recompute) != recompute.mode)
                continue;
              for (int zero = 0; zero <= 3; ++zero) {
                if (limits.zero >= 0 && zero != limits.zero) continue;
                const int data = dp * cp;
                if (zero > 0 && data == 1) continue;
                // Shard over all data ranks, or over those of a node.
                const int inside = std::max(1, node / tp);
                for (const int shard : {0, inside}) {
                  if (shard > 0 && (zero == 0 || shard == 1 || data <= shard || data % shard != 0))
                    continue;
                  for (const ExpertRanks& experts : expert_ranks(job, limits, tp, data)) {
                    Layout layout{.tp = tp,
                                  .cp = cp,
                                  .pp = pp,
                                  .dp = dp,
                                  .chunks = pipelining.chunks,
                                  .schedule = pipelining.kind,
                                  .micro_batch = micro,
                                  .zero = zero,
                                  .shard_group = shard,
                                  .ep = experts.ep,
                                  .dispatch = experts.dispatch,
                                  .sequence_parallel = tp > 1 && job.length / cp % tp == 0,
                                  .recompute = recompute.mode,
                                  .recompute_every = recompute.every};
                    if (!fits_shards(layout)) continue;
                    for (const ContextMethod context : contexts) {
                      layout.context = context;
                      use(layout);
                    }
                  }
                }
              }
            }
        }
      }
    }
  }
}

// ---- near misses

namespace {

struct StepTerm {
  const char* name;
  double seconds;
};
std::array<StepTerm, 7> terms_of(const Evaluation& e) {
  return {{{"compute", e.ideal_s},
           {"pipeline bubble", e.bubble * e.step_s},
           {"exposed tp and cp communication", e.tensor_s},
           {"exposed dp communication", e.data_s},
           {"exposed pp communication", e.message_s},
           {"offload", e.offload_s},
           {"optimizer", e.optimizer_s}}};
}

std::string reason(const Evaluation& e, const Evaluation& best, const Machine& machine,
                   RankBy rank_by) {
  if (!e.fits && e.memory_bytes <= machine.gpu.memory_gb * 1e9)
    return fmt::format("does not fit: a rank needs {} of host memory, a node has {}",
                       format_bytes(e.host_bytes), format_bytes(machine.node.host_memory_gb * 1e9));
  if (!e.fits)
    return fmt::format("does not fit: stage {} needs {}, a GPU has {}", e.fullest_stage,
                       format_bytes(e.memory_bytes), machine.gpu.memory_text());
  const auto terms = terms_of(e), best_terms = terms_of(best);
  std::size_t worst = 0;
  for (std::size_t i = 0; i < terms.size(); ++i)
    if (terms[i].seconds - best_terms[i].seconds > terms[worst].seconds - best_terms[worst].seconds)
      worst = i;
  // For a fixed number of GPUs cost is proportional to time.
  const bool energy = rank_by == RankBy::Energy;
  const double ratio = energy ? e.node_joule / best.node_joule : e.step_s / best.step_s;
  return fmt::format("{:.1f} % {}: {} {:+.3g} s", 100 * (ratio - 1),
                     energy ? "more energy" : "slower", terms[worst].name,
                     terms[worst].seconds - best_terms[worst].seconds);
}

bool same_plan(const Evaluation& a, const Evaluation& b) {
  return a.layout == b.layout && a.offload.on == b.offload.on &&
         a.offload.gradients == b.offload.gradients;
}

constexpr double kNear = 1.2;  // a near miss needs at most this factor of the GPU memory

// Collects the best layout for each value of tp, pp and so on, to explain why it lost.
class Misses {
 public:
  void consider(const Evaluation& e, double value, double memory_bytes) {
    if (!e.fits && e.memory_bytes > kNear * memory_bytes) return;
    if (e.fits) keep_best(fmt::format("tp{}", e.layout.tp), e, value);
    if (e.fits) keep_best(fmt::format("pp{}", e.layout.pp), e, value);
    if (e.fits) keep_best(fmt::format("micro{}", e.layout.micro_batch), e, value);
    if (e.fits) keep_best(fmt::format("zero{}", e.layout.zero), e, value);
    if (e.fits) keep_best(fmt::format("recompute {}", to_string(e.layout.recompute)), e, value);
    if (e.fits) keep_best(fmt::format("{}", to_string(e.layout.schedule)), e, value);
    if (e.fits && e.layout.cp > 1) keep_best(std::string(to_string(e.layout.context)), e, value);
    if (e.fits && e.offload.on) keep_best(e.offload.gradients ? "gradients" : "state", e, value);
    if (!e.fits) keep_best(fmt::format("more memory, zero{}", e.layout.zero), e, value);
  }
  std::vector<SearchResult::Miss> list(const std::vector<Evaluation>& best, Planner& planner,
                                       RankBy rank_by) const {
    const Machine& machine = planner.machine();
    std::vector<SearchResult::Miss> misses;
    if (best.empty()) return misses;
    for (const auto& [key, found] : best_) {
      const Evaluation e = planner.evaluate(found.second.layout, found.second.offload);
      const bool listed = std::any_of(best.begin(), best.end(),
                                      [&](const Evaluation& other) { return same_plan(other, e); });
      const bool known = std::any_of(misses.begin(), misses.end(), [&](const auto& miss) {
        return same_plan(miss.evaluation, e);
      });
      if (!listed && !known) misses.push_back({e, reason(e, best.front(), machine, rank_by)});
    }
    std::sort(misses.begin(), misses.end(), [&](const auto& a, const auto& b) {
      return score(a.evaluation, machine, rank_by) < score(b.evaluation, machine, rank_by);
    });
    if (misses.size() > 12) misses.resize(12);
    return misses;
  }

 private:
  void keep_best(const std::string& key, const Evaluation& e, double value) {
    const auto found = best_.find(key);
    if (found == best_.end())
      best_.emplace(key, std::pair{value, e});
    else if (value < found->second.first)
      found->second = {value, e};
  }
  std::map<std::string, std::pair<double, Evaluation>> best_;
};

}  // namespace

namespace {

// A gradient must be complete before it leaves the device.
bool can_offload(const StateOffload& offload, const Layout& layout) {
  return !offload.gradients || layout.schedule != PipelineKind::ZeroBubbleH1;
}

class Search {
 public:
  Search(Planner& planner, const SearchLimits& limits, const ProgressCall& progress)
      : planner_(planner), limits_(limits), progress_(progress) {
    result_.risk = limits.risk;
  }

  void run(const StateOffload& offload) {
    const auto for_each = [&](const auto& use) {
      for_each_layout(planner_.job(), planner_.machine(), limits_, [&](const Layout& layout) {
        if (can_offload(offload, layout)) use(layout);
      });
    };
    if (progress_) for_each([&](const Layout&) { ++total_; });
    for_each([&](const Layout& layout) {
      if (progress_) progress_(result_.layouts, total_);
      consider(planner_.estimate(layout, offload));
    });
  }
  bool some_fit() const { return result_.fitting > 0; }
  SearchResult result() {
    for (const Found& one : evaluated()) result_.best.push_back(one.second);
    result_.misses = misses_.list(result_.best, planner_, limits_.rank_by);
    return std::move(result_);
  }

 private:
  using Found = std::pair<double, Evaluation>;
  static bool worse(const Found& a, const Found& b) { return a.first < b.first; }

  double value_of(const Evaluation& e) const {
    return score(e, planner_.machine(), limits_.rank_by) *
           (limits_.risk ? interval_of(planner_, e).within : 1);
  }

  // The best layouts, from the best estimate on until no other one can be among them: few layouts
  // take less than their estimate, and then a few percent.
  std::vector<Found> evaluated() {
    constexpr double kOver = 1.03;
    std::sort_heap(found_.begin(), found_.end(), worse);
    std::vector<Found> best;
    const auto wanted = static_cast<std::size_t>(limits_.best);
    for (const auto& [estimated, found] : found_) {
      if (best.size() == wanted && estimated > kOver * best.back().first) break;
      const Evaluation e = planner_.evaluate(found.layout, found.offload);
      const Found one{value_of(e), e};
      best.insert(std::upper_bound(best.begin(), best.end(), one, worse), one);
      if (best.size() > wanted) best.pop_back();
    }
    return best;
  }

  void consider(const Evaluation& e) {
    const Machine& machine = planner_.machine();
    ++result_.layouts;
    if (result_.smallest.memory_bytes == 0 || e.memory_bytes < result_.smallest.memory_bytes)
      result_.smallest = e;
    const double value = value_of(e);
    // The strings of near misses cost more than the evaluation: skip layouts that are far away.
    const bool near = fastest_ == 0 || value < 1.5 * fastest_;
    if (near) misses_.consider(e, value, machine.gpu.memory_gb * 1e9);
    if (!e.fits) return;
    ++result_.fitting;
    fastest_ = fastest_ == 0 ? value : std::min(fastest_, value);
    found_.emplace_back(value, e);
    std::push_heap(found_.begin(), found_.end(), worse);
    if (static_cast<int>(found_.size()) > limits_.best + kEstimates) {
      std::pop_heap(found_.begin(), found_.end(), worse);
      found_.pop_back();
    }
  }

  static constexpr int kEstimates = 500;  // candidates for the best layouts

  Planner& planner_;
  const SearchLimits& limits_;
  const ProgressCall& progress_;
  SearchResult result_;
  Misses misses_;
  std::vector<Found> found_;
  double fastest_ = 0;
  std::int64_t total_ = 0;
};

// Whether it is worth while to try offload: the weights alone fit, and copies have a known time.
bool may_fit_offloaded(const Planner& planner, const SearchLimits& limits) {
  const PlanJob& job = planner.job();
  const double weights = static_cast<double>(ParameterSet(job.model).elements()) *
                         static_cast<double>(size_of(job.precision));
  return planner.machine().node.host_link_gb_s > 0 &&
         weights < limits.gpus * planner.machine().gpu.memory_gb * 1e9;
}

}  // namespace

std::vector<StateOffload> offloads_of(const SearchLimits& limits) {
  const StateOffload none, state{.on = true}, both{.on = true, .gradients = true};
  const std::string& word = limits.offload;
  if (word.empty() || word == "none") return {none};
  if (word == "optimizer") return {state};
  if (word == "gradients") return {both};
  return {none, state, both};
}

SearchResult search_layouts(Planner& planner, const SearchLimits& limits,
                            const ProgressCall& progress) {
  Search search(planner, limits, progress);
  for (const StateOffload& offload : offloads_of(limits)) search.run(offload);
  if (limits.offload.empty() && !search.some_fit() && may_fit_offloaded(planner, limits)) {
    SearchLimits more = limits;
    for (const char* word : {"optimizer", "gradients"}) {
      more.offload = word;
      if (!search.some_fit()) search.run(offloads_of(more).front());
    }
  }
  return search.result();
}

bool some_layout_fits(Planner& planner, const SearchLimits& limits) {
  const GpuSpec& gpu = planner.machine().gpu;
  const double available = gpu.usable_bytes() - gpu.own_gb * 1e9;
  // Larger micro-batches and other schedules only need more memory.
  SearchLimits frugal = limits;
  if (frugal.micro <= 0) frugal.micro = 1;
  if (frugal.schedule.empty()) frugal.schedule = "1f1b";
  const StateOffload most = offloads_of(limits).back();
  bool fits = false;
  for_each_layout(planner.job(), planner.machine(), frugal, [&](const Layout& layout) {
    if (fits || !can_offload(most, layout)) return;
    const std::vector<RegionBytes> stages = planner.memory(layout, most);
    fits = std::all_of(stages.begin(), stages.end(), [&](const RegionBytes& bytes) {
      return static_cast<double>(total(bytes)) <= available;
    });
  });
  return fits;
}

int fewest_gpus(const JobOn& job_on, const Machine& machine, const SearchLimits& limits) {
  const std::int64_t node = machine.node.gpus,
                     all = std::min<std::int64_t>(machine.gpus(), 1 << 24);
  std::set<std::int64_t> counts = {all};
  for (std::int64_t part = 1; part < node; part *= 2) counts.insert(part);
  for (const std::int64_t first : {node, 3 * node})
    for (std::int64_t count = first; count <= all; count *= 2) counts.insert(count);
  for (auto count = counts.upper_bound(limits.gpus); count != counts.end(); ++count) {
    SearchLimits wider = limits;
    wider.gpus = static_cast<int>(*count);
    const PlanJob job = job_on(wider.gpus);
    // Weights and optimizer state must fit at all. This check saves most of the search.
    const double least_gb = footprint_of({}, job, machine, job.tokens()).checkpoint_gb;
    if (least_gb > static_cast<double>(*count) * machine.gpu.usable_bytes() / 1e9) continue;
    Planner planner(job, machine);
    if (some_layout_fits(planner, wider)) return wider.gpus;
  }
  return 0;
}

}  // namespace kintsugi
