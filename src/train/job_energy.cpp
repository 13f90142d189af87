#include "train/job_energy.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "comm/exchange.h"
#include "core/log.h"
#include "energy/meters/find_meters.h"

namespace kintsugi {
namespace {

using EnergyJson = nlohmann::ordered_json;

// The first rank of each node reads its meters.
struct NodeOfRank {
  bool reads = false;
  std::vector<std::string> gpus = {};  // of its ranks, in their order, each once
  std::int64_t nodes = 0, all_gpus = 0;
};

// `ranks`: the node and the GPU of each rank, one per line.
NodeOfRank node_of(const std::vector<std::string>& ranks, int own) {
  const auto name = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  const std::string node = name(ranks[own]);
  NodeOfRank result{.reads = true};
  std::set<std::string> names, gpus;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    names.insert(name(ranks[i]));
    if (!ranks[i].ends_with('\n')) gpus.insert(ranks[i]);
    if (name(ranks[i]) != node) continue;
    if (i < static_cast<std::size_t>(own)) result.reads = false;
    const std::string gpu = ranks[i].substr(node.size() + 1);
    if (!gpu.empty() && std::ranges::find(result.gpus, gpu) == result.gpus.end())
      result.gpus.push_back(gpu);
  }
  result.nodes = static_cast<std::int64_t>(names.size());
  result.all_gpus = static_cast<std::int64_t>(gpus.size());
  return result;
}

}  // namespace

std::optional<EnergyLevel> best_level_of(const std::vector<MeteredNode>& nodes) {
  std::optional<EnergyLevel> slow;
  for (const EnergyLevel level : {EnergyLevel::Node, EnergyLevel::Gpu, EnergyLevel::Cpu}) {
    const auto metered = [&](const MeteredNode& node) {
      return !node.levels[level].source.empty();
    };
    const auto is_slow = [&](const MeteredNode& node) { return node.levels[level].slow; };
    if (nodes.empty() || !std::ranges::all_of(nodes, metered)) continue;
    if (std::ranges::none_of(nodes, is_slow)) return level;
    if (!slow) slow = level;
  }
  return slow;
}

std::string to_json_text(const MeteredNode& node) {
  EnergyJson json{{"name", node.name}};
  for (const EnergyLevel level : kEnergyLevels) {
    const MeterSource& from = node.levels[level];
    json["levels"].push_back({{"source", from.source},
                              {"kind", static_cast<int>(from.kind)},
                              {"reason", from.reason},
                              {"slow", from.slow}});
  }
  return json.dump(-1, ' ', false, EnergyJson::error_handler_t::replace);
}

MeteredNode parse_metered_node(const std::string& text) {
  const EnergyJson json = EnergyJson::parse(text);
  MeteredNode node{.name = json.at("name")};
  for (const EnergyLevel level : kEnergyLevels) {
    const EnergyJson& from = json.at("levels").at(static_cast<std::size_t>(level));
    node.levels[level] = {.source = from.at("source"),
                          .kind = static_cast<MeterKind>(from.at("kind").get<int>()),
                          .reason = from.at("reason"),
                          .slow = from.at("slow")};
  }
  return node;
}

std::string to_json_text(const NodeReading& node) {
  EnergyJson json{{"name", node.name}, {"note", node.note}};
  for (const NodeReading::Level& one : node.levels.values)
    json["levels"].push_back({one.joules, one.counter_j, one.power_j});
  return json.dump(-1, ' ', false, EnergyJson::error_handler_t::replace);
}

NodeReading parse_node_reading(const std::string& text) {
  const EnergyJson json = EnergyJson::parse(text);
  NodeReading node{.name = json.at("name"), .note = json.at("note")};
  for (const EnergyLevel level : kEnergyLevels) {
    const EnergyJson& one = json.at("levels").at(static_cast<std::size_t>(level));
    node.levels[level] = {one.at(0), one.at(1), one.at(2)};
  }
  return node;
}

JobEnergy::JobEnergy(Communicator& hosts, Options options) : hosts_(hosts), node_(options.node) {
  const NodeOfRank node =
      node_of(gather_texts(hosts, options.node + "\n" + options.gpu), hosts.rank());
  gpu_model_ = options.gpu_model;
  nodes_ = node.nodes;
  gpus_ = node.all_gpus;
  std::string description;
  MeterSearch search = options.search;
  search.gpus = node.gpus;
  search.rccl = node.all_gpus > 1;
  if (node.reads) description = to_json_text(start(options, search));
  make_policy(options.power, node.reads ? &search : nullptr);
  for (const std::string& text : texts_at_first(hosts, description))
    if (!text.empty()) metered_.push_back(parse_metered_node(text));
  find_best(hosts);
}

JobEnergy::~JobEnergy() = default;

void JobEnergy::make_policy(const PowerSettings& settings, const MeterSearch* search) {
  power_ = settings;
  if (settings.any() && search != nullptr) {
    control_ = std::make_shared<PowerControl>(*search);
    // What a killed run left behind must not be the baseline.
    if (const std::string problem = control_->restore(); !problem.empty())
      log_warning("energy: {}", problem);
  }
  policy_.emplace(settings, [this] { apply_power(); });
}

// All ranks call it after the same step.
void JobEnergy::apply_power() {
  try {
    together(hosts_, [this] {
      if (!control_) return;
      try {
        if (power_.power_limit_w > 0) control_->set_power_limit(power_.power_limit_w);
        if (power_.gpu_clock_mhz > 0) control_->lock_clock(power_.gpu_clock_mhz);
      } catch (const std::exception& error) {
        failure("node {}: {}", node_, error.what());
      }
    });
  } catch (const std::exception&) {
    if (control_) power_restorer()();
    throw;
  }
}

std::string JobEnergy::after_step(std::int64_t step, std::int64_t tokens, double seconds,
                                  std::optional<double> joules) {
  const std::string line = policy_->after_step(step, tokens, seconds, joules);
  return hosts_.rank() == 0 ? line : "";
}

std::function<void()> JobEnergy::power_restorer() const {
  if (!control_) return {};
  return [weak = std::weak_ptr(control_), node = node_] {
    const auto control = weak.lock();
    if (!control) return;
    // Not by the log: the ranks that would print it may be gone.
    if (const std::string problem = control->restore(); !problem.empty())
      fmt::print(stderr, "warning: node {}: {}\n", node, problem);
  };
}

void JobEnergy::check_power() const {
  if (!control_) return;
  if (power_.power_limit_w > 0) control_->check_power_limit(power_.power_limit_w);
  if (power_.gpu_clock_mhz > 0) control_->check_clock(power_.gpu_clock_mhz);
}

MeteredNode JobEnergy::start(const Options& options, const MeterSearch& search) {
  MeteredNode node{.name = options.node};
  try {
    FoundMeters found = find_meters(search);
    const ChosenMeters chosen = choose_meters(found, search, find_node_share(search.root));
    ByLevel<std::vector<std::size_t>> used;
    for (const EnergyLevel level : kEnergyLevels) {
      used[level] = chosen[level].meters;
      node.levels[level].reason = chosen[level].reason;
      if (used[level].empty()) continue;
      const MeterIdentity& first = found.meters[used[level].front()]->identity();
      node.levels[level].source = first.source;
      node.levels[level].kind = first.kind;
      node.levels[level].slow = first.update_s > kLiveUpdate_s;
      node.levels[level].reason = chosen[level].uncovered;
    }
    sampler_ =
        std::make_unique<NodeSampler>(meters_by_source(std::move(found), used), options.sample_s);
  } catch (const std::exception& error) {
    for (const EnergyLevel level : kEnergyLevels) node.levels[level] = {.reason = error.what()};
  }
  return node;
}

// Rank 0 decides for all ranks.
void JobEnergy::find_best(Communicator& hosts) {
  const std::optional<EnergyLevel> best = best_level_of(metered_);
  const std::string word = text_of(hosts, 0, best ? std::string(to_string(*best)) : "");
  for (const EnergyLevel level : kEnergyLevels)
    if (word == to_string(level)) best_ = level;
}

RunPhase JobEnergy::enter(RunPhase phase) {
  const RunPhase before = std::exchange(phase_, phase);
  if (!sampler_) return before;
  if (phase != before) sampler_->sample_soon();  // power may change
  const NodeSampler::Look look = sampler_->look();
  for (const EnergyLevel level : kEnergyLevels) {
    charged_[level].advance(before, look.now_s, look.levels[level]);
    totals_[level] = charged_[level].energy();
  }
  return before;
}

EnergyTotals JobEnergy::own() {
  enter(phase_);
  return totals_;
}

NodeReading JobEnergy::own_reading() {
  NodeReading reading{.name = node_};
  const EnergyTotals now = own();
  for (const EnergyLevel level : kEnergyLevels) reading.levels[level].joules = now[level].total_j;
  for (const MeterState& meter : sampler_->states()) {
    NodeReading::Level& level = reading.levels[meter.identity.level];
    level.counter_j += meter.counter_j;
    level.power_j += meter.power_j;
    if (!meter.note.empty())
      reading.note += fmt::format("{}{} {}: {}", reading.note.empty() ? "" : "; ",
                                  meter.identity.source, meter.identity.scope, meter.note);
  }
  return reading;
}

std::vector<NodeReading> JobEnergy::gather_readings(Communicator& hosts) {
  std::vector<NodeReading> readings;
  for (const std::string& text : texts_at_first(hosts, sampler_ ? to_json_text(own_reading()) : ""))
    if (!text.empty()) readings.push_back(parse_node_reading(text));
  return readings;
}

std::int64_t JobEnergy::nodes_with(EnergyLevel level) const {
  return std::ranges::count_if(
      metered_, [&](const MeteredNode& node) { return !node.levels[level].source.empty(); });
}

MeterSource JobEnergy::source(EnergyLevel level) const {
  if (metered_.empty()) return {};
  MeterSource all = metered_.front().levels[level];
  for (const MeteredNode& node : metered_) {
    const MeterSource& one = node.levels[level];
    if (one.source.empty())
      return {.reason = metered_.size() == 1 ? one.reason
                                             : fmt::format("node {}: {}", node.name, one.reason)};
    if (one.source != all.source) all.source = "several";
    all.kind = std::max(all.kind, one.kind);  // the least reliable
  }
  return all;
}

std::string JobEnergy::description() const {
  std::string text;
  for (const EnergyLevel level : kEnergyLevels) {
    const MeterSource from = source(level);
    if (from.source.empty()) continue;
    text += fmt::format(
        "{}{} by {}{}", text.empty() ? "" : ", ", to_string(level), from.source,
        from.kind == MeterKind::Counter ? "" : fmt::format(" ({})", to_string(from.kind)));
  }
  if (!text.empty())
    return fmt::format("energy: {}; J/token is of {}", text,
                       best_ ? fmt::format("the {} level", to_string(*best_)) : "no level");
  return fmt::format("energy: no meter on {}: {}", nodes_ == 1 ? "this node" : "all nodes",
                     source(EnergyLevel::Node).reason);
}

}  // namespace kintsugi
