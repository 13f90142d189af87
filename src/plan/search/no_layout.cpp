#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/units.h"
#include "model/fp8.h"
#include "plan/search/search.h"

namespace kintsugi {
namespace {

// A limit as typed by the user ("--tp 2"), and the limits without it.
struct GivenLimit {
  std::string option;
  SearchLimits without;
};

std::vector<GivenLimit> given_limits(const SearchLimits& limits) {
  std::vector<GivenLimit> all;
  const SearchLimits open;
  const auto add_if_given = [&](const char* option, auto SearchLimits::*member) {
    if (limits.*member == open.*member) return;
    SearchLimits without = limits;
    without.*member = open.*member;
    all.push_back({fmt::format("{} {}", option, limits.*member), without});
  };
  add_if_given("--tp", &SearchLimits::tp);
  add_if_given("--cp", &SearchLimits::cp);
  add_if_given("--pp", &SearchLimits::pp);
  add_if_given("--ep", &SearchLimits::ep);
  add_if_given("--micro", &SearchLimits::micro);
  add_if_given("--zero", &SearchLimits::zero);
  add_if_given("--recompute", &SearchLimits::recompute);
  add_if_given("--schedule", &SearchLimits::schedule);
  add_if_given("--context", &SearchLimits::context);
  add_if_given("--offload", &SearchLimits::offload);
  return all;
}

std::string options_text(const std::vector<GivenLimit>& limits) {
  std::string text;
  for (const GivenLimit& limit : limits) text += (text.empty() ? "" : " ") + limit.option;
  return text;
}

SearchLimits without_limits(const SearchLimits& limits) {
  return {.gpus = limits.gpus, .rank_by = limits.rank_by, .risk = limits.risk, .best = limits.best};
}

// Which limits to remove so that `has_some` is true: one of them, or else all. "": none helps.
std::string helpful(const std::vector<GivenLimit>& given, const SearchLimits& limits,
                    const std::function<bool(const SearchLimits&)>& has_some) {
  for (const GivenLimit& limit : given)
    if (has_some(limit.without)) return "without " + limit.option;
  if (given.size() > 1 && has_some(without_limits(limits))) return "without these limits";
  return "";
}

// ---- no layout at all

std::string why_not_tp(const ModelConfig& m, const SearchLimits& l) {
  if (l.gpus % l.tp != 0)
    return fmt::format("--tp {} does not divide {}", l.tp, format_number(l.gpus, "GPU"));
  if (m.heads % l.tp != 0)
    return fmt::format("--tp {} does not divide the model's {}", l.tp,
                       format_number(m.heads, "head"));
  if (m.kv_heads % l.tp != 0 && l.tp % m.kv_heads != 0)
    return fmt::format(
        "--tp {} neither divides the model's {} key-value heads nor is a multiple "
        "of them",
        l.tp, m.kv_heads);
  if (m.feed_forward_parts() % l.tp != 0)
    return fmt::format("--tp {} does not divide the model's {}", l.tp, m.feed_forward_text());
  return "";
}

std::string why_not_cp(const PlanJob& job, const SearchLimits& l) {
  if (l.gpus % l.cp != 0)
    return fmt::format("--cp {} does not divide {}", l.cp, format_number(l.gpus, "GPU"));
  const ModelConfig& m = job.model;
  const bool ulysses = l.context != "ring" && fits_ulysses(m, std::max(1, l.tp), l.cp);
  if (l.context == "ulysses" && m.positions() == PositionKind::Retention)
    return "--context ulysses is for attention, and the model has retention";
  if (l.context == "ulysses" && !ulysses)
    return fmt::format("--cp {} with --context ulysses does not fit {} and {} key-value heads",
                       l.cp, format_number(m.heads, "head"), m.kv_heads);
  const std::int64_t chunks = std::int64_t{ulysses ? 1 : 2} * l.cp;
  if (l.cp > 1 && job.length % chunks != 0)
    return fmt::format("--cp {} needs sequences of a multiple of {} tokens, not {}", l.cp, chunks,
                       job.length);
  return "";
}

std::string why_not_pp(const ModelConfig& m, const SearchLimits& l) {
  if (l.gpus % l.pp != 0)
    return fmt::format("--pp {} does not divide {}", l.pp, format_number(l.gpus, "GPU"));
  if (l.pp > m.layers)
    return fmt::format("--pp {}: the model has {}, and each stage needs one", l.pp,
                       format_number(m.layers, "layer"));
  return "";
}

std::string why_not_ep(const ModelConfig& m, const SearchLimits& l) {
  if (!m.experts) return fmt::format("--ep {} is for experts, and the model has none", l.ep);
  if (m.experts->count % l.ep != 0)
    return fmt::format("--ep {} does not divide {}", l.ep,
                       format_number(m.experts->count, "expert"));
  if (l.tp > 0 && l.ep % l.tp != 0)
    return fmt::format("--ep {} is not a multiple of --tp {}", l.ep, l.tp);
  return "";
}

// tp x cp x pp must divide the number of GPUs; the quotient is dp.
std::string why_not_together(const SearchLimits& l) {
  const auto one = [](int limit) { return std::max<std::int64_t>(1, limit); };
  const std::int64_t ranks = one(l.tp) * one(l.cp) * one(l.pp);
  const std::string limits = options_text(given_limits({.tp = l.tp, .cp = l.cp, .pp = l.pp}));
  if (l.gpus % ranks != 0)
    return fmt::format("{} together need a multiple of {} GPUs, not {}", limits, ranks, l.gpus);
  if (l.zero > 0 && l.gpus * one(l.cp) == ranks)
    return fmt::format("--zero {} has nothing to shard: with {} there is one data rank", l.zero,
                       limits.empty() ? format_number(l.gpus, "GPU") : limits);
  return "";
}

// The error of the first impossible limit; "": each limit alone is possible.
std::string why_not(const PlanJob& job, const SearchLimits& l) {
  std::string why;
  if (l.tp > 0) why = why_not_tp(job.model, l);
  if (why.empty() && l.cp > 0) why = why_not_cp(job, l);
  if (why.empty() && l.pp > 0) why = why_not_pp(job.model, l);
  if (why.empty() && l.ep > 0) why = why_not_ep(job.model, l);
  if (why.empty()) why = why_not_together(l);
  if (why.empty() && l.micro > 0 && job.batch % l.micro != 0)
    why = fmt::format("--micro {} does not divide a batch of {} sequences", l.micro, job.batch);
  if (why.empty() && job.model.fp8.on() && !fits_fp8(job.length, std::max(1, l.cp)))
    why = fmt::format("fp8 matmuls need sequences of a multiple of {} tokens, not {}",
                      kFp8Multiple * std::max(1, l.cp), job.length);
  return why;
}

std::string why_no_layout(const PlanJob& job, const Machine& machine, const SearchLimits& limits) {
  if (std::string why = why_not(job, limits); !why.empty()) return why;
  const std::vector<GivenLimit> given = given_limits(limits);
  const std::string help = helpful(given, limits, [&](const SearchLimits& wider) {
    bool some = false;
    for_each_layout(job, machine, wider, [&](const Layout&) { some = true; });
    return some;
  });
  if (!help.empty())
    return fmt::format("no layout on {} with a batch of {} sequences has {}: {} there are some",
                       format_number(limits.gpus, "GPU"), job.batch, options_text(given), help);
  return fmt::format(
      "no layout on {} divides {} heads, {} layers and a batch of {} sequences: try a number of "
      "GPUs with more divisors, or another --batch",
      format_number(limits.gpus, "GPU"), job.model.heads, job.model.layers, job.batch);
}

// ---- no layout fits

std::string what_would_fit(Planner& planner, const SearchLimits& limits, const SearchResult& result,
                           const JobOn& job_on) {
  const Machine& machine = planner.machine();
  const std::vector<GivenLimit> given = given_limits(limits);
  const std::string help = helpful(
      given, limits, [&](const SearchLimits& wider) { return some_layout_fits(planner, wider); });
  if (!help.empty()) return help + " some fit";
  if (const int enough = fewest_gpus(job_on, machine, limits); enough > 0)
    return format_number(enough, "GPU") + " are enough";
  if (!given.empty())
    if (const int enough = fewest_gpus(job_on, machine, without_limits(limits)); enough > 0)
      return fmt::format("without {} {} are enough",
                         given.size() == 1 ? given.front().option : "these limits",
                         format_number(enough, "GPU"));
  return fmt::format("no part of this machine ({}) is enough: it needs GPUs with {} of memory",
                     format_number(machine.gpus(), "GPU"),
                     format_bytes(result.smallest.memory_bytes));
}

}  // namespace

std::string why_nothing_fits(Planner& planner, const SearchLimits& limits,
                             const SearchResult& result, const JobOn& job_on) {
  const Machine& machine = planner.machine();
  if (result.layouts == 0) return why_no_layout(planner.job(), machine, limits);
  const std::string limited = options_text(given_limits(limits));
  return fmt::format("none of {}{} fits {} with {}: the smallest needs {} per GPU ({}); {}",
                     format_number(result.layouts, "layout"),
                     limited.empty() ? "" : " with " + limited, format_number(limits.gpus, "GPU"),
                     machine.gpu.memory_text(), format_bytes(result.smallest.memory_bytes),
                     to_string(result.smallest), what_would_fit(planner, limits, result, job_on));
}

}  // namespace kintsugi
