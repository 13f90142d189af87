#include "optim/optimizer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>

#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// Each location once to warm up and once to time it.
constexpr std::array<UpdateLocation, 4> kTrial = {UpdateLocation::Device, UpdateLocation::Host,
                                                  UpdateLocation::Device, UpdateLocation::Host};

// Whether the squares of the parameters with these data groups, summed over their shard group
// unless it is the default one, are added by this rank: of the ranks of a copy of the model that
// have the same ones, the first does.
bool adds_to_norm(const Groups& groups, const DataGroups& data) {
  const Grid& grid = groups.grid;
  const int place = (groups.coordinates.cp + grid.cp * groups.coordinates.dp) % grid.copy();
  if (data == DataGroups{}) return place < grid.shard();
  return place < (data.shard == GroupKind::ExpertsShard ? grid.experts : 1);
}

bool has_parameters(const ParameterSet& set, const UpdateRules& rules, const UpdateRule& rule,
                    const DataGroups& data) {
  return std::ranges::any_of(set.parameters(), [&](const Parameter& parameter) {
    return parameter.trained && parameter.data == data && &rules(parameter) == &rule;
  });
}

}  // namespace

std::string_view to_string(UpdateLocation location) {
  return enum_name(location, {"auto", "device", "host"});
}

Optimizer::Optimizer(Backend& backend, Arena& arena, Sharding& sharding,
                     const OptimizerSettings& settings, const StateOffload& offload)
    : backend_(&backend),
      sharding_(&sharding),
      clip_(settings.clip),
      ema_(settings.ema),
      rules_(update_rules(settings)),
      location_(offload.on ? offload.update : UpdateLocation::Device),
      state_(arena, sharding, rules_, offload.on ? Side::Host : Side::Device, settings.ema) {
  // The backend has no host side: update on the device.
  if (location_ == UpdateLocation::Auto && backend.host() == nullptr)
    location_ = UpdateLocation::Device;
  const DType precision = sharding.store().dtype(), wide = accumulator_of(precision);
  squared_norm_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
  scale_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
  const bool in_blocks = offload.on || offload.gradients;
  for (std::size_t i = 0; i < sharding.data_groups().size(); ++i) {
    const DataGroups& data = sharding.data_groups()[i];
    const bool is_default = data == DataGroups{};
    norms_.push_back(
        {.shard = is_default ? nullptr : &sharding.groups()[data.shard],
         .squares =
             is_default ? squared_norm_ : arena.allocate(Region::Optimizer, "scalars", wide, {1}),
         .gradients = offload.gradients ? std::vector<Tensor>() : sharding.counted_gradients(i),
         .adds = adds_to_norm(sharding.groups(), data)});
  }
  for (const UpdateRule* const rule : rules_of(sharding.set(), rules_))
    if (const auto* matrix = dynamic_cast<const MatrixRule*>(rule))
      for (const DataGroups& data : sharding.data_groups())
        if (has_parameters(sharding.set(), rules_, *matrix, data))
          matrices_.push_back(std::make_unique<MatrixUpdates>(backend, arena, sharding, state_,
                                                              rules_, *matrix, data, offload));
  const std::int64_t most =
      in_blocks ? std::min(state_.elements(), offload.block_elements) : state_.elements();
  blocks_ = plan_updates(sharding, state_, most);
  if (!in_blocks) return;
  if (location_ != UpdateLocation::Host) {
    find_blocks_of_buckets();
    streamed_.emplace(backend, arena, state_, blocks_, precision, offload, blocks_ahead(most));
    sharding.set_late_update([this](int bucket) { update_until(bucket); });
  }
  if (location_ != UpdateLocation::Device)
    on_host_.emplace(backend, arena, blocks_, precision, offload);
}

Optimizer::~Optimizer() {
  if (!streamed_) return;
  sharding_->set_late_update({});
  if (std::uncaught_exceptions() > 0) return;
  try {
    streamed_->finish();  // transfers in flight use memory that is freed next
  } catch (const std::exception& error) {
    log_warning("the last update was not finished: {}", error.what());
  }
}

// The number of blocks of a layer: they are fetched while the layer before it computes.
std::size_t Optimizer::blocks_ahead(std::int64_t most) const {
  std::map<int, std::int64_t> blocks;  // by layer
  std::int64_t largest = 2;
  for (const StateRange& segment : state_.segments()) {
    if (dynamic_cast<const ElementRule*>(segment.rule) == nullptr) continue;  // it has no blocks
    const Bucket& bucket = sharding_->set().buckets()[segment.bucket];
    if (bucket.role != Bucket::Role::Block) continue;
    blocks[bucket.layer] += (segment.elements + most - 1) / most;
    largest = std::max(largest, blocks[bucket.layer]);
  }
  return static_cast<std::size_t>(largest);
}

void Optimizer::find_blocks_of_buckets() {
  std::size_t block = 0;
  blocks_until_.resize(sharding_->set().buckets().size());
  for (const StateRange& segment : state_.segments()) {
    while (block < blocks_.size() && blocks_[block].first < segment.at + segment.elements) ++block;
    blocks_until_[segment.bucket] = block;
  }
}

void Optimizer::update_until(int bucket) {
  const auto last = static_cast<std::size_t>(bucket);
  if (last >= blocks_until_.size()) return streamed_->finish();
  streamed_->run_until(blocks_until_[last]);
}

void Optimizer::update(UpdateLocation location, const UpdateStep& step) {
  if (location == UpdateLocation::Host) return on_host_->run(step);
  if (streamed_) return streamed_->start(step);
  for (const UpdateBlock& block : blocks_)
    for (const UpdateRange& range : block.ranges) range.update(*backend_, step);
}

void Optimizer::try_update(const UpdateStep& step) {
  const auto trial = static_cast<std::size_t>(tried_);
  const UpdateLocation location = kTrial[trial];
  backend_->synchronize();
  const auto start = std::chrono::steady_clock::now();
  if (location == UpdateLocation::Device) streamed_->begin();
  update(location, step);
  if (location == UpdateLocation::Device) streamed_->finish();
  backend_->synchronize();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  double scale = 0;
  visit_float(scale_.dtype(), [&]<class T>() {
    T stored;
    backend_->download(&stored, scale_);
    scale = static_cast<double>(static_cast<Accumulator<T>>(stored));
  });
  if (!std::isfinite(scale)) return;  // the update was skipped, so its time means nothing
  seconds_[trial % seconds_.size()] = seconds;
  if (++tried_ < static_cast<int>(kTrial.size())) return;
  // All ranks must choose the same location, so that copies of a weight stay identical.
  Communicator& world = sharding_->groups()[GroupKind::World];
  world.wait(world.all_reduce(
      Tensor(seconds_.data(), DType::F64, {static_cast<std::int64_t>(seconds_.size())}),
      ReduceOp::Max));
  location_ = seconds_[1] < seconds_[0] ? UpdateLocation::Host : UpdateLocation::Device;
  if (sharding_->groups().is_first())
    log_info(
        "offload: an update takes {:.4f} s on the device and {:.4f} s on the host: using the {} "
        "from now on",
        seconds_[0], seconds_[1], to_string(location_));
}

// The squares of offloaded gradients were added when they were copied to the host.
void Optimizer::sum_squares() {
  const Groups& groups = sharding_->groups();
  GradientOffload* const offload = sharding_->offload();
  backend_->fill(squared_norm_, 0.0);
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    const auto& [shard, squares, gradients, adds] = norms_[i];
    const bool counts = adds || shard != nullptr;
    if (shard != nullptr) backend_->fill(squares, 0.0);
    if (counts)
      for (const Tensor& gradient : gradients) backend_->squared_norm(squares, gradient);
    if (offload != nullptr) {
      if (counts) backend_->add(squares, offload->squared_norm(i));
      backend_->fill(offload->squared_norm(i), 0.0);
    }
    if (shard == nullptr) continue;
    if (shard->size() > 1) shard->wait(shard->all_reduce(squares));
    if (adds) backend_->add(squared_norm_, squares);
  }
  Communicator& copy = groups[GroupKind::Copy];
  if (copy.size() > 1) copy.wait(copy.all_reduce(squared_norm_));
}

void Optimizer::step(std::int64_t step, double lr, double unscale, const StepLimits& limits,
                     Tensor loss) {
  if (streamed_) streamed_->finish();
  if (streamed_ && location_ == UpdateLocation::Device) streamed_->begin();
  sum_squares();
  backend_->clip_scale(scale_, squared_norm_,
                       {.clip = clip_,
                        .unscale = unscale,
                        .norm_limit = limits.gradient_norm,
                        .loss_limit = limits.loss,
                        .loss = loss});
  const UpdateStep update{.step = step, .lr = lr, .scale = scale_, .ema_rate = ema_.rate(step)};
  for (const auto& matrices : matrices_) matrices->run(update);
  if (location_ == UpdateLocation::Auto)
    try_update(update);
  else
    this->update(location_, update);
  sharding_->weights_changed();
}

}  // namespace kintsugi
