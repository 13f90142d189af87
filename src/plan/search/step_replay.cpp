#include "plan/search/step_replay.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/search/planner.h"

namespace kintsugi {

using nlohmann::ordered_json;

// ---- from the planner

class Planner::ReplayWriter {
 public:
  ReplayWriter(Planner& planner, const Evaluation& evaluation)
      : planner_(planner),
        e_(evaluation),
        l_(evaluation.layout),
        cost_(planner.micro_batch_cost(l_)) {}

  StepReplay write() {
    const Planner& p = planner_;
    r_ = {.layout = to_string(l_),
          .machine = p.machine_.name,
          .ranks = l_.ranks(),
          .node = p.machine_.node,
          .network = p.machine_.network,
          .slowdown = p.software_.communication,
          .pipeline = {l_.schedule, l_.pp,
                       static_cast<int>(micro_batches_per_step(l_, p.job_.batch)), l_.chunks},
          .message_bytes = static_cast<double>(cost_.trace.boundary),
          .weight_share = cost_.weight_share,
          .priced = {e_.step_s, e_.ideal_s, e_.bubble * e_.step_s + e_.message_s, e_.tensor_s,
                     e_.data_s, e_.optimizer_s, e_.other_s}};
    add_pieces();
    for (int stage = 0; stage < l_.pp; ++stage) r_.stages.push_back(stage_of(stage));
    return std::move(r_);
  }

 private:
  using Item = StepReplay::Item;
  using Items = StepReplay::Items;
  using Kind = TracedOperation::Kind;

  std::size_t group(const std::string& name) {
    for (std::size_t i = 0; i < r_.groups.size(); ++i)
      if (r_.groups[i].name == name) return i;
    const GroupMembership of =
        group_position(grid_of(l_, planner_.job_.model), parse_group_kind(name), {});
    r_.groups.push_back({name, of.size, of.stride});
    return r_.groups.size() - 1;
  }

  std::size_t call(const std::string& name, Collective kind, double bytes) {
    const std::size_t of = group(name);
    for (std::size_t i = 0; i < r_.calls.size(); ++i)
      if (const StepReplay::Call& c = r_.calls[i];
          c.group == of && c.kind == kind && c.bytes == bytes)
        return i;
    const double priced = planner_.software_.communication *
                          collective_s(planner_.links(l_, parse_group_kind(name)), kind, bytes);
    r_.calls.push_back({of, kind, bytes, priced});
    return r_.calls.size() - 1;
  }

  // A rank sends while it receives: only the receive is an item.
  Items items_of(const OperationTrace& trace) {
    Items items;
    std::vector<std::int64_t> started;
    const LinksOf links = [&](const std::string& name) -> const GroupLinks& {
      return links_ = planner_.links(l_, parse_group_kind(name));
    };
    cost_of(planner_.machine_, planner_.software_, trace, links,
            [&](const TracedOperation& o, double seconds) {
              if (seconds > 0) {
                if (items.empty() || items.back().kind != Item::Kind::Compute)
                  items.push_back({.kind = Item::Kind::Compute});
                items.back().value += seconds;
              }
              if (o.kind == Kind::Collective && o.collective != Collective::Send) {
                started.push_back(o.ticket);
                items.push_back({.kind = Item::Kind::Start,
                                 .index = call(o.group, o.collective, o.bytes),
                                 .ticket = o.ticket});
              }
              if (o.kind == Kind::Wait && std::ranges::count(started, o.ticket) > 0)
                items.push_back({.kind = Item::Kind::Wait, .ticket = o.ticket});
            });
    return items;
  }

  // The pieces of each kind of layer: forward and backward, plain and recomputed; then the
  // embedding's and the head.
  void add_pieces() {
    const MicroBatchTrace& t = cost_.trace;
    for (const LayerTraces& kind : t.layers)
      for (const BlockTrace* block : {&kind.plain, &kind.recomputed})
        for (const OperationTrace* trace : {&block->forward, &block->backward})
          r_.pieces.push_back(items_of(*trace));
    for (const OperationTrace* trace : {&t.embedding_forward, &t.embedding_backward, &t.head})
      r_.pieces.push_back(items_of(*trace));
  }

  Item piece(std::size_t index, double times = 1) const {
    return {.kind = Item::Kind::Piece, .value = times, .index = index};
  }
  Item layer(int number, bool backward) const {
    const std::size_t recomputed = number % l_.recompute_every == 0 ? 2 : 0;
    return piece(4 * planner_.layers_.kind(number) + recomputed + (backward ? 1 : 0));
  }

  // Starts a collective of one layer for each shard group. Tickets of a layer are consecutive.
  void start(Items& items, const StateTrace& state, Collective kind, std::int64_t ticket) {
    for (const auto& [shard, bytes] : state.layer)
      items.push_back(
          {.kind = Item::Kind::Start,
           .index = call(to_string(shard), kind,
                         kind == Collective::AllGather ? bytes.weights : bytes.gradients),
           .ticket = ticket++});
  }
  void wait(Items& items, const StateTrace& state, std::int64_t ticket) const {
    for (std::size_t i = 0; i < state.layer.size(); ++i)
      items.push_back({.kind = Item::Kind::Wait, .ticket = ticket++});
  }

  // The layers of a chunk in the order in which they are computed. ZeRO 3 gathers a layer while
  // the one before computes; ZeRO 2 and 3 scatter its gradients while the next one computes.
  Items layers_of(const StageLayers& chunk, const StateTrace& state, bool backward) {
    const bool shards = l_.dp * l_.cp > 1, gathers = shards && l_.zero == 3,
               scatters = shards && l_.zero >= 2 && backward;
    const auto groups = static_cast<std::int64_t>(state.layer.size());
    const int n = chunk.last_layer - chunk.first_layer;
    const auto gather = [&](int i) { return 2 * i * groups; };
    const auto scatter = [&](int i) { return (2 * i + 1) * groups; };
    Items items;
    if (gathers && n > 0) start(items, state, Collective::AllGather, gather(0));
    for (int i = 0; i < n; ++i) {
      if (gathers) wait(items, state, gather(i));
      if (gathers && i + 1 < n) start(items, state, Collective::AllGather, gather(i + 1));
      items.push_back(layer(backward ? chunk.last_layer - 1 - i : chunk.first_layer + i, backward));
      if (scatters && i > 0) wait(items, state, scatter(i - 1));
      if (scatters) start(items, state, Collective::ReduceScatter, scatter(i));
    }
    return items;
  }

  StepReplay::Chunk chunk_of(const StageLayers& chunk, const StateTrace& state) {
    const std::size_t embedding = r_.pieces.size() - 3;
    StepReplay::Chunk result{.layers = chunk.last_layer - chunk.first_layer,
                             .forward = layers_of(chunk, state, false),
                             .backward = layers_of(chunk, state, true)};
    if (chunk.embedding) {
      result.forward.insert(result.forward.begin(), piece(embedding));
      result.backward.push_back(piece(embedding + 1));
    }
    // The head and its backward. Chunks of tokens that are not traced take as long as the others.
    if (chunk.head) result.forward.push_back(piece(embedding + 2, 1 + cost_.trace.head_extra / 2));
    return result;
  }

  StepReplay::Stage stage_of(int number) {
    const auto at = static_cast<std::size_t>(number);
    const Stages& all = planner_.stages(l_);
    const StateTrace& state = planner_.state(l_, e_.offload, all.contents[at], number);
    StepReplay::Stage stage;
    for (const StageLayers& chunk : all.chunks[at]) stage.chunks.push_back(chunk_of(chunk, state));
    for (const auto& [key, traffic] : state.traffic) {
      const auto& [name, kind] = key;
      const TrafficUse use = use_of(parse_group_kind(name), kind);
      // Counted with the update, or with each layer.
      if (use == TrafficUse::Matrices || (use == TrafficUse::ScatteredGradients && l_.zero >= 2))
        continue;
      auto& list = use == TrafficUse::Weights ? stage.weights
                   : use == TrafficUse::Sums  ? stage.sums
                                              : stage.gradients;
      list.push_back({call(name, kind, traffic.bytes / traffic.calls), traffic.calls});
    }
    return stage;
  }

  Planner& planner_;
  const Evaluation& e_;
  const Layout& l_;
  const MicroBatchCost& cost_;
  StepReplay r_;
  GroupLinks links_;  // asked for last
};

StepReplay Planner::replay(const Evaluation& evaluation) {
  return ReplayWriter(*this, evaluation).write();
}

// ---- the file

namespace {

ordered_json json_of(const StepReplay::Items& items) {
  ordered_json list = ordered_json::array();
  for (const StepReplay::Item& item : items) {
    using Kind = StepReplay::Item::Kind;
    switch (item.kind) {
      case Kind::Compute:
        list.push_back({"compute", item.value});
        break;
      case Kind::Piece:
        list.push_back({"piece", item.index, item.value});
        break;
      case Kind::Start:
        list.push_back({"start", item.index, item.ticket});
        break;
      case Kind::Wait:
        list.push_back({"wait", item.ticket});
        break;
    }
  }
  return list;
}

ordered_json json_of(const std::vector<StepReplay::Calls>& calls) {
  ordered_json list = ordered_json::array();
  for (const StepReplay::Calls& one : calls)
    list.push_back(ordered_json::array({one.call, one.times}));
  return list;
}

ordered_json json_of(const StepReplay::Stage& stage) {
  ordered_json chunks = ordered_json::array();
  for (const StepReplay::Chunk& chunk : stage.chunks)
    chunks.push_back({{"layers", chunk.layers},
                      {"forward", json_of(chunk.forward)},
                      {"backward", json_of(chunk.backward)}});
  return {{"chunks", chunks},
          {"gradients", json_of(stage.gradients)},
          {"weights", json_of(stage.weights)},
          {"sums", json_of(stage.sums)}};
}

}  // namespace

std::string to_json(const StepReplay& r) {
  ordered_json groups = ordered_json::array(), calls = groups, pieces = groups, stages = groups;
  for (const StepReplay::Group& group : r.groups)
    groups.push_back({{"name", group.name}, {"size", group.size}, {"stride", group.stride}});
  for (const StepReplay::Call& call : r.calls)
    calls.push_back({{"group", call.group},
                     {"kind", to_string(call.kind)},
                     {"bytes", call.bytes},
                     {"priced_s", call.priced_s}});
  for (const StepReplay::Items& piece : r.pieces) pieces.push_back(json_of(piece));
  for (const StepReplay::Stage& stage : r.stages) stages.push_back(json_of(stage));
  const ordered_json root = {
      {"format", kReplayFormat},
      {"layout", r.layout},
      {"machine", r.machine},
      {"ranks", r.ranks},
      {"node",
       {{"gpus", r.node.gpus},
        {"module_gpus", r.node.module_gpus},
        {"module_gb_s", r.node.module_gb_s},
        {"link_gb_s", r.node.link_gb_s},
        {"latency_us", r.node.latency_us}}},
      {"network", {{"gb_s", r.network.gb_s}, {"latency_us", r.network.latency_us}}},
      {"slowdown", r.slowdown},
      {"groups", groups},
      {"calls", calls},
      {"pieces", pieces},
      {"pipeline",
       {{"schedule", to_string(r.pipeline.kind)},
        {"stages", r.pipeline.stages},
        {"micro_batches", r.pipeline.micro_batches},
        {"chunks", r.pipeline.chunks},
        {"message_bytes", r.message_bytes},
        {"weight_share", r.weight_share}}},
      {"stages", stages},
      {"priced",
       {{"step_s", r.priced.step_s},
        {"compute_s", r.priced.compute_s},
        {"bubble_s", r.priced.bubble_s},
        {"tensor_s", r.priced.tensor_s},
        {"data_s", r.priced.data_s},
        {"update_s", r.priced.update_s},
        {"other_s", r.priced.other_s}}}};
  return root.dump() + "\n";
}

}  // namespace kintsugi
