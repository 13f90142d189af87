#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/collective.h"
#include "parallel/schedule.h"
#include "plan/machines/machine.h"

namespace kintsugi {

// One step as the planner prices it, for a simulator of networks: what the ranks compute, which
// messages they send, and when they wait. Ranks of a stage do the same. The file is described in
// tools/simulate/step/replay_file.h.
struct StepReplay {
  // Groups tile the ranks: `size` ranks, `stride` apart.
  struct Group {
    std::string name = {};
    std::int64_t size = 1, stride = 1;
  };
  struct Call {  // a collective of a group
    std::size_t group = 0;
    Collective kind = Collective::AllReduce;
    double bytes = 0;  // the size of the full tensor
    double priced_s = 0;
  };
  struct Item {
    enum class Kind : std::uint8_t { Compute, Piece, Start, Wait };
    Kind kind = Kind::Compute;
    double value = 0;       // Compute: seconds; Piece: how often
    std::size_t index = 0;  // of a Piece, or of the call to Start
    std::int64_t ticket = 0;
  };
  using Items = std::vector<Item>;
  struct Chunk {  // one micro-batch
    std::int64_t layers = 1;
    Items forward = {}, backward = {};
  };
  struct Calls {
    std::size_t call = 0;
    double times = 1;
  };
  struct Stage {
    std::vector<Chunk> chunks = {};
    // Once per step: sums of gradients over data ranks, gathers of weights, and other sums.
    std::vector<Calls> gradients = {}, weights = {}, sums = {};
  };
  struct Priced {  // parts of the step
    double step_s = 0, compute_s = 0, bubble_s = 0, tensor_s = 0, data_s = 0, update_s = 0,
           other_s = 0;
  };

  std::string layout = {}, machine = {};
  std::int64_t ranks = 1;
  NodeSpec node = {};
  NetworkSpec network = {};
  double slowdown = 1;  // of communication that overlaps with compute
  std::vector<Group> groups = {};
  std::vector<Call> calls = {};
  std::vector<Items> pieces = {};  // without pieces in them
  PipelineShape pipeline = {};
  double message_bytes = 0;   // that each rank of a stage sends to the next one
  double weight_share = 0.5;  // of a backward, in schedules that halve it
  std::vector<Stage> stages = {};
  Priced priced = {};
};

inline constexpr std::string_view kReplayFormat = "kintsugi-step-1";
std::string to_json(const StepReplay& replay);

}  // namespace kintsugi
