#include "model/layers/dispatcher.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace kintsugi {
namespace {

// All experts are on this rank, or on its tensor ranks, which have the same tokens.
class NoDispatcher final : public Dispatcher {
 public:
  explicit NoDispatcher(bool computes_all) : computes_all_(computes_all) {}

  void declare(Declaration& d) override { (void)d; }
  std::int64_t most() const override { return 1; }
  void bring_choices(const LayerRun&, Tensor, Tensor) const override {}
  Tensor ids(const LayerRun&, Tensor own) const override { return own; }
  Tensor weights(const LayerRun&, Tensor own) const override { return own; }
  Tensor bring(const LayerRun&, Tensor own) const override { return own; }
  Tensor brought(const LayerRun&, Tensor own) const override { return own; }
  void combine(const LayerRun& run, Tensor y, Tensor x, Tensor positions,
               Tensor residual) const override {
    run.backend().combine_rows(y, x, positions, residual);
  }
  Tensor clear_dweights(const LayerRun& run, Tensor own) const override {
    if (!computes_all_) run.backend().fill(own, 0.0);
    return own;
  }
  void sum_dweights(const LayerRun&, Tensor) const override {}

 private:
  bool computes_all_;  // of the choices
};

// Every token visits all ranks. What is sent does not depend on the choices, so nobody waits for
// counts.
class GatheringDispatcher final : public Dispatcher {
 public:
  GatheringDispatcher(int ranks, const DispatchedLayer& layer)
      : ranks_(ranks), hidden_(layer.hidden), chosen_(layer.chosen) {}

  void declare(Declaration& d) override {
    ids_ = d.saved({.label = "chosen experts of all ranks",
                    .per = Per::Bounded,
                    .width = chosen_,
                    .most = ranks_,
                    .indices = true,
                    .kept = true});
    weights_ = d.saved({.label = "expert weights of all ranks",
                        .per = Per::Bounded,
                        .width = chosen_,
                        .most = ranks_,
                        .wide = true,
                        .kept = true});
    brought_ = d.workspace(
        {.label = "tokens of all ranks", .per = Per::Bounded, .width = hidden_, .most = ranks_});
    partial_ = d.workspace({.label = "expert results of all ranks",
                            .per = Per::Bounded,
                            .width = hidden_,
                            .most = ranks_});
    dweights_ = d.workspace({.label = "gradient of expert weights of all ranks",
                             .per = Per::Bounded,
                             .width = chosen_,
                             .most = ranks_,
                             .wide = true,
                             .training = true});
  }
  std::int64_t most() const override { return ranks_; }

  void bring_choices(const LayerRun& run, Tensor ids, Tensor weights) const override {
    Communicator& group = *run.context.experts;
    const auto first = group.all_gather(run[ids_], ids);
    const auto second = group.all_gather(run[weights_], weights);
    group.wait(first);
    group.wait(second);
  }
  Tensor ids(const LayerRun& run, Tensor) const override { return run[ids_]; }
  Tensor weights(const LayerRun& run, Tensor) const override { return run[weights_]; }

  Tensor bring(const LayerRun& run, Tensor own) const override {
    Communicator& group = *run.context.experts;
    group.wait(group.all_gather(run[brought_], own));
    return run[brought_];
  }
  Tensor brought(const LayerRun& run, Tensor) const override { return run[brought_]; }

  void combine(const LayerRun& run, Tensor y, Tensor x, Tensor positions,
               Tensor residual) const override {
    Communicator& group = *run.context.experts;
    const Tensor partial = run[partial_],
                 own = residual ? partial.rows(group.rank() * y.extent(0), y.extent(0)) : y;
    run.backend().combine_rows(partial, x, positions);
    group.wait(group.reduce_scatter(own, partial));
    if (residual) run.backend().dropout(y, own, {}, residual);
  }

  Tensor clear_dweights(const LayerRun& run, Tensor) const override {
    run.backend().fill(run[dweights_], 0.0);
    return run[dweights_];
  }
  void sum_dweights(const LayerRun& run, Tensor own) const override {
    Communicator& group = *run.context.experts;
    group.wait(group.reduce_scatter(own, run[dweights_]));
  }

 private:
  int ranks_;
  std::int64_t hidden_, chosen_;
  Saved ids_, weights_;
  Workspace brought_, partial_, dweights_;
};

// A token visits the ranks that hold an expert it chose, each of them once. The ranks must know how
// many visitors there are before these travel, so the host waits for the router once per layer.
class VisitingDispatcher final : public Dispatcher {
 public:
  VisitingDispatcher(const LayerRanks& ranks, const DispatchedLayer& layer)
      : ranks_(ranks.experts), own_rank_(ranks.experts_rank), layer_(layer) {
    const std::int64_t own = layer.experts / (ranks.tensor * ranks.experts);
    owners_ = {.first = own * ranks.tensor_rank, .own = own, .stride = own * ranks.tensor};
  }

  void declare(Declaration& d) override {
    const std::int64_t k = layer_.chosen, sent = std::min<std::int64_t>(k, ranks_);
    visits_ = d.workspace({.label = "visited ranks", .width = ranks_, .indices = true});
    const auto kept = [&](std::string_view label, Per per, std::int64_t width, std::int64_t most,
                          bool wide) {
      return d.saved({.label = label,
                      .per = per,
                      .width = width,
                      .most = most,
                      .wide = wide,
                      .indices = !wide,
                      .kept = true});
    };
    rows_ = kept("visits", Per::Bounded, 0, ranks_, false);
    positions_ = kept("positions of visits", Per::Token, ranks_, 1, false);
    offsets_ = kept("numbers of visits", Per::Whole, ranks_ + 1, 1, false);
    all_offsets_ =
        kept("numbers of visits of all ranks", Per::Whole, ranks_ * (ranks_ + 1), 1, false);
    ids_ = kept("chosen experts of visitors", Per::Bounded, k, ranks_, false);
    weights_ = kept("expert weights of visitors", Per::Bounded, k, ranks_, true);
    const auto work = [&](std::string_view label, std::int64_t width, std::int64_t most) {
      return TensorSpec{.label = label, .per = Per::Bounded, .width = width, .most = most};
    };
    brought_ = d.workspace(work("visitors", layer_.hidden, ranks_));
    partial_ = d.workspace(work("expert results of visitors", layer_.hidden, ranks_));
    packed_ = d.workspace(work("visits of tokens", layer_.hidden, sent));
    TensorSpec spec = work("chosen experts of visits", k, sent);
    spec.indices = true;
    packed_ids_ = d.workspace(spec);
    spec = work("expert weights of visits", k, sent);
    spec.wide = true;
    packed_weights_ = d.workspace(spec);
    spec = work("gradient of expert weights of visitors", k, ranks_);
    spec.wide = spec.training = true;
    dweights_ = d.workspace(spec);
  }
  std::int64_t most() const override { return ranks_; }

  void bring_choices(const LayerRun& run, Tensor ids, Tensor weights) const override {
    Communicator& group = *run.context.experts;
    run.backend().find_visits(run[visits_], ids, owners_);
    run.backend().order_choices(rows(run), run[positions_], run[visits_], 0);
    group.wait(group.all_gather(run[all_offsets_], run[offsets_]));
    count(run);
    send(run, run[ids_], run[packed_ids_], ids);
    send(run, run[weights_], run[packed_weights_], weights);
  }
  Tensor ids(const LayerRun& run, Tensor) const override { return arrived(run, run[ids_]); }
  Tensor weights(const LayerRun& run, Tensor) const override { return arrived(run, run[weights_]); }

  Tensor bring(const LayerRun& run, Tensor own) const override {
    send(run, run[brought_], run[packed_], own);
    return brought(run, own);
  }
  Tensor brought(const LayerRun& run, Tensor) const override { return arrived(run, run[brought_]); }

  void combine(const LayerRun& run, Tensor y, Tensor x, Tensor positions,
               Tensor residual) const override {
    run.backend().combine_rows(arrived(run, run[partial_]), x, positions);
    send_back(run, y, run[packed_], run[partial_], residual);
  }

  Tensor clear_dweights(const LayerRun& run, Tensor) const override {
    const Tensor dweights = arrived(run, run[dweights_]);
    run.backend().fill(dweights, 0.0);
    return dweights;
  }
  void sum_dweights(const LayerRun& run, Tensor own) const override {
    send_back(run, own, run[packed_weights_], run[dweights_], {});
  }

 private:
  struct Numbers {
    std::vector<std::int64_t> sent, received;  // tokens, by rank
  };

  // What the layer sends is ordered by rank, then by token.
  ExpertRows rows(const LayerRun& run) const {
    return {.rows = run[rows_], .offsets = run[offsets_], .choices = ranks_};
  }

  // Reads the numbers of visits on the host. The planner's backend has none: it assumes that all
  // experts are chosen alike.
  void count(const LayerRun& run) const {
    const auto width = static_cast<std::size_t>(ranks_) + 1;
    const double stays_away =
        1.0 - static_cast<double>(owners_.own) / static_cast<double>(layer_.experts);
    const auto each =
        static_cast<std::int32_t>(static_cast<double>(run.size.tokens()) *
                                  (1.0 - std::pow(stays_away, static_cast<double>(layer_.chosen))));
    std::vector<std::int32_t> offsets(static_cast<std::size_t>(ranks_) * width);
    for (std::size_t i = 0; i < offsets.size(); ++i)
      offsets[i] = each * static_cast<std::int32_t>(i % width);
    run.backend().download(offsets.data(), run[all_offsets_]);
    Numbers& numbers = numbers_[run[all_offsets_].data()];
    numbers = {};
    const auto visits = [&](int from, int to) {
      const std::size_t at = static_cast<std::size_t>(from) * width + static_cast<std::size_t>(to);
      return offsets[at + 1] - offsets[at];
    };
    for (int rank = 0; rank < ranks_; ++rank) {
      numbers.sent.push_back(visits(own_rank_, rank));
      numbers.received.push_back(visits(rank, own_rank_));
    }
  }

  const Numbers& numbers(const LayerRun& run) const {
    return numbers_.at(run[all_offsets_].data());
  }
  static std::int64_t sum(const std::vector<std::int64_t>& numbers) {
    return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
  }
  static std::vector<std::int64_t> times(std::vector<std::int64_t> numbers, std::int64_t width) {
    for (std::int64_t& number : numbers) number *= width;
    return numbers;
  }
  Tensor arrived(const LayerRun& run, const Tensor& x) const {
    return x.rows(0, sum(numbers(run).received));
  }

  void send(const LayerRun& run, const Tensor& to, const Tensor& packed, const Tensor& own) const {
    const Numbers& all = numbers(run);
    run.backend().gather_rows(packed, own, rows(run));
    exchange(run, arrived(run, to), packed.rows(0, sum(all.sent)), all.received, all.sent);
  }
  // own (tokens, width) = [residual +] the sums of what the visited ranks computed.
  void send_back(const LayerRun& run, const Tensor& own, const Tensor& packed, const Tensor& from,
                 const Tensor& residual) const {
    const Numbers& all = numbers(run);
    const Tensor returned = packed.rows(0, sum(all.sent));
    exchange(run, returned, arrived(run, from), all.sent, all.received);
    run.backend().combine_rows(own, returned, run[positions_], residual);
  }
  void exchange(const LayerRun& run, const Tensor& to, const Tensor& from,
                const std::vector<std::int64_t>& received,
                const std::vector<std::int64_t>& sent) const {
    Communicator& group = *run.context.experts;
    const ExchangeCounts counts{times(sent, from.extent(1)), times(received, to.extent(1))};
    group.wait(group.all_to_all(to, from, counts));
  }

  int ranks_, own_rank_;
  DispatchedLayer layer_;
  ExpertOwners owners_;
  Saved rows_, positions_, offsets_, all_offsets_, ids_, weights_;
  Workspace visits_, brought_, partial_, packed_, packed_ids_, packed_weights_, dweights_;
  mutable std::map<const void*, Numbers> numbers_;  // of micro-batches, by the memory of offsets
};

}  // namespace

std::unique_ptr<Dispatcher> make_dispatcher(const LayerRanks& ranks, const DispatchedLayer& layer) {
  if (ranks.experts == 1) return std::make_unique<NoDispatcher>(ranks.tensor == 1 && !layer.drops);
  if (ranks.dispatch == Dispatch::AllToAll)
    return std::make_unique<VisitingDispatcher>(ranks, layer);
  return std::make_unique<GatheringDispatcher>(ranks.experts, layer);
}

}  // namespace kintsugi
