#include "optim/matrix_updates.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace kintsugi {
namespace {

constexpr std::int64_t kBatchElements = std::int64_t{1} << 25;
constexpr std::int64_t kSentElements = std::int64_t{1} << 25;  // between replicas at a time
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::int64_t elements_of(const MatrixExchange& x) {
  const std::int64_t own = x.matrices * x.shape.rows * x.shape.columns;
  return std::max({sum(x.to_owners.sent), sum(x.to_owners.received), sum(x.to_owner.sent),
                   sum(x.to_owner.received), own, sum(x.from_owner.sent),
                   sum(x.from_owner.received), sum(x.from_owners.sent),
                   sum(x.from_owners.received)});
}

Tensor batch_of(const MatrixExchange& x, const Tensor& buffer) {
  return buffer.rows(0, x.matrices * x.shape.rows * x.shape.columns)
      .view({x.matrices, x.shape.rows, x.shape.columns});
}

// The same elements in a rank's shard and in the whole matrix.
struct PartViews {
  Tensor shard, matrix;
};

PartViews views_of(const MatrixShard& part, const Tensor& shards, const Tensor& matrices) {
  const Tensor shard =
      shards.rows(part.shard_at, part.shard.elements()).view(part.shard).select(1, part.part);
  Tensor matrix = matrices.select(0, part.matrix);
  if (part.dimension >= 0) matrix = matrix.part(part.dimension, part.first, part.extent);
  if (matrix.contiguous()) matrix = matrix.view(shard.shape());
  return {shard, matrix};
}

// Whether the shards of a batch are its matrices, each of them once, one after the other.
bool is_whole(const std::vector<MatrixShard>& parts, std::int64_t matrices) {
  return std::ssize(parts) == matrices && std::ranges::all_of(parts, [](const MatrixShard& part) {
           return part.dimension < 0 && part.shard[1] == 1;
         });
}

bool is_identity(const std::vector<MatrixExchange::Move>& moves) {
  return std::ranges::all_of(moves,
                             [](const MatrixExchange::Move& move) { return move.from == move.to; });
}

}  // namespace

MatrixUpdates::MatrixUpdates(Backend& backend, Arena& arena, const Sharding& sharding,
                             const OptimizerState& state, const UpdateRules& rules,
                             const MatrixRule& rule, const DataGroups& data,
                             const StateOffload& offload)
    : backend_(&backend),
      groups_(&sharding.groups()),
      rule_(&rule),
      data_(data),
      dtype_(rule.exchanged(sharding.store().dtype())),
      offload_(offload) {
  const bool stages = offload.on || offload.gradients;
  rounds_ =
      plan_exchanges(sharding, state, rules, rule, data,
                     {.batch = kBatchElements,
                      .block = (*groups_)[data_.replica].size() == 1 ? kUnlimited : kSentElements,
                      .piece = stages ? offload.block_elements : kUnlimited});
  allocate(arena, state, offload);
}

void MatrixUpdates::allocate(Arena& arena, const OptimizerState& state,
                             const StateOffload& offload) {
  std::int64_t elements = 0, squares = 0, matrices = 0, received = 0;
  for (const MatrixExchange& x : rounds_) {
    const std::int64_t small = std::min(x.shape.rows, x.shape.columns);
    elements = std::max(elements, elements_of(x));
    squares = std::max(squares, x.matrices * small * small);
    matrices = std::max(matrices, x.matrices);
    for (const MatrixExchange::Results& block : x.results)
      received = std::max(received, block.count);
  }
  const auto take = [&](DType dtype, std::int64_t count) {
    return arena.allocate(Region::Optimizer, "whole matrices", dtype, {count});
  };
  for (Tensor& buffer : buffers_) buffer = take(dtype_, elements);
  for (Tensor& square : squares_) square = take(dtype_, squares);
  squared_norms_ = take(accumulator_of(dtype_), matrices);
  if ((*groups_)[data_.replica].size() > 1) received_ = take(dtype_, received);
  if (offload.on || offload.gradients) allocate_staging(arena, state, offload);
}

void MatrixUpdates::allocate_staging(Arena& arena, const OptimizerState& state,
                                     const StateOffload& offload) {
  std::int64_t longest = 0;
  for (const MatrixExchange& x : rounds_)
    for (const MatrixRange& piece : x.momenta) longest = std::max(longest, piece.size());
  const auto take = [&](DType dtype) {
    return arena.allocate(Region::Optimizer, "state buffers", dtype, {longest});
  };
  const auto rule =
      std::ranges::find_if(state.rules(), [&](const auto& one) { return one.rule == rule_; });
  if (rule == state.rules().end()) return;  // this rank owns no elements of its parameters
  KINTSUGI_CHECK(rule->slots.size() <= OnDevice().slots.size(), "{} has too many slots",
                 rule_->name());
  for (Staging& staging : staging_) {
    if (offload.gradients) staging.gradient = take(accumulator_of(dtype_));
    if (!offload.on) continue;
    if (state.has_master()) staging.master = take(state.master().dtype());
    if (state.has_ema()) staging.ema = take(state.ema().dtype());
    for (const Tensor& slot : rule->slots) staging.slots.push_back(take(slot.dtype()));
  }
}

// ---- state and gradients in host memory

UpdateOptions MatrixUpdates::options_of(const MatrixRange& piece) const {
  return {.step = step_.step,
          .lr = step_.lr,
          .decays = piece.decays,
          .first_element = piece.first_element};
}

void MatrixUpdates::fetch(const MatrixRange& piece, Staging& to, bool applies) {
  std::size_t copies = 0;
  const auto copy = [&](const Tensor& device, const Tensor& host) {
    to.to_device[copies++] = backend_->to_device(device.rows(0, piece.size()), host);
  };
  for (Backend::Transfer& transfer : to.to_host) backend_->wait(std::exchange(transfer, {}));
  if (applies) {
    if (offload_.on && piece.master) copy(to.master, piece.master);
    if (offload_.on && piece.ema) copy(to.ema, piece.ema);
    return;
  }
  if (offload_.gradients) copy(to.gradient, piece.gradient);
  if (offload_.on)
    for (std::size_t i = 0; i < piece.slots.size(); ++i) copy(to.slots[i], piece.slots[i]);
}

void MatrixUpdates::put_back(const MatrixRange& piece, Staging& from, bool applies) {
  if (!offload_.on) return;
  std::size_t copies = 0;
  const auto copy = [&](const Tensor& host, const Tensor& device) {
    from.to_host[copies++] = backend_->to_host(host, device.rows(0, piece.size()));
  };
  if (applies) {
    if (piece.master) copy(piece.master, from.master);
    if (piece.ema) copy(piece.ema, from.ema);
    return;
  }
  for (std::size_t i = 0; i < piece.slots.size(); ++i) copy(piece.slots[i], from.slots[i]);
}

MatrixUpdates::OnDevice MatrixUpdates::on_device(const MatrixRange& piece,
                                                 const Staging& staging) const {
  const auto part = [&](const Tensor& x) { return x.rows(0, piece.size()); };
  OnDevice on{.gradient = offload_.gradients ? part(staging.gradient) : piece.gradient,
              .master = !piece.master ? piece.weight
                        : offload_.on ? part(staging.master)
                                      : piece.master,
              .ema = offload_.on && piece.ema ? part(staging.ema) : piece.ema,
              .slots = {}};
  for (std::size_t i = 0; i < piece.slots.size(); ++i)
    on.slots[i] = offload_.on ? part(staging.slots[i]) : piece.slots[i];
  return on;
}

void MatrixUpdates::for_each_piece(const std::vector<MatrixRange>& pieces, bool applies,
                                   const auto& use) {
  const bool stages = offload_.on || offload_.gradients;
  if (stages && !pieces.empty()) fetch(pieces[0], staging_[0], applies);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Staging& staging = staging_[i % 2];
    if (stages && i + 1 < pieces.size()) fetch(pieces[i + 1], staging_[(i + 1) % 2], applies);
    for (Backend::Transfer& transfer : staging.to_device)
      backend_->wait(std::exchange(transfer, {}));
    use(pieces[i], on_device(pieces[i], staging));
    put_back(pieces[i], staging, applies);
  }
  for (Staging& staging : staging_)
    for (Backend::Transfer& transfer : staging.to_host) backend_->wait(std::exchange(transfer, {}));
}

// ---- the steps of a round

void MatrixUpdates::run(const UpdateStep& step) {
  step_ = step;
  for (const MatrixExchange& round : rounds_) {
    update_momenta(round);
    send_to_owners(round);
    if (round.matrices > 0) transform(round);
    return_to_holders(round);
    apply_updates(round);
  }
}

void MatrixUpdates::update_momenta(const MatrixExchange& round) {
  for_each_piece(round.momenta, false, [&](const MatrixRange& piece, const OnDevice& on) {
    rule_->direction(*backend_, piece.at < 0 ? Tensor() : in().rows(piece.at, piece.size()),
                     std::span(on.slots.data(), piece.slots.size()), on.gradient, step_.scale,
                     options_of(piece));
  });
}

void MatrixUpdates::exchange(GroupKind group, const ExchangeCounts& counts) {
  Communicator& ranks = (*groups_)[group];
  if (ranks.size() == 1) return;
  ranks.wait(ranks.all_to_all(out().rows(0, sum(counts.received)), in().rows(0, sum(counts.sent)),
                              counts));
  turn();
}

void MatrixUpdates::move(const std::vector<MatrixExchange::Move>& moves) {
  if (is_identity(moves)) return;
  for (const auto& [from, to, count] : moves)
    backend_->copy(out().rows(to, count), in().rows(from, count));
  turn();
}

void MatrixUpdates::send_to_owners(const MatrixExchange& round) {
  exchange(data_.shard, round.to_owners);
  move(round.join);
  exchange(GroupKind::Tp, round.to_owner);
}

void MatrixUpdates::transform(const MatrixExchange& round) {
  if (!is_whole(round.assembled, round.matrices)) {
    for (const MatrixShard& part : round.assembled) {
      const PartViews views = views_of(part, in(), batch_of(round, out()));
      backend_->copy(views.matrix, views.shard);
    }
    turn();
  }
  const std::int64_t small = std::min(round.shape.rows, round.shape.columns);
  MatrixWork work{.x = batch_of(round, in()),
                  .other = batch_of(round, out()),
                  .squares = {},
                  .squared_norms = squared_norms_.rows(0, round.matrices)};
  for (std::size_t i = 0; i < squares_.size(); ++i)
    work.squares[i] =
        squares_[i].rows(0, round.matrices * small * small).view({round.matrices, small, small});
  if (rule_->transform(*backend_, work).data() == work.other.data()) turn();
  if (is_whole(round.returned, round.matrices)) return;
  for (const MatrixShard& part : round.returned) {
    const PartViews views = views_of(part, out(), batch_of(round, in()));
    backend_->copy(views.shard, views.matrix);
  }
  turn();
}

void MatrixUpdates::return_to_holders(const MatrixExchange& round) {
  exchange(GroupKind::Tp, round.from_owner);
  move(round.split);
  exchange(data_.shard, round.from_owners);
}

void MatrixUpdates::apply(const std::vector<MatrixRange>& pieces, Tensor directions) {
  for_each_piece(pieces, true, [&](const MatrixRange& piece, const OnDevice& on) {
    rule_->apply(*backend_, piece.weight, on.master, directions.rows(piece.at, piece.size()),
                 step_.scale, piece.shape.rows, piece.shape.columns, options_of(piece));
    if (step_.ema_rate > 0)
      backend_->moving_average(on.ema, on.master, step_.ema_rate, step_.scale);
  });
}

void MatrixUpdates::apply_updates(const MatrixExchange& round) {
  Communicator& replicas = (*groups_)[data_.replica];
  for (const MatrixExchange::Results& block : round.results) {
    const Tensor results = block.replica == replicas.rank() ? in().rows(block.first, block.count)
                                                            : received_.rows(0, block.count);
    if (replicas.size() > 1) replicas.wait(replicas.broadcast(results, block.replica));
    apply(block.pieces, results);
  }
}

}  // namespace kintsugi
