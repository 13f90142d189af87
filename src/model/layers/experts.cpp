#include <algorithm>
#include <cmath>

#include "model/layers/dispatcher.h"
#include "model/layers/expert_linear.h"
#include "model/layers/sublayer.h"

namespace kintsugi {
namespace {

constexpr std::string_view kBalanceLoss = "balance_loss", kZLoss = "router_z_loss",
                           kDropped = "dropped_choices";

// A mixture of experts. Every tensor rank routes all tokens and computes the choices of its own
// experts: the branch gathers the tokens and adds the ranks' results anyway. If data ranks hold
// other experts, a dispatcher brings tokens to them.
class Experts final : public Sublayer {
 public:
  explicit Experts(const ExpertsSpec& spec)
      : spec_(spec),
        up_(spec.up, spec.count, ExpertLinear::Tokens::Input),
        down_(spec.down, spec.count, ExpertLinear::Tokens::Output) {
    if (spec.shared) shared_ = make_sublayer(*spec.shared);
  }

  void declare(Declaration& d) override {
    own_ = spec_.count / (d.ranks().tensor * d.ranks().experts);
    first_ = own_ * (d.ranks().tensor * d.ranks().experts_rank + d.ranks().tensor_rank);
    dispatcher_ = make_dispatcher(d.ranks(), {.experts = spec_.count,
                                              .chosen = spec_.chosen,
                                              .hidden = spec_.hidden,
                                              .drops = spec_.capacity > 0});
    counts_ = d.ranks().tensor_rank == 0;
    const double used = static_cast<double>(spec_.chosen) / static_cast<double>(spec_.count);
    router_ = d.matrix(
        spec_.router, spec_.count, spec_.hidden,
        {.group = ParameterGroup::Router, .init = spec_.router_init, .shard = {.partial = true}});
    if (!spec_.bias.empty())
      bias_ = d.vector(spec_.bias, spec_.count,
                       {.group = ParameterGroup::Router, .init = {InitKind::Zeros}, .wide = true});
    up_.declare(d, used, dispatcher_->most(), most_rows());
    down_.declare(d, used, dispatcher_->most(), most_rows());
    declare_tensors(d);
    dispatcher_->declare(d);
    if (shared_) shared_->declare(d);
    if (spec_.balance_loss > 0) d.sum(kBalanceLoss);
    if (spec_.z_loss > 0) d.sum(kZLoss, spec_.z_loss);
    if (spec_.capacity > 0) d.sum(kDropped);
  }

  void forward(const LayerRun& run, Tensor x) const override {
    if (!run.repeats) route(run, x);
    if (!run.repeats && run.batch.training && counts_) count(run);
    const auto work = dispatcher_->start_bringing(run, x);
    run.backend().order_choices(rows(run), positions(run), ids(run), first_);
    if (shared_) shared_->forward(run, x);
    const Tensor visitors = dispatcher_->brought(run, work, x);
    up_.read(run, visitors, rows(run));
    up_.forward(run, run[before_], visitors, rows(run));
    activate(run);
    down_.read(run, run[activated_], rows(run));
  }

  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    down_.forward(run, run[results_], run[activated_], rows(run));
    const auto work = dispatcher_->start_combining(run, run[results_], positions(run));
    if (shared_) shared_->output(run, y, residual);
    dispatcher_->combine(run, work, y, run[results_], positions(run), shared_ ? y : residual);
  }

  void recompute(const LayerRun& run) const override {
    activate(run);
    if (shared_) shared_->recompute(run);
  }

  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override {
    Backend& backend = run.backend();
    const auto coming = dispatcher_->start_bringing(run, dy);
    if (shared_) shared_->backward_input(run, dx, dy);
    down_.backward_input(run, run[dactivated_], dispatcher_->brought(run, coming, dy), rows(run));
    const Tensor dweights = dispatcher_->clear_dweights(run, run[dweights_]);
    backend.expert_swiglu_backward(run[dbefore_], dweights, run[dactivated_], run[before_],
                                   weights(run), rows(run));
    up_.backward_input(run, run[results_], run[dbefore_], rows(run));
    const auto going = dispatcher_->start_combining(run, run[results_], positions(run));
    dispatcher_->sum_dweights(run, run[dweights_]);
    backend.route_backward(run[dlogits_], run[dweights_], run[ids_], run[logits_], options(),
                           losses(run));
    dispatcher_->combine(run, going, dx, run[results_], positions(run), shared_ ? dx : Tensor());
    backend.matmul(dx, run[dlogits_], run.store().weight(router_), {.residual = dx});
  }

  void backward_weight(const LayerRun& run, Tensor x) const override {
    if (const Tensor gradient = run.store().gradient(router_))
      run.backend().matmul(gradient, run[dlogits_], x,
                           {.transpose_a = true, .accumulate = run.accumulates()});
    if (up_.is_trained(run))
      up_.backward_weight(run, run[dbefore_], dispatcher_->bring(run, x), rows(run));
    if (shared_) shared_->backward_weight(run, x);
  }

  void backward_output_weight(const LayerRun& run, Tensor dy, Tensor own_dy) const override {
    const bool halved = !run.kept_gradients.empty();  // otherwise backward_input has brought it
    if (down_.is_trained(run))
      down_.backward_weight(
          run, halved ? dispatcher_->bring(run, dy) : dispatcher_->brought(run, {}, dy),
          run[activated_], rows(run));
    if (shared_) shared_->backward_output_weight(run, dy, own_dy);
  }

 private:
  // What was routed is kept: a token that is routed again might choose other experts.
  void declare_tensors(Declaration& d) {
    const std::int64_t k = spec_.chosen, visitors = dispatcher_->most(), most = most_rows();
    logits_ = d.saved({.label = "router logits", .width = spec_.count, .wide = true, .kept = true});
    ids_ = d.saved({.label = "chosen experts", .width = k, .indices = true, .kept = true});
    if (spec_.capacity > 0)
      limited_ = d.saved({.label = "kept choices", .width = k, .indices = true, .kept = true});
    weights_ = d.saved({.label = "expert weights", .width = k, .wide = true, .kept = true});
    positions_ = d.saved({.label = "expert positions",
                          .per = Per::Bounded,
                          .width = k,
                          .most = visitors,
                          .indices = true});
    ordered_.rows =
        d.saved({.label = "expert rows", .per = Per::Bounded, .most = most, .indices = true});
    ordered_.offsets =
        d.saved({.label = "expert offsets", .per = Per::Whole, .width = own_ + 1, .indices = true});
    before_ =
        d.saved({.label = "experts", .per = Per::Bounded, .width = 2 * spec_.size, .most = most});
    activated_ = d.saved({.label = "expert activations",
                          .per = Per::Bounded,
                          .width = spec_.size,
                          .most = most,
                          .dropped_by = Recompute::Selective});
    if (spec_.balance_loss > 0)
      balance_ = d.saved({.label = "expert balance",
                          .per = Per::Sequence,
                          .width = spec_.count,
                          .wide = true,
                          .kept = true});
    for (Workspace* const sums : {&statistics_.chosen, &statistics_.probabilities})
      *sums = d.workspace({.label = "expert statistics",
                           .per = Per::Sequence,
                           .width = spec_.count,
                           .wide = true,
                           .training = true});
    if (spec_.capacity > 0)
      statistics_.dropped = d.workspace({.label = "dropped choices",
                                         .per = Per::Whole,
                                         .width = 1,
                                         .wide = true,
                                         .training = true});
    if (balances_without_bias())
      statistics_.unbiased = d.workspace(
          {.label = "choices without bias", .width = k, .indices = true, .training = true});
    results_ = d.workspace(
        {.label = "expert results", .per = Per::Bounded, .width = spec_.hidden, .most = most});
    dbefore_ = d.workspace({.label = "gradient of experts",
                            .per = Per::Bounded,
                            .width = 2 * spec_.size,
                            .most = most,
                            .training = true,
                            .read_by_weights = true});
    dactivated_ = d.workspace({.label = "gradient of expert activations",
                               .per = Per::Bounded,
                               .width = spec_.size,
                               .most = most,
                               .training = true});
    dweights_ = d.workspace(
        {.label = "gradient of expert weights", .width = k, .wide = true, .training = true});
    dlogits_ = d.workspace({.label = "gradient of router logits",
                            .width = spec_.count,
                            .training = true,
                            .read_by_weights = true});
  }

  void route(const LayerRun& run, Tensor x) const {
    MatmulOptions options = run.generation_options();
    options.transpose_b = true;
    run.backend().matmul(run[logits_], x, run.store().weight(router_), options);
    run.backend().route(run[ids_], run[weights_], run[logits_],
                        bias_ >= 0 ? run.store().weight(bias_) : Tensor(), this->options());
    if (drops(run)) limit(run);
    dispatcher_->bring_choices(run, computed_ids(run), run[weights_]);
  }
  // Only what is trained is limited: a token that is generated has no sequence to share experts
  // with.
  bool drops(const LayerRun& run) const { return spec_.capacity > 0 && run.batch.training; }
  void limit(const LayerRun& run) const {
    const double mean =
        static_cast<double>(run.size.length * spec_.chosen) / static_cast<double>(spec_.count);
    const auto capacity = static_cast<std::int64_t>(std::ceil(spec_.capacity * mean));
    const Tensor dropped = counts_ ? run[statistics_.dropped] : Tensor();
    if (dropped) run.backend().fill(dropped, 0.0);
    run.backend().limit_choices(
        run[limited_], dropped, run[ids_],
        {.length = run.size.length, .experts = spec_.count, .capacity = capacity});
    if (dropped) run.backend().add(run.sum(kDropped), dropped);
    if (const Tensor& all = run.batch.dropped_choices; all && dropped)
      run.backend().add(all.rows(spec_.layer, 1), dropped);
  }
  Tensor computed_ids(const LayerRun& run) const { return drops(run) ? run[limited_] : run[ids_]; }
  // The balance loss of a sequence is that of Switch Transformer: experts / (chosen tokens^2) times
  // the sum over experts of how often they were chosen times their probabilities. It counts as
  // often as the sequence has tokens. As in DeepSeek-V3, a bias does not belong to the choice.
  void count(const LayerRun& run) const {
    Backend& backend = run.backend();
    backend.route_statistics(run[statistics_.chosen], run[statistics_.probabilities],
                             spec_.z_loss > 0 ? run.sum(kZLoss) : Tensor(), run[ids_], run[logits_],
                             options());
    if (const Tensor& all = run.batch.expert_counts)
      backend.bias_backward(all.select(0, spec_.layer), run[statistics_.chosen]);
    if (spec_.counts_last_step) return balance_batch(run);
    if (spec_.balance_loss == 0) return;
    if (balances_without_bias()) count_without_bias(run);
    double tokens = static_cast<double>(run.size.length);
    if (Communicator* const context = run.context.context) {  // has other tokens of the sequences
      context->wait(context->all_reduce(run[statistics_.chosen]));
      tokens *= context->size();
    }
    const double scale = spec_.balance_loss * static_cast<double>(spec_.count) /
                         (static_cast<double>(spec_.chosen) * tokens);
    backend.balance_loss(run.sum(kBalanceLoss), run[balance_], run[statistics_.chosen],
                         run[statistics_.probabilities], scale, scale * run.batch.gradient_scale);
  }
  // The same with the counts of the last step: those of all sequences, which are known beforehand.
  void balance_batch(const LayerRun& run) const {
    const Tensor sum = run[statistics_.chosen].rows(0, 1);
    run.backend().fill(sum, 0.0);
    run.backend().bias_backward(sum.select(0, 0), run[statistics_.probabilities]);
    run.backend().balance_loss(run.sum(kBalanceLoss), balance(run),
                               run.batch.expert_loads.rows(spec_.layer, 1), sum, spec_.balance_loss,
                               spec_.balance_loss * run.batch.gradient_scale);
  }
  Tensor balance(const LayerRun& run) const {
    if (spec_.balance_loss == 0) return {};
    return spec_.counts_last_step ? run[balance_].rows(0, 1) : run[balance_];
  }
  bool balances_without_bias() const {
    return !spec_.bias.empty() && spec_.balance_loss > 0 && !spec_.counts_last_step;
  }
  void count_without_bias(const LayerRun& run) const {
    RouteOptions options = this->options();
    options.groups = options.top_groups = 1;
    run.backend().route(run[statistics_.unbiased], run[dweights_], run[logits_], {}, options);
    run.backend().route_statistics(run[statistics_.chosen], run[statistics_.probabilities], {},
                                   run[statistics_.unbiased], run[logits_], options);
  }
  // One rank computes the gradients of the losses.
  RouteLosses losses(const LayerRun& run) const {
    if (!counts_ || !run.batch.training) return {};
    return {.balance = balance(run), .z_loss = spec_.z_loss * run.batch.gradient_scale};
  }
  void activate(const LayerRun& run) const {
    run.backend().expert_swiglu_forward(run[activated_], run[before_], weights(run), rows(run));
  }

  // Of visitors:
  Tensor ids(const LayerRun& run) const { return dispatcher_->ids(run, computed_ids(run)); }
  Tensor weights(const LayerRun& run) const { return dispatcher_->weights(run, run[weights_]); }
  Tensor positions(const LayerRun& run) const {
    return run[positions_].rows(0, ids(run).extent(0));
  }

  RouteOptions options() const {
    return {.scores = spec_.sigmoid ? RouteScores::Sigmoid : RouteScores::Softmax,
            .groups = spec_.groups,
            .top_groups = spec_.top_groups,
            .normalize = spec_.normalize,
            .scale = spec_.scale,
            .even = spec_.even};
  }
  ExpertRows rows(const LayerRun& run) const {
    const auto bound = static_cast<double>(std::min(spec_.chosen, own_));
    return {.rows = run[ordered_.rows],
            .offsets = run[ordered_.offsets],
            .choices = spec_.chosen,
            .used = static_cast<double>(spec_.chosen * own_) /
                    (static_cast<double>(spec_.count) * bound)};
  }
  // Of this rank's experts, per token.
  std::int64_t most_rows() const { return dispatcher_->most() * std::min(spec_.chosen, own_); }

  ExpertsSpec spec_;
  ExpertLinear up_, down_;
  std::shared_ptr<Sublayer> shared_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::int64_t own_ = 0, first_ = 0;  // experts of this rank
  bool counts_ = false;               // of the ranks that route the same tokens, this one
  int router_ = -1, bias_ = -1;
  Saved logits_;         // (tokens, experts)
  Saved ids_, weights_;  // (tokens, chosen)
  Saved limited_;        // (tokens, chosen): ids_, -1 if dropped
  Saved positions_;      // (visitors, chosen): the row of each choice
  struct {
    Saved rows, offsets;  // ExpertRows
  } ordered_;
  Saved before_;     // (rows, 2 size): gate and up of each choice
  Saved activated_;  // (rows, size), times the weight of the choice
  Saved balance_;    // (sequences, experts): gradients of the probabilities; of a batch in row 0
  struct {
    Workspace chosen, probabilities;  // (sequences, experts)
    Workspace unbiased;               // (tokens, chosen): as ids_, for the balance loss
    Workspace dropped;                // (1)
  } statistics_;
  Workspace results_;  // (rows, hidden): of experts, then the gradients of their inputs
  Workspace dbefore_, dactivated_, dweights_, dlogits_;
};

}  // namespace

std::vector<LinearUse> linears_of(ExpertsSpec& spec) {
  std::vector<LinearUse> all = spec.shared ? linears_of(*spec.shared) : std::vector<LinearUse>();
  all.push_back({.linear = &spec.up, .site = "experts.up", .experts = spec.count});
  all.push_back({.linear = &spec.down, .site = "experts.down", .experts = spec.count});
  return all;
}

void clear_names_of(ExpertsSpec& spec) {
  spec.router.clear();
  spec.bias = spec.bias.empty() ? "" : "bias";  // whether there is one is no name
  for (LinearSpec* const linear : {&spec.up, &spec.down}) clear_names_of(*linear);
  spec.layer = 0;
  if (spec.shared) clear_names_of(*spec.shared);
}

std::shared_ptr<Sublayer> make_sublayer(const ExpertsSpec& spec) {
  return std::make_shared<Experts>(spec);
}

}  // namespace kintsugi
