#include "optim/matrix_exchange.h"

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
  std::ranges::stable_sort(
      parameters, [&](int a, int b) { return flops_of(rule, set[a]) > flops_of(rule, set[b]); });
  using Load = std::tuple<double, int>;  // FLOPs, owner
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int owner = 0; owner < owners; ++owner) loads.emplace(0.0, owner);
  std::vector<std::vector<int>> owned(static_cast<std::size_t>(owners));
  for (const int parameter : parameters) {
    const auto [load, owner] = loads.top();
    loads.pop();
    owned[owner].push_back(parameter);
    loads.emplace(load + flops_of(rule, set[parameter]), owner);
  }
  for (auto& one : owned) std::ranges::sort(one);
  return owned;
}

std::vector<MatrixBatch> batches_of(const ParameterSet& set, const std::vector<int>& parameters,
                                    std::int64_t most) {
  const auto order = [&](int i) {
    const MatrixShape shape = matrix_shape(set[i]);
    return std::tuple(shape.rows * shape.columns, shape.rows, shape.count);
  };
  std::vector<int> sorted = parameters;
  std::ranges::stable_sort(sorted, [&](int a, int b) { return order(a) > order(b); });
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
                                       const MatrixRule& rule, const DataGroups& data, int owners,
                                       std::int64_t most) {
  std::vector<int> parameters;
  for (int i = 0; i < static_cast<int>(set.parameters().size()); ++i)
    if (set[i].trained && set[i].data == data && &rules(set[i]) == &rule) parameters.push_back(i);
  const auto owned = assign(set, rule, parameters, owners);
  std::vector<MatrixRound> rounds;
  for (std::size_t owner = 0; owner < owned.size(); ++owner) {
    std::vector<MatrixBatch> batches = batches_of(set, owned[owner], most);
    if (rounds.size() < batches.size()) rounds.resize(batches.size(), MatrixRound(owned.size()));
    for (std::size_t i = 0; i < batches.size(); ++i) rounds[i][owner] = std::move(batches[i]);
  }
  return rounds;
}

namespace {

using Move = MatrixExchange::Move;

// Sizes of the groups that hold a layer's parameters, and a rank's position in them.
struct Position {
  int replica = 0, shard = 0, tp = 0;
};

class Planner {
 public:
  Planner(const Sharding& sharding, const OptimizerState& state, const UpdateRules& rules,
          const MatrixRule& rule, const DataGroups& data, const MatrixLimits& limits)
      : sharding_(sharding), state_(state), set_(sharding.set()), rule_(rule), limits_(limits) {
    const Groups& groups = sharding.groups();
    const auto rank = [&](GroupKind kind) { return groups[kind].rank(); };
    const auto size = [&](GroupKind kind) { return groups[kind].size(); };
    own_ = {rank(data.replica), rank(data.shard), rank(GroupKind::Tp)};
    sizes_ = {size(data.replica), size(data.shard), size(GroupKind::Tp)};
    rounds_ = plan_matrices(set_, rules, rule, data, sizes_.replica * sizes_.shard * sizes_.tp,
                            limits.batch);
  }

  std::vector<MatrixExchange> exchanges() {
    std::vector<MatrixExchange> all;
    for (const MatrixRound& round : rounds_) {
      round_ = &round;
      MatrixExchange& exchange = all.emplace_back();
      plan_momenta(exchange);
      plan_owners(exchange);
      plan_transform(exchange);
      plan_holders(exchange);
      plan_results(exchange);
    }
    return all;
  }

 private:
  const MatrixBatch& batch(int replica, int shard, int tp) const {
    return (*round_)[(replica * sizes_.shard + shard) * sizes_.tp + tp];
  }
  // Calls f(parameter, index) for the parameters whose owners have this replica and shard rank.
  void for_each_owned(int replica, int shard, const auto& f) const {
    for (int tp = 0; tp < sizes_.tp; ++tp)
      for (const int parameter : batch(replica, shard, tp)) f(set_[parameter], tp);
  }

  static Shape shard_of(const Parameter& parameter, int tp) {
    return parameter.shard.local(parameter.global, tp);
  }

  // Whether a tp rank sends its shard of a parameter: one of those that have the same shard does.
  bool sends(const Parameter& parameter, int tp) const {
    if (sizes_.tp == 1) return true;
    if (parameter.shard.owner >= 0) return tp == parameter.shard.owner;
    if (parameter.shard.dimension < 0) return tp == 0;
    return tp % parameter.shard.copies == 0;
  }

  Sharding::Range piece(const Parameter& parameter, int shard) const {
    const Sharding::Range owned = sharding_.owned_by(parameter.bucket, shard);
    const std::int64_t begin = std::max(parameter.offset, owned.begin),
                       end = std::min(parameter.offset + parameter.shape.elements(), owned.end);
    return {begin, std::max(begin, end)};
  }

  MatrixRange tensors_of(const Parameter& parameter, Sharding::Range range) const {
    const auto& segments = state_.segments();
    const auto segment = std::ranges::find_if(segments, [&](const auto& one) {
      return one.bucket == parameter.bucket && one.rule == &rule_ &&
             one.range.begin <= range.begin && range.end <= one.range.end;
    });
    KINTSUGI_CHECK(segment != segments.end(), "{} has no state", parameter.name);
    const std::int64_t from = range.begin - segment->range.begin;
    const std::int64_t owned = sharding_.owned(parameter.bucket).begin;
    MatrixRange piece{
        .shape = matrix_shape(parameter),
        .weight = sharding_.weights_at(parameter.bucket, range),
        .gradient =
            sharding_.owned_gradients(parameter.bucket).rows(range.begin - owned, range.size()),
        .master = state_.has_master(*segment) ? state_.master(*segment).rows(from, range.size())
                                              : Tensor(),
        .ema = state_.has_ema() ? state_.ema(*segment).rows(from, range.size()) : Tensor(),
        .first_element = range.begin,
        .decays = rule_.decays(parameter)};
    for (std::size_t slot = 0; slot < state_.slots_of(&rule_).size(); ++slot)
      piece.slots.push_back(state_.slot(*segment, slot).rows(from, range.size()));
    return piece;
  }

  // Adds what this rank owns of a parameter, in pieces that end at multiples of the limits.
  void add_pieces(const Parameter& parameter, std::int64_t at, const auto& add) const {
    const Sharding::Range range = piece(parameter, own_.shard);
    for (std::int64_t begin = range.begin; begin < range.end;) {
      std::int64_t count = std::min(range.end - begin, limits_.piece);
      if (at >= 0) count = std::min(count, limits_.block - at % limits_.block);
      MatrixRange part = tensors_of(parameter, {begin, begin + count});
      part.at = at;
      add(std::move(part));
      begin += count;
      if (at >= 0) at += count;
    }
  }

  ExchangeCounts counts(int size) const {
    const std::vector<std::int64_t> none(static_cast<std::size_t>(size), 0);
    return {none, none};
  }
  static std::int64_t& at(std::vector<std::int64_t>& by_rank, int rank) { return by_rank[rank]; }

  void plan_momenta(MatrixExchange& x) const {
    const auto add = [&](MatrixRange part) { x.momenta.push_back(std::move(part)); };
    x.to_owners = counts(sizes_.shard);
    std::int64_t next = 0;
    for (int replica = 0; replica < sizes_.replica; ++replica)
      for (int shard = 0; shard < sizes_.shard; ++shard)
        for_each_owned(replica, shard, [&](const Parameter& parameter, int) {
          const bool is_sent = replica == own_.replica && sends(parameter, own_.tp);
          add_pieces(parameter, is_sent ? next : -1, add);
          if (!is_sent) return;
          const std::int64_t count = piece(parameter, own_.shard).size();
          at(x.to_owners.sent, shard) += count;
          next += count;
        });
  }

  void plan_owners(MatrixExchange& x) const {
    x.to_owner = counts(sizes_.tp);
    std::int64_t next = 0;  // of the pieces as they arrive
    for (int from = 0; from < sizes_.shard; ++from) {
      std::int64_t shard_at = 0;
      for_each_owned(own_.replica, own_.shard, [&](const Parameter& parameter, int) {
        if (!sends(parameter, own_.tp)) return;
        const Sharding::Range range = piece(parameter, from);
        if (range.size() > 0)
          x.join.push_back({next, shard_at + range.begin - parameter.offset, range.size()});
        at(x.to_owners.received, from) += range.size();
        next += range.size();
        shard_at += parameter.shape.elements();
      });
    }
    for_each_owned(own_.replica, own_.shard, [&](const Parameter& parameter, int tp) {
      if (sends(parameter, own_.tp)) at(x.to_owner.sent, tp) += parameter.shape.elements();
    });
  }

  // Appends the matrices of one tp rank's shard.
  void add_parts(std::vector<MatrixShard>& parts, const Parameter& parameter, std::size_t index,
                 int tp, std::int64_t shard_at) const {
    const MatrixParts& matrices = parameter.matrices;
    const Shape shape = shard_of(parameter, tp);
    if (shape.elements() == 0) return;
    const std::int64_t count = matrices.count, rows = shape[0], columns = shape[1];
    MatrixShard part{.shard_at = shard_at};
    const bool by_rows = matrices.dimension == 0;
    const std::int64_t extent = (by_rows ? rows : columns) / count,
                       turn = count == 1 || matrices.turn == 0 ? extent : matrices.turn;
    if (count == 1)
      part.shard = {rows, 1, columns};
    else if (by_rows)
      part.shard = {extent / turn, count, turn * columns};
    else
      part.shard = {rows * (extent / turn), count, turn};
    if (sizes_.tp > 1 && parameter.shard.owner < 0) part.dimension = parameter.shard.dimension;
    if (part.dimension >= 0) {
      const bool split_too = part.dimension == matrices.dimension;
      part.extent = part.dimension == 0 ? rows : columns;
      if (split_too) part.extent /= count;
      part.first = part.extent * (tp / parameter.shard.copies);
    }
    for (part.part = 0; part.part < count; ++part.part) {
      part.matrix = static_cast<std::int64_t>(index) * count + part.part;
      parts.push_back(part);
    }
  }

  void plan_transform(MatrixExchange& x) const {
    const MatrixBatch& own = batch(own_.replica, own_.shard, own_.tp);
    x.from_owner = counts(sizes_.tp);
    std::int64_t arriving = 0, leaving = 0;
    for (int tp = 0; tp < sizes_.tp; ++tp)
      for (std::size_t i = 0; i < own.size(); ++i) {
        const Parameter& parameter = set_[own[i]];
        const std::int64_t count = shard_of(parameter, tp).elements();
        if (sends(parameter, tp)) {
          add_parts(x.assembled, parameter, i, tp, arriving);
          at(x.to_owner.received, tp) += count;
          arriving += count;
        }
        add_parts(x.returned, parameter, i, tp, leaving);
        at(x.from_owner.sent, tp) += count;
        leaving += count;
      }
    if (own.empty()) return;
    x.shape = matrix_shape(set_[own.front()]);
    x.matrices = x.shape.count * static_cast<std::int64_t>(own.size());
  }

  void plan_holders(MatrixExchange& x) const {
    x.from_owners = counts(sizes_.shard);
    for_each_owned(own_.replica, own_.shard, [&](const Parameter& parameter, int tp) {
      at(x.from_owner.received, tp) += parameter.shape.elements();
    });
    std::int64_t next = 0;
    for (int to = 0; to < sizes_.shard; ++to) {
      std::int64_t shard_at = 0;
      for_each_owned(own_.replica, own_.shard, [&](const Parameter& parameter, int) {
        const Sharding::Range range = piece(parameter, to);
        if (range.size() > 0)
          x.split.push_back({shard_at + range.begin - parameter.offset, next, range.size()});
        at(x.from_owners.sent, to) += range.size();
        next += range.size();
        shard_at += parameter.shape.elements();
      });
      for_each_owned(own_.replica, to, [&](const Parameter& parameter, int) {
        at(x.from_owners.received, to) += piece(parameter, own_.shard).size();
      });
    }
  }

  void plan_results(MatrixExchange& x) const {
    for (int replica = 0; replica < sizes_.replica; ++replica) {
      std::int64_t next = 0;
      const auto add = [&](MatrixRange part) {
        const std::int64_t first = part.at / limits_.block * limits_.block;
        if (x.results.empty() || x.results.back().replica != replica ||
            x.results.back().first != first)
          x.results.push_back({.replica = replica, .first = first});
        MatrixExchange::Results& block = x.results.back();
        part.at -= first;
        block.count = part.at + part.size();
        block.pieces.push_back(std::move(part));
      };
      for (int shard = 0; shard < sizes_.shard; ++shard)
        for_each_owned(replica, shard, [&](const Parameter& parameter, int) {
          add_pieces(parameter, next, add);
          next += piece(parameter, own_.shard).size();
        });
    }
  }

  const Sharding& sharding_;
  const OptimizerState& state_;
  const ParameterSet& set_;
  const MatrixRule& rule_;
  MatrixLimits limits_;
  Position own_, sizes_;
  std::vector<MatrixRound> rounds_;
  const MatrixRound* round_ = nullptr;
};

}  // namespace

std::vector<MatrixExchange> plan_exchanges(const Sharding& sharding, const OptimizerState& state,
                                           const UpdateRules& rules, const MatrixRule& rule,
                                           const DataGroups& data, const MatrixLimits& limits) {
  return Planner(sharding, state, rules, rule, data, limits).exchanges();
}

}  // namespace kintsugi
