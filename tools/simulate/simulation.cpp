#include "simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "simulate/step/streams.h"

namespace kintsugi {

namespace sg = simgrid::s4u;

namespace {

double clock_s() { return sg::Engine::get_clock(); }

// Time passes for the actor that calls it.
void pass(double seconds) {
  if (seconds > 0) sg::this_actor::sleep_for(seconds);
}

double acquire_s(const sg::SemaphorePtr& semaphore) {  // what it waited
  const double start = clock_s();
  semaphore->acquire();
  return clock_s() - start;
}

// Sends of one tensor from stage to stage, by the stage and the chunk that receive it.
struct MessageKey {
  bool activation = true;
  int stage = 0, chunk = 0, micro_batch = 0;
  auto operator<=>(const MessageKey&) const = default;
};
struct Message {
  sg::SemaphorePtr sent = sg::Semaphore::create(0);
  Network::Flows flows = {};
};

// One actor per stage sends the messages of all its ranks; others carry its sums and gathers.
class StepSimulation {
 public:
  StepSimulation(const StepReplay& replay, NetworkKind kind)
      : r_(replay), network_(replay, kind), schedule_(make_pipeline_schedule(replay.pipeline)) {}

  SimulatedStep run() {
    spawn("step", [this] {
      for (const StepReplay::Call& call : r_.calls) measure(call);
      chunks_ = chunk_times(r_, call_s_);
      run_stages();
    });
    sg::Engine::get_instance()->run();
    return {parts(), priced_parts(), call_s_, network_.text(), network_.flows()};
  }

 private:
  template <class Code>
  sg::ActorPtr spawn(const std::string& name, const Code& code) {
    return sg::Actor::create(name, network_.any_host(), code);
  }

  // ---- collectives alone

  double run_traffic(const Traffic& traffic) {
    const double start = clock_s();
    pass(traffic.latency_s);
    const Network::Flows between = network_.start(traffic.network, 1);
    const Network::Flows inside = network_.start(traffic.inside);
    Network::wait(between);
    Network::wait(inside);
    return clock_s() - start;
  }

  // All groups of a kind at a time, by the faster algorithm.
  void measure(const StepReplay::Call& call) {
    const RankRange all{0, r_.ranks};
    const Traffic ring = ring_traffic(r_, call, all);
    double seconds = run_traffic(ring), steps_s = 0;
    const std::vector<Traffic> steps = logarithmic_traffic(r_, call, all);
    for (const Traffic& step : steps) steps_s += run_traffic(step);
    stepwise_.push_back(!steps.empty() && steps_s < seconds);
    if (stepwise_.back()) seconds = steps_s;
    call_s_.push_back(r_.slowdown * seconds);
    inside_s_.push_back(ring.network.empty() ? call_s_.back()
                                             : r_.slowdown * run_traffic({{}, ring.inside, 0}));
  }

  // ---- collectives of a stage, beside its pipeline

  const Traffic& traffic_of(std::size_t call, int stage) {
    Traffic& traffic = of_stages_[{call, stage}];
    if (!traffic.network.empty() || traffic.latency_s > 0) return traffic;
    const std::int64_t ranks = r_.ranks / r_.pipeline.stages;
    const RankRange range{stage * ranks, (stage + 1) * ranks};
    if (!stepwise_[call]) return traffic = ring_traffic(r_, r_.calls[call], range);
    for (const Traffic& step : logarithmic_traffic(r_, r_.calls[call], range)) {
      traffic.network.insert(traffic.network.end(), step.network.begin(), step.network.end());
      traffic.latency_s += step.latency_s;
    }
    return traffic;
  }

  // This part of the collectives, one after the other.
  void communicate(const std::vector<StepReplay::Calls>& list, int stage, double part) {
    for (const auto& [call, calls] : list) {
      const double start = clock_s(), times = part * calls;
      if (times == 0) continue;
      const Traffic& traffic = traffic_of(call, stage);
      if (!traffic.network.empty()) {
        pass(r_.slowdown * times * traffic.latency_s);
        Network::wait(network_.start(traffic.network, r_.slowdown * times));
      }
      pass(start + times * inside_s_[call] - clock_s());
    }
  }

  // ---- stages

  struct StageState {
    double layers = 0;
    std::vector<int> last_backward = {};  // by chunk: the place in the list of actions
    std::vector<sg::SemaphorePtr> first_weights = {}, all_weights = {};  // by chunk
    sg::SemaphorePtr wire = sg::Semaphore::create(1);
    std::vector<sg::ActorPtr> sums = {};
    double weights_wait_s = 0, computed_s = 0, finished_s = 0;  // since the start of the step
  };

  void run_stages() {
    start_ = clock_s();
    const int stages = r_.pipeline.stages;
    for (int stage = 0; stage < stages; ++stage) states_.push_back(state_of(stage));
    const auto hop = [&](int from, int to) { hops_[{from, to}] = message_traffic(r_, from, to); };
    for (int stage = 0; stages > 1 && stage < stages; ++stage)
      for (const int way : {-1, 1}) hop(stage, (stage + way + stages) % stages);
    std::vector<sg::ActorPtr> actors;
    for (int stage = 0; stage < stages; ++stage) {
      actors.push_back(spawn("weights", [this, stage] { gather_weights(stage); }));
      actors.push_back(spawn("stage", [this, stage] { run_stage(stage); }));
    }
    for (const sg::ActorPtr& actor : actors) actor->join();
  }

  StageState state_of(int stage) const {
    StageState state;
    const auto at = static_cast<std::size_t>(stage);
    for (const StepReplay::Chunk& chunk : r_.stages[at].chunks) {
      state.layers += std::max(1.0, static_cast<double>(chunk.layers));
      state.first_weights.push_back(sg::Semaphore::create(0));
      state.all_weights.push_back(sg::Semaphore::create(0));
    }
    state.last_backward.resize(r_.stages[at].chunks.size(), -1);
    const std::vector<Action>& actions = schedule_.ranks[at];
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (actions[i].kind == ActionKind::Backward || actions[i].kind == ActionKind::BackwardWeight)
        state.last_backward[static_cast<std::size_t>(actions[i].chunk)] = static_cast<int>(i);
    return state;
  }

  double layers_of(int stage, std::size_t chunk) const {
    const auto& chunks = r_.stages[static_cast<std::size_t>(stage)].chunks;
    return std::max(1.0, static_cast<double>(chunks[chunk].layers));
  }

  // A forward starts with the weights of its first layer, and ends with those of the last.
  void gather_weights(int stage) {
    StageState& state = states_[static_cast<std::size_t>(stage)];
    const auto& list = r_.stages[static_cast<std::size_t>(stage)].weights;
    for (std::size_t chunk = 0; chunk < state.first_weights.size(); ++chunk) {
      communicate(list, stage, 1 / state.layers);
      state.first_weights[chunk]->release();
      communicate(list, stage, (layers_of(stage, chunk) - 1) / state.layers);
      state.all_weights[chunk]->release();
    }
  }

  // The gradients of a layer are summed while those of the layers below it are computed.
  void sum_gradients(int stage, std::size_t chunk, double backward_s,
                     const sg::SemaphorePtr& backward_done) {
    const StageState& state = states_[static_cast<std::size_t>(stage)];
    const auto& list = r_.stages[static_cast<std::size_t>(stage)].gradients;
    const double layers = layers_of(stage, chunk);
    pass(backward_s / layers);
    state.wire->acquire();
    communicate(list, stage, (layers - 1) / state.layers);
    backward_done->acquire();
    communicate(list, stage, 1 / state.layers);
    state.wire->release();
  }

  void run_stage(int stage) {
    const auto at = static_cast<std::size_t>(stage);
    StageState& state = states_[at];
    const std::vector<Action>& actions = schedule_.ranks[at];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (is_send(actions[i].kind)) send(stage, actions[i]);
      if (is_compute(actions[i].kind)) compute(stage, actions[i], static_cast<int>(i));
    }
    state.computed_s = clock_s() - start_;
    for (const sg::ActorPtr& sum : state.sums) sum->join();
    for (const auto& [call, times] : r_.stages[at].sums) pass(times * call_s_[call]);
    state.finished_s = clock_s() - start_;
  }

  std::optional<PipelineChunk> neighbour(bool activation, PipelineChunk own) const {
    return activation ? next_chunk(r_.pipeline, own) : previous_chunk(r_.pipeline, own);
  }

  void send(int stage, const Action& action) {
    const bool activation = action.kind == ActionKind::SendActivation;
    const PipelineChunk to = *neighbour(activation, {stage, action.chunk});
    Message& message = messages_[{activation, to.rank, to.chunk, action.micro_batch}];
    message.flows = network_.start(hops_[{stage, to.rank}].network, r_.slowdown);
    message.sent->release();
  }

  // Waits for what the action needs of another stage.
  void receive(int stage, const Action& action) {
    if (action.kind == ActionKind::BackwardWeight) return;
    const bool forward = action.kind == ActionKind::Forward;
    const auto from = neighbour(!forward, {stage, action.chunk});
    if (!from || from->rank == stage) return;
    const MessageKey key{forward, stage, action.chunk, action.micro_batch};
    const sg::SemaphorePtr sent = messages_[key].sent;
    sent->acquire();
    const Network::Flows flows = std::move(messages_[key].flows);
    messages_.erase(key);
    Network::wait(flows);
    const double latency_s = r_.slowdown * hops_[{from->rank, stage}].latency_s;
    pass(flows.end_s() + latency_s - clock_s());
  }

  void compute(int stage, const Action& action, int number) {
    receive(stage, action);
    const auto at = static_cast<std::size_t>(stage), chunk = static_cast<std::size_t>(action.chunk);
    StageState& state = states_[at];
    const ChunkTime& time = chunks_[at][chunk];
    if (action.kind == ActionKind::Forward) {
      const bool first = action.micro_batch == 0;
      if (first) state.weights_wait_s += acquire_s(state.first_weights[chunk]);
      pass(time.forward.total_s);
      if (first) state.weights_wait_s += acquire_s(state.all_weights[chunk]);
      return;
    }
    const double part = action.kind == ActionKind::BackwardWeight  ? r_.weight_share
                        : action.kind == ActionKind::BackwardInput ? 1 - r_.weight_share
                                                                   : 1;
    const double seconds = part * time.backward.total_s;
    const bool last = number == state.last_backward[chunk];
    const sg::SemaphorePtr done = sg::Semaphore::create(0);
    if (last && !r_.stages[at].gradients.empty())
      state.sums.push_back(spawn("gradients", [this, stage, chunk, seconds, done] {
        sum_gradients(stage, chunk, seconds, done);
      }));
    pass(seconds);
    done->release();
  }

  // ---- the result

  ItemTime busy(const std::vector<ChunkTime>& chunks) const {
    ItemTime sum;
    for (const ChunkTime& chunk : chunks) (sum += chunk.forward) += chunk.backward;
    return sum;
  }

  static void add_waits(const ItemTime& time, double times, StepParts& parts) {
    for (const auto& [group, seconds] : time.exposed)
      (group == "experts"                                ? parts.experts_s
       : group == "tp" || group == "cp" || group == "kv" ? parts.tensor_s
                                                         : parts.data_s) += times * seconds;
  }

  StepParts parts() const {
    const auto most = [&](double StageState::*seconds) {
      double result = 0;
      for (const StageState& state : states_) result = std::max(result, state.*seconds);
      return result;
    };
    ItemTime slowest;
    for (const auto& stage : chunks_)
      if (const ItemTime time = busy(stage); time.total_s > slowest.total_s) slowest = time;
    const double m = r_.pipeline.micro_batches;
    StepParts parts{.update_s = r_.priced.update_s, .other_s = r_.priced.other_s};
    add_waits(slowest, m, parts);
    parts.compute_s = m * (slowest.total_s - slowest.exposed_s());
    // Waits for weights are at the start of the step; behind the first stage they are in the
    // bubble.
    const double computed = most(&StageState::computed_s);
    const double idle = std::max(0.0, computed - m * slowest.total_s);
    const double weights = std::min(idle, most(&StageState::weights_wait_s));
    parts.pipeline_s = idle - weights;
    parts.data_s += weights + most(&StageState::finished_s) - computed;
    return parts;
  }

  StepParts priced_parts() const {
    const StepReplay::Priced& p = r_.priced;
    std::vector<double> call_s;
    for (const StepReplay::Call& call : r_.calls) call_s.push_back(call.priced_s);
    ItemTime slowest;
    for (const auto& stage : chunk_times(r_, call_s))
      if (const ItemTime time = busy(stage); time.total_s > slowest.total_s) slowest = time;
    StepParts waits;
    add_waits(slowest, r_.pipeline.micro_batches, waits);
    const double experts = std::min(p.tensor_s, waits.experts_s);
    return {p.compute_s, p.bubble_s, p.tensor_s - experts, experts, p.data_s,
            p.update_s,  p.other_s};
  }

  const StepReplay& r_;
  Network network_;
  PipelineSchedule schedule_;
  // By call: time alone, with the slowdown; that of the messages within a node; whether by steps.
  std::vector<double> call_s_, inside_s_;
  std::vector<bool> stepwise_;
  std::vector<std::vector<ChunkTime>> chunks_;
  std::map<std::pair<std::size_t, int>, Traffic> of_stages_;
  std::map<std::pair<int, int>, Traffic> hops_;  // from stage to stage
  std::map<MessageKey, Message> messages_;
  std::vector<StageState> states_;
  double start_ = 0;
};

}  // namespace

SimulatedStep simulate(const StepReplay& replay, NetworkKind kind) {
  // Flows share links fairly; nothing of TCP.
  std::vector<std::string> words = {"kintsugi-simulate",
                                    "--log=root.thres:critical",
                                    "--cfg=network/model:CM02",
                                    "--cfg=network/bandwidth-factor:1",
                                    "--cfg=network/latency-factor:1",
                                    "--cfg=network/weight-S:0",
                                    "--cfg=network/TCP-gamma:0",
                                    "--cfg=network/crosstraffic:0"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  sg::Engine engine(&count, arguments.data());
  return StepSimulation(replay, kind).run();
}

}  // namespace kintsugi
