// Routers: which experts a token chooses, their weights, and the gradients of both.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {
namespace {

constexpr double kSmallest = 1e-20;  // added to the sum of sigmoids that weights are divided by

// The scores of one token; returns log Z.
template <class A>
A find_scores(A* scores, const A* logits, std::int64_t experts, RouteScores kind) {
  const A largest = *std::max_element(logits, logits + experts);
  A sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += scores[e] = std::exp(logits[e] - largest);
  for (std::int64_t e = 0; e < experts; ++e)
    scores[e] =
        kind == RouteScores::Softmax ? scores[e] / sum : A(1) / (A(1) + std::exp(-logits[e]));
  return largest + std::log(sum);
}

// The n largest of `values`, the largest first and of equals the first. Those below n are chosen
// once each even if nothing can be compared.
template <class A>
void choose(std::int32_t* ids, const A* values, std::int64_t count, std::int64_t n) {
  for (std::int64_t slot = 0; slot < n; ++slot) {
    std::int32_t best = -1;
    for (std::int32_t i = 0; i < count; ++i)
      if (std::find(ids, ids + slot, i) == ids + slot && (best < 0 || values[i] > values[best]))
        best = i;
    ids[slot] = best;
  }
}

// Experts outside of the best groups get a choice score of -infinity.
template <class A>
void keep_best_groups(A* choice, std::int64_t experts, const RouteOptions& options) {
  if (options.top_groups == options.groups) return;
  const std::int64_t size = experts / options.groups, best_of = std::min<std::int64_t>(2, size);
  std::vector<A> sums(static_cast<std::size_t>(options.groups), A(0));
  std::vector<std::int32_t> best(static_cast<std::size_t>(std::max(best_of, options.top_groups)));
  for (std::int64_t group = 0; group < options.groups; ++group) {
    choose(best.data(), choice + group * size, size, best_of);
    for (std::int64_t i = 0; i < best_of; ++i)
      sums[static_cast<std::size_t>(group)] +=
          choice[group * size + best[static_cast<std::size_t>(i)]];
  }
  choose(best.data(), sums.data(), options.groups, options.top_groups);
  for (std::int64_t group = 0; group < options.groups; ++group)
    if (std::find(best.begin(), best.begin() + options.top_groups, group) ==
        best.begin() + options.top_groups)
      std::fill_n(choice + group * size, size, -std::numeric_limits<A>::infinity());
}

}  // namespace

void CpuBackend::do_route(Tensor ids, Tensor weights, Tensor logits, Tensor bias,
                          const RouteOptions& options) {
  const std::int64_t experts = logits.extent(1), k = ids.extent(1);
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    reserve_scratch<A>(2 * experts);
    pool_.run(logits.extent(0), [&](std::int64_t token, int thread) {
      A *const scores = scratch<A>(thread), *const choice = scores + experts;
      find_scores(scores, logits.as<A>() + token * experts, experts, options.scores);
      for (std::int64_t e = 0; e < experts; ++e)
        choice[e] = scores[e] + (bias ? bias.as<A>()[e] : A(0));
      keep_best_groups(choice, experts, options);
      std::int32_t* const id = ids.as<std::int32_t>() + token * k;
      if (options.even)
        for (std::int64_t slot = 0; slot < k; ++slot)
          id[slot] = static_cast<std::int32_t>((token * k + slot) % experts);
      else
        choose(id, choice, experts, k);
      A* const weight = weights.as<A>() + token * k;
      A sum = options.scores == RouteScores::Sigmoid ? static_cast<A>(kSmallest) : A(0);
      for (std::int64_t slot = 0; slot < k; ++slot) sum += weight[slot] = scores[id[slot]];
      for (std::int64_t slot = 0; slot < k; ++slot)
        weight[slot] *= static_cast<A>(options.scale) / (options.normalize ? sum : A(1));
    });
  });
}

void CpuBackend::do_route_backward(Tensor dlogits, Tensor dweights, Tensor ids, Tensor logits,
                                   const RouteOptions& options, const RouteLosses& losses) {
  const std::int64_t tokens = logits.extent(0), experts = logits.extent(1), k = ids.extent(1);
  const std::int64_t length = losses.balance ? tokens / losses.balance.extent(0) : tokens;
  visit_float(dlogits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    reserve_scratch<A>(2 * experts);
    pool_.run(tokens, [&](std::int64_t token, int thread) {
      A *const scores = scratch<A>(thread), *const dscores = scores + experts;
      const A log_z =
          find_scores(scores, logits.as<A>() + token * experts, experts, options.scores);
      std::fill_n(dscores, experts, A(0));
      const std::int32_t* const id = ids.as<std::int32_t>() + token * k;
      const A* const dweight = dweights.as<A>() + token * k;
      const bool softmax = options.scores == RouteScores::Softmax;
      A sum = softmax ? A(0) : static_cast<A>(kSmallest), dot = 0;
      for (std::int64_t slot = 0; slot < k; ++slot) {
        sum += scores[id[slot]];
        dot += dweight[slot] * scores[id[slot]];
      }
      for (std::int64_t slot = 0; slot < k; ++slot)
        dscores[id[slot]] = static_cast<A>(options.scale) *
                            (options.normalize ? (dweight[slot] - dot / sum) / sum : dweight[slot]);
      if (losses.balance) {
        const A* const balance = losses.balance.as<A>() + token / length * experts;
        A total = 0, mean = 0;
        for (std::int64_t e = 0; e < experts; ++e) total += scores[e];
        for (std::int64_t e = 0; e < experts; ++e) mean += balance[e] * scores[e] / total;
        for (std::int64_t e = 0; e < experts; ++e)
          dscores[e] += softmax ? balance[e] : (balance[e] - mean) / total;
      }
      A mean = 0;
      for (std::int64_t e = 0; softmax && e < experts; ++e) mean += dscores[e] * scores[e];
      const A z = static_cast<A>(2 * losses.z_loss) * log_z;
      for (std::int64_t e = 0; e < experts; ++e) {
        const A slope =
            softmax ? scores[e] * (dscores[e] - mean) : scores[e] * (A(1) - scores[e]) * dscores[e];
        const A probability = softmax || z == A(0)
                                  ? scores[e]
                                  : std::exp(logits.as<A>()[token * experts + e] - log_z);
        dlogits.as<T>()[token * experts + e] = static_cast<T>(slope + z * probability);
      }
    });
  });
}

void CpuBackend::do_route_statistics(Tensor counts, Tensor probabilities, Tensor squared_log_z,
                                     Tensor ids, Tensor logits, const RouteOptions& options) {
  const std::int64_t sequences = counts.extent(0), experts = logits.extent(1), k = ids.extent(1);
  const std::int64_t length = logits.extent(0) / sequences;
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    reserve_scratch<A>(experts);
    std::vector<A> squares(static_cast<std::size_t>(sequences), A(0));
    pool_.run(sequences, [&](std::int64_t sequence, int thread) {
      A *const count = counts.as<A>() + sequence * experts,
               *const sums = probabilities.as<A>() + sequence * experts,
               *const scores = scratch<A>(thread);
      std::fill_n(count, experts, A(0));
      std::fill_n(sums, experts, A(0));
      for (std::int64_t token = sequence * length; token < (sequence + 1) * length; ++token) {
        const A log_z =
            find_scores(scores, logits.as<A>() + token * experts, experts, options.scores);
        squares[static_cast<std::size_t>(sequence)] += log_z * log_z;
        A total = 0;
        for (std::int64_t e = 0; e < experts; ++e) total += scores[e];
        for (std::int64_t e = 0; e < experts; ++e) sums[e] += scores[e] / total;
        for (std::int64_t slot = 0; slot < k; ++slot)
          count[ids.as<std::int32_t>()[token * k + slot]] += A(1);
      }
    });
    if (squared_log_z)
      for (const A one : squares) *squared_log_z.as<A>() += one;
  });
}

void CpuBackend::do_balance_loss(Tensor loss, Tensor gradient, Tensor counts, Tensor probabilities,
                                 double scale, double gradient_scale) {
  visit_float(counts.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    A sum = 0;
    for (std::int64_t i = 0; i < counts.elements(); ++i) {
      sum += counts.as<A>()[i] * probabilities.as<A>()[i];
      gradient.as<A>()[i] = static_cast<A>(gradient_scale) * counts.as<A>()[i];
    }
    if (loss) *loss.as<A>() += static_cast<A>(scale) * sum;
  });
}

void CpuBackend::do_order_choices(ExpertRows rows, Tensor positions, Tensor ids,
                                  std::int64_t first_expert) {
  const std::int64_t experts = rows.offsets.elements() - 1;
  const std::int32_t* const id = ids.as<std::int32_t>();
  std::int32_t *const offset = rows.offsets.as<std::int32_t>(), *const position =
                                                                    positions.as<std::int32_t>();
  const auto expert_of = [&](std::int64_t choice) {
    const std::int64_t expert = id[choice] - first_expert;
    return expert >= 0 && expert < experts ? expert : -1;
  };
  std::vector<std::int32_t> next(static_cast<std::size_t>(experts), 0);
  for (std::int64_t i = 0; i < ids.elements(); ++i)
    if (const std::int64_t expert = expert_of(i); expert >= 0)
      ++next[static_cast<std::size_t>(expert)];
  offset[0] = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    std::int32_t& first = next[static_cast<std::size_t>(e)];
    offset[e + 1] = offset[e] + first;
    first = offset[e];
  }
  KINTSUGI_CHECK(offset[experts] <= rows.rows.elements(), "order_choices: {} choices for {} rows",
                 offset[experts], rows.rows.elements());
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    const std::int64_t expert = expert_of(i);
    position[i] = expert < 0 ? -1 : next[static_cast<std::size_t>(expert)]++;
    if (expert >= 0) rows.rows.as<std::int32_t>()[position[i]] = static_cast<std::int32_t>(i);
  }
}

void CpuBackend::do_limit_choices(Tensor kept, Tensor dropped, Tensor ids,
                                  const ChoiceLimit& limit) {
  const std::int64_t each = limit.length * ids.extent(1);  // choices of a sequence
  std::vector<std::int64_t> counts;
  std::int64_t all = 0;
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    if (i % each == 0) counts.assign(static_cast<std::size_t>(limit.experts), 0);
    const std::int32_t id = ids.as<std::int32_t>()[i];
    const bool drops = ++counts[static_cast<std::size_t>(id)] > limit.capacity;
    kept.as<std::int32_t>()[i] = drops ? -1 : id;
    all += drops ? 1 : 0;
  }
  if (!dropped) return;
  visit_float(dropped.dtype(), [&]<class T>() {
    *dropped.as<T>() = static_cast<T>(static_cast<Accumulator<T>>(*dropped.as<T>()) +
                                      static_cast<Accumulator<T>>(all));
  });
}

void CpuBackend::do_find_visits(Tensor visits, Tensor ids, const ExpertOwners& owners) {
  const std::int64_t ranks = visits.extent(1), k = ids.extent(1);
  for (std::int64_t token = 0; token < ids.extent(0); ++token) {
    std::int32_t* const visit = visits.as<std::int32_t>() + token * ranks;
    std::fill_n(visit, ranks, -1);
    for (std::int64_t slot = 0; slot < k; ++slot) {
      const std::int64_t at = ids.as<std::int32_t>()[token * k + slot] - owners.first;
      const std::int64_t rank = at / owners.stride;
      if (at >= 0 && rank < ranks && at % owners.stride < owners.own)
        visit[rank] = static_cast<std::int32_t>(rank);
    }
  }
}

}  // namespace kintsugi
