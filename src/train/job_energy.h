#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "energy/energy_report.h"
#include "energy/energy_totals.h"
#include "energy/node_meters.h"
#include "energy/power/power_control.h"
#include "energy/power/power_policy.h"

namespace kintsugi {

// Where the energy of one level comes from, on one node or on all.
struct MeterSource {
  std::string source = {};  // "nvml"; empty: not metered
  MeterKind kind = MeterKind::Counter;
  std::string reason = {};  // why it is not metered
  bool slow = false;        // updates too rarely for figures of steps (kLiveUpdate_s)
  bool operator==(const MeterSource&) const = default;
};

// The meters of one node, as its reader describes them to rank 0.
struct MeteredNode {
  std::string name = {};
  ByLevel<MeterSource> levels = {};
};
// The level whose joules stand for the run, if it is metered on all nodes: whole nodes before GPUs
// before processors, but one that updates slowly only if there is no other.
std::optional<EnergyLevel> best_level_of(const std::vector<MeteredNode>& nodes);
std::string to_json_text(const MeteredNode& node);
MeteredNode parse_metered_node(const std::string& text);

// What the meters of one node have measured since the launch.
struct NodeReading {
  std::string name = {};
  struct Level {
    double joules = 0;
    double counter_j = 0, power_j = 0;  // sums over its meters (MeterState)
  };
  ByLevel<Level> levels = {};
  std::string note = {};  // of all meters; empty: all is well
};
std::string to_json_text(const NodeReading& node);
NodeReading parse_node_reading(const std::string& text);

// The energy of this job since its launch. All ranks have one; the first rank of each node reads
// the meters of that node, in a thread of its own. Nothing that a meter does ends the run.
class JobEnergy {
 public:
  struct Options {
    MeterSearch search = {};  // its GPUs are found here
    double sample_s = 0.5;
    std::string node = {};  // the name of this node
    std::string gpu = {};   // PCI address of this rank's GPU; empty: none
    std::string gpu_model = {};
    PowerSettings power = {};
  };
  // All ranks construct it together. `hosts` must outlive it.
  JobEnergy(Communicator& hosts, Options options);
  ~JobEnergy();

  // UserError if the GPUs of this node do not allow the power settings.
  void check_power() const;
  // After each step, on all ranks: sets the power after the first steps, on all nodes or on none.
  // Returns a line for the log on rank 0 when there is something to report.
  std::string after_step(std::int64_t step, std::int64_t tokens, double seconds,
                         std::optional<double> joules);
  // Restores the power settings of this node, for a process that ends without destructors. It may
  // be called from any thread, also after the end of this object. Empty: there is nothing to do.
  std::function<void()> power_restorer() const;
  const std::optional<PowerEffect>& power_effect() const { return policy_->effect(); }

  // From now on, energy is charged to `phase`. Returns the phase before.
  RunPhase enter(RunPhase phase);
  // Of this rank's node up to now; nothing on ranks that do not read meters.
  EnergyTotals own();
  // Of all nodes, on rank 0; nothing on other ranks. All ranks call it.
  std::vector<NodeReading> gather_readings(Communicator& hosts);

  // What all ranks know.
  std::int64_t nodes() const { return nodes_; }
  std::int64_t gpus() const { return gpus_; }                  // in use, over all nodes
  const std::string& gpu_model() const { return gpu_model_; }  // of this rank; "": none
  // best_level_of() all nodes. Empty: none is metered on all nodes.
  std::optional<EnergyLevel> best_level() const { return best_; }

  // On rank 0. The nodes of earlier attempts (empty: not set); what is known in advance.
  const std::optional<std::vector<NodeEnergy>>& earlier() const { return earlier_; }
  const EnergyContext& context() const { return context_; }
  void set_context(EnergyContext context) { context_ = std::move(context); }
  void set_earlier(std::vector<NodeEnergy> nodes) { earlier_ = std::move(nodes); }
  const std::vector<MeteredNode>& metered_nodes() const { return metered_; }
  // Of the whole run: where a level comes from and on how many nodes, or why it is missing.
  MeterSource source(EnergyLevel level) const;
  std::int64_t nodes_with(EnergyLevel level) const;
  std::string description() const;  // one line for the log

 private:
  MeteredNode start(const Options& options, const MeterSearch& search);
  void make_policy(const PowerSettings& settings, const MeterSearch* search);
  void apply_power();
  void find_best(Communicator& hosts);
  NodeReading own_reading();

  Communicator& hosts_;
  std::string node_, gpu_model_;
  std::unique_ptr<NodeSampler> sampler_;  // on the first rank of a node
  PowerSettings power_;
  std::shared_ptr<PowerControl> control_;  // the same, if the power is to be set
  std::optional<PowerPolicy> policy_;
  RunPhase phase_ = RunPhase::Other;
  ByLevel<PhaseCharges> charged_;
  EnergyTotals totals_;  // of charged_
  std::int64_t nodes_ = 1, gpus_ = 0;
  std::optional<EnergyLevel> best_;
  std::vector<MeteredNode> metered_;
  std::optional<std::vector<NodeEnergy>> earlier_;
  EnergyContext context_;
};

// Charges energy to a phase for as long as it lives. `energy` may be nullptr.
class EnergySpan {
 public:
  EnergySpan(JobEnergy* energy, RunPhase phase) : energy_(energy) {
    if (energy_ != nullptr) before_ = energy_->enter(phase);
  }
  ~EnergySpan() {
    if (energy_ != nullptr) energy_->enter(before_);
  }
  EnergySpan(const EnergySpan&) = delete;
  EnergySpan& operator=(const EnergySpan&) = delete;

 private:
  JobEnergy* energy_;
  RunPhase before_ = RunPhase::Other;
};

}  // namespace kintsugi
