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
  Communicator::Work start_bringing(const LayerRun&, Tensor) const override { return {}; }
  Tensor brought(const LayerRun&, Communicator::Work, Tensor own) const override { return own; }
  Communicator::Work start_combining(const LayerRun&, Tensor, Tensor) const override { return {}; }
  void combine(const LayerRun& run, Communicator::Work, Tensor y, Tensor x, Tensor positions,
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

// Experts on several data ranks: the memory of their visitors.
class TravelDispatcher : public Dispatcher {
 public:
  TravelDispatcher(int ranks, const DispatchedLayer& layer) : ranks_(ranks), layer_(layer) {}

  void declare(Declaration& d) override {
    ids_ = d.saved(spec("chosen experts of visitors", layer_.chosen, Kind::Ids));
    weights_ = d.saved(spec("expert weights of visitors", layer_.chosen, Kind::Weights));
    brought_ = d.workspace(spec("visitors", layer_.hidden, Kind::Rows));
    partial_ = d.workspace(spec("expert results of visitors", layer_.hidden, Kind::Rows));
    TensorSpec gradient =
        spec("gradient of expert weights of visitors", layer_.chosen, Kind::Weights);
    gradient.training = true;
    dweights_ = d.workspace(gradient);
  }
  std::int64_t most() const override { return ranks_; }

 protected:
  enum class Kind : std::uint8_t { Ids, Weights, Rows };
  TensorSpec spec(std::string_view label, std::int64_t width, Kind kind) const {
    return {.label = label,
            .per = Per::Bounded,
            .width = width,
            .most = ranks_,
            .wide = kind == Kind::Weights,
            .indices = kind == Kind::Ids,
            .kept = kind != Kind::Rows};
  }

  int ranks_;
  DispatchedLayer layer_;
  Saved ids_, weights_;          // (visitors, chosen)
  Workspace brought_, partial_;  // (visitors, hidden)
  Workspace dweights_;           // (visitors, chosen)
};

// Every token visits all ranks. What is sent does not depend on the choices, so nobody waits for
// counts.
class GatheringDispatcher final : public TravelDispatcher {
 public:
  using TravelDispatcher::TravelDispatcher;

  void bring_choices(const LayerRun& run, Tensor ids, Tensor weights) const override {
    Communicator& group = *run.context.experts;
    const auto first = group.all_gather(run[ids_], ids);
    const auto second = group.all_gather(run[weights_], weights);
    group.wait(first);
    group.wait(second);
  }
  Tensor ids(const LayerRun& run, Tensor) const override { return run[ids_]; }
  Tensor weights(const LayerRun& run, Tensor) const override { return run[weights_]; }

  Communicator::Work start_bringing(const LayerRun& run, Tensor own) const override {
    return run.context.experts->all_gather(run[brought_], own);
  }
  Tensor brought(const LayerRun& run, Communicator::Work work, Tensor) const override {
    run.context.experts->wait(work);
    return run[brought_];
  }

  Communicator::Work start_combining(const LayerRun& run, Tensor x,
                                     Tensor positions) const override {
    run.backend().combine_rows(run[partial_], x, positions);
    return run.context.experts->reduce_scatter(own_sums(run), run[partial_]);
  }
  void combine(const LayerRun& run, Communicator::Work work, Tensor y, Tensor, Tensor,
               Tensor residual) const override {
    run.context.experts->wait(work);
    run.backend().dropout(y, own_sums(run), {}, residual);
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
  Tensor own_sums(const LayerRun& run) const {
    const std::int64_t tokens = run.size.tokens();
    return run[partial_].rows(run.context.experts->rank() * tokens, tokens);
  }
};

// A token visits the ranks that hold an expert it chose, each of them once. The ranks must know how
// many visitors there are before these travel, so the host waits for the router once per layer.
class VisitingDispatcher final : public TravelDispatcher {
 public:
  VisitingDispatcher(const LayerRanks& ranks, const DispatchedLayer& layer)
      : TravelDispatcher(ranks.experts, layer), own_rank_(ranks.experts_rank) {
    const std::int64_t own = layer.experts / (ranks.tensor * ranks.experts);
    owners_ = {.first = own * ranks.tensor_rank, .own = own, .stride = own * ranks.tensor};
  }

  void declare(Declaration& d) override {
    TravelDispatcher::declare(d);
    visits_ = d.workspace({.label = "visited ranks", .width = ranks_, .indices = true});
    rows_ = d.saved(spec("visits", 0, Kind::Ids));
    positions_ =
        d.saved({.label = "positions of visits", .width = ranks_, .indices = true, .kept = true});
    const auto numbers = [&](std::string_view label, std::int64_t count) {
      return d.saved(
          {.label = label, .per = Per::Whole, .width = count, .indices = true, .kept = true});
    };
    offsets_ = numbers("numbers of visits", ranks_ + 1);
    all_offsets_ = numbers("numbers of visits of all ranks", ranks_ * (ranks_ + 1));
    const auto packed = [&](std::string_view label, std::int64_t width, Kind kind) {
      TensorSpec sent = spec(label, width, kind);
      sent.most = std::min<std::int64_t>(layer_.chosen, ranks_);
      return d.workspace(sent);
    };
    packed_ = packed("visits of tokens", layer_.hidden, Kind::Rows);
    packed_ids_ = packed("chosen experts of visits", layer_.chosen, Kind::Ids);
    packed_weights_ = packed("expert weights of visits", layer_.chosen, Kind::Weights);
  }

  void bring_choices(const LayerRun& run, Tensor ids, Tensor weights) const override {
    run.backend().find_visits(run[visits_], ids, owners_);
    run.backend().order_choices(rows(run), run[positions_], run[visits_], 0);
    Communicator& group = *run.context.experts;
    group.wait(group.all_gather(run[all_offsets_], run[offsets_]));
    count(run);
    const auto first = send(run, run[ids_], run[packed_ids_], ids);
    const auto second = send(run, run[weights_], run[packed_weights_], weights);
    group.wait(first);
    group.wait(second);
  }
  Tensor ids(const LayerRun& run, Tensor) const override { return arrived(run, run[ids_]); }
  Tensor weights(const LayerRun& run, Tensor) const override { return arrived(run, run[weights_]); }

  Communicator::Work start_bringing(const LayerRun& run, Tensor own) const override {
    return send(run, run[brought_], run[packed_], own);
  }
  Tensor brought(const LayerRun& run, Communicator::Work work, Tensor) const override {
    run.context.experts->wait(work);
    return arrived(run, run[brought_]);
  }

  Communicator::Work start_combining(const LayerRun& run, Tensor x,
                                     Tensor positions) const override {
    run.backend().combine_rows(arrived(run, run[partial_]), x, positions);
    return send_back(run, run[packed_], run[partial_]);
  }
  void combine(const LayerRun& run, Communicator::Work work, Tensor y, Tensor, Tensor,
               Tensor residual) const override {
    run.context.experts->wait(work);
    run.backend().combine_rows(y, run[packed_], run[positions_], residual);
  }

  Tensor clear_dweights(const LayerRun& run, Tensor) const override {
    const Tensor dweights = arrived(run, run[dweights_]);
    run.backend().fill(dweights, 0.0);
    return dweights;
  }
  void sum_dweights(const LayerRun& run, Tensor own) const override {
    run.context.experts->wait(send_back(run, run[packed_weights_], run[dweights_]));
    run.backend().combine_rows(own, run[packed_weights_], run[positions_]);
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
    double stays_away = 1;  // the probability that a token chooses no expert of a rank
    for (std::int64_t i = 0; i < layer_.chosen; ++i)
      stays_away *=
          1.0 - static_cast<double>(owners_.own) / static_cast<double>(layer_.experts - i);
    const auto each = static_cast<std::int32_t>(static_cast<double>(run.size.tokens()) *
                                                (1.0 - std::max(0.0, stays_away)));
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

  Communicator::Work send(const LayerRun& run, const Tensor& to, const Tensor& packed,
                          const Tensor& own) const {
    const Numbers& all = numbers(run);
    run.backend().gather_rows(packed, own, rows(run));
    return exchange(run, arrived(run, to), packed.rows(0, sum(all.sent)), all.received, all.sent);
  }
  // What visited ranks computed comes back in the order of send().
  Communicator::Work send_back(const LayerRun& run, const Tensor& packed,
                               const Tensor& from) const {
    const Numbers& all = numbers(run);
    return exchange(run, packed.rows(0, sum(all.sent)), arrived(run, from), all.sent, all.received);
  }
  static Communicator::Work exchange(const LayerRun& run, const Tensor& to, const Tensor& from,
                                     const std::vector<std::int64_t>& received,
                                     const std::vector<std::int64_t>& sent) {
    const ExchangeCounts counts{times(sent, from.extent(1)), times(received, to.extent(1))};
    return run.context.experts->all_to_all(to, from, counts);
  }

  int own_rank_;
  ExpertOwners owners_;
  Saved rows_, positions_, offsets_, all_offsets_;
  Workspace visits_, packed_, packed_ids_, packed_weights_;
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
