#include "optim/matrix_plan.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace kintsugi {
namespace {

double flops_of(const MatrixRule& rule, const Parameter& parameter) {
  const MatrixShape shape = matrix_shape(parameter);
  return static_cast<double>(shape.count) * rule.flops(shape.rows, shape.columns);
}

// The parameters of each owner, in the order of the set.
std::vector<std::vector<int>> assign(const ParameterSet& set, const MatrixRule& rule,
                                     std::vector<int> parameters, int owners) {
  std::stable_sort(parameters.begin(), parameters.end(),
                   [&](int a, int b) { return flops_of(rule, set[a]) > flops_of(rule, set[b]); });
  using Load = std::tuple<double, int>;  // FLOPs, owner
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int owner = 0; owner < owners; ++owner) loads.emplace(0.0, owner);
  std::vector<std::vector<int>> owned(static_cast<std::size_t>(owners));
  for (const int parameter : parameters) {
    const auto [load, owner] = loads.top();
    loads.pop();
    owned[static_cast<std::size_t>(owner)].push_back(parameter);
    loads.emplace(load + flops_of(rule, set[parameter]), owner);
  }
  for (auto& one : owned) std::sort(one.begin(), one.end());
  return owned;
}

std::vector<MatrixBatch> batches_of(const ParameterSet& set, const std::vector<int>& parameters,
                                    std::int64_t most) {
  const auto order = [&](int i) {
    const MatrixShape shape = matrix_shape(set[i]);
    return std::tuple(shape.rows * shape.columns, shape.rows, shape.count);
  };
  std::vector<int> sorted = parameters;
  std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return order(a) > order(b); });
  std::vector<MatrixBatch> batches;
  std::int64_t elements = 0;
  for (const int parameter : sorted) {
    const std::int64_t count = set[parameter].global.elements();
    if (batches.empty() ||
        matrix_shape(set[batches.back().front()]) != matrix_shape(set[parameter]) ||
        elements + count > most) {
      batches.emplace_back();
      elements = 0;
    }
    batches.back().push_back(parameter);
    elements += count;
  }
  return batches;
}

}  // namespace

MatrixShape matrix_shape(const Parameter& parameter) {
  MatrixShape shape{parameter.global[0], parameter.global[1], parameter.matrices.count};
  (parameter.matrices.dimension == 0 ? shape.rows : shape.columns) /= shape.count;
  return shape;
}

std::vector<MatrixRound> plan_matrices(const ParameterSet& set, const UpdateRules& rules,
                                       const MatrixRule& rule, int owners, std::int64_t most) {
  std::vector<int> parameters;
  for (int i = 0; i < static_cast<int>(set.parameters().size()); ++i)
    if (set[i].trained && &rules(set[i]) == &rule) parameters.push_back(i);
  const auto owned = assign(set, rule, parameters, owners);
  std::vector<MatrixRound> rounds;
  for (std::size_t owner = 0; owner < owned.size(); ++owner) {
    std::vector<MatrixBatch> batches = batches_of(set, owned[owner], most);
    if (rounds.size() < batches.size()) rounds.resize(batches.size(), MatrixRound(owned.size()));
    for (std::size_t i = 0; i < batches.size(); ++i) rounds[i][owner] = std::move(batches[i]);
  }
  return rounds;
}

}  // namespace kintsugi
