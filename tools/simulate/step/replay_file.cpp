#include "simulate/step/replay_file.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json_members.h"

namespace kintsugi {
namespace {

using nlohmann::ordered_json;

constexpr double kMostRanks = 1 << 17;
constexpr double kMostGpus = 256;  // of a node
constexpr double kMostSeconds = 1e9, kMostBytes = 1e18, kMostRate = 1e9;
constexpr std::size_t kMostEntries = 1 << 20;  // of a list

// A value with the path by which messages name it.
class Value {
 public:
  Value(const ordered_json& json, std::string path) : json_(json), path_(std::move(path)) {}

  Value operator[](const char* key) const {
    const ordered_json& value = json_at(json_, key);
    if (value.is_null()) user_error("{} has no {}", path_, key);
    return {value, path_ + "." + key};
  }
  Value at(std::size_t i) const {
    if (i >= size()) user_error("{} has {} entries, too few", path_, size());
    return {json_[i], fmt::format("{}[{}]", path_, i)};
  }
  std::size_t size() const {
    if (!json_.is_array()) user_error("{} is no list", path_);
    if (json_.size() > kMostEntries) user_error("{} has more than {} entries", path_, kMostEntries);
    return json_.size();
  }
  double number(double least, double most) const {
    const double value = json_.is_number() ? json_.get<double>() : NAN;
    if (!(value >= least && value <= most))
      user_error("{} must be a number from {} to {}", path_, least, most);
    return value;
  }
  std::int64_t count(double least, double most) const {
    const double value = number(least, most);
    if (value != std::floor(value)) user_error("{} must be a whole number", path_);
    return static_cast<std::int64_t>(value);
  }
  std::size_t index(std::size_t below) const {
    if (below == 0) user_error("{} names an entry of an empty list", path_);
    return static_cast<std::size_t>(count(0, static_cast<double>(below) - 1));
  }
  std::string text() const {
    if (!json_.is_string()) user_error("{} must be a text", path_);
    return json_.get<std::string>();
  }
  const std::string& path() const { return path_; }

 private:
  const ordered_json& json_;
  std::string path_;
};

template <class Read>
auto list_of(const Value& value, const Read& read) {
  std::vector<decltype(read(value.at(0)))> list;
  for (std::size_t i = 0; i < value.size(); ++i) list.push_back(read(value.at(i)));
  return list;
}

Collective collective_named(const Value& value) {
  const std::string name = value.text();
  for (int i = 0; i < kCollectives; ++i)
    if (const auto kind = static_cast<Collective>(i); name == to_string(kind)) return kind;
  user_error("{}: there is no collective '{}'", value.path(), name);
}

StepReplay::Item item_of(const Value& value, const StepReplay& replay) {
  using Kind = StepReplay::Item::Kind;
  const std::string kind = value.at(0).text();
  if (kind == "compute")
    return {.kind = Kind::Compute, .value = value.at(1).number(0, kMostSeconds)};
  if (kind == "piece")
    return {.kind = Kind::Piece,
            .value = value.at(2).number(0, 1e9),
            .index = value.at(1).index(replay.pieces.size())};
  if (kind == "start")
    return {.kind = Kind::Start,
            .index = value.at(1).index(replay.calls.size()),
            .ticket = value.at(2).count(0, 1e15)};
  if (kind == "wait") return {.kind = Kind::Wait, .ticket = value.at(1).count(0, 1e15)};
  user_error("{}: '{}' is not compute, piece, start or wait", value.path(), kind);
}

// `replay` has the pieces that items may name so far.
StepReplay::Items items_of(const Value& value, const StepReplay& replay) {
  std::set<std::int64_t> started;
  return list_of(value, [&](const Value& one) {
    const StepReplay::Item item = item_of(one, replay);
    if (item.kind == StepReplay::Item::Kind::Start) started.insert(item.ticket);
    if (item.kind == StepReplay::Item::Kind::Wait && !started.contains(item.ticket))
      user_error("{}: ticket {} was not started", one.path(), item.ticket);
    return item;
  });
}

std::vector<StepReplay::Calls> calls_of(const Value& value, const StepReplay& replay) {
  return list_of(value, [&](const Value& one) {
    return StepReplay::Calls{one.at(0).index(replay.calls.size()), one.at(1).number(0, 1e9)};
  });
}

StepReplay::Stage stage_of(const Value& value, const StepReplay& replay) {
  StepReplay::Stage stage;
  stage.chunks = list_of(value["chunks"], [&](const Value& chunk) {
    return StepReplay::Chunk{chunk["layers"].count(0, 1e6), items_of(chunk["forward"], replay),
                             items_of(chunk["backward"], replay)};
  });
  if (static_cast<int>(stage.chunks.size()) != replay.pipeline.chunks)
    user_error("{} has {} chunks, the pipeline {}", value.path(), stage.chunks.size(),
               replay.pipeline.chunks);
  stage.gradients = calls_of(value["gradients"], replay);
  stage.weights = calls_of(value["weights"], replay);
  stage.sums = calls_of(value["sums"], replay);
  return stage;
}

void read_machine(const Value& root, StepReplay& replay) {
  const Value node = root["node"], network = root["network"];
  replay.machine = root["machine"].text();
  replay.node.gpus = node["gpus"].count(1, kMostGpus);
  replay.node.module_gpus = node["module_gpus"].count(1, kMostGpus);
  replay.node.module_gb_s = node["module_gb_s"].number(0, kMostRate);
  replay.node.link_gb_s = node["link_gb_s"].number(0, kMostRate);
  replay.node.latency_us = node["latency_us"].number(0, 1e9);
  replay.network.gb_s = network["gb_s"].number(0, kMostRate);
  replay.network.latency_us = network["latency_us"].number(0, 1e9);
  const std::int64_t ranks = replay.ranks = root["ranks"].count(1, kMostRanks);
  constexpr double kLeast = 1e-6;
  if (ranks > replay.node.gpus) network["gb_s"].number(kLeast, kMostRate);
  if (ranks > 1 && replay.node.gpus > replay.node.module_gpus)
    node["link_gb_s"].number(kLeast, kMostRate);
  if (ranks > 1 && replay.node.module_gpus > 1) node["module_gb_s"].number(kLeast, kMostRate);
}

void read_pipeline(const Value& pipeline, StepReplay& replay) {
  const auto count = [&](const char* key) {
    return static_cast<int>(pipeline[key].count(1, 1 << 20));
  };
  replay.pipeline = {parse_pipeline_kind(pipeline["schedule"].text()), count("stages"),
                     count("micro_batches"), count("chunks")};
  check_pipeline_shape(replay.pipeline);
  if (replay.ranks % replay.pipeline.stages != 0)
    user_error("{}: {} ranks have no {} equal stages", pipeline.path(), replay.ranks,
               replay.pipeline.stages);
  replay.message_bytes = pipeline["message_bytes"].number(0, kMostBytes);
  replay.weight_share = pipeline["weight_share"].number(0, 1);
}

StepReplay::Priced priced_of(const Value& priced) {
  const auto seconds = [&](const char* key) {
    return priced[key].number(-kMostSeconds, kMostSeconds);
  };
  return {priced["step_s"].number(1e-9, kMostSeconds),
          seconds("compute_s"),
          seconds("bubble_s"),
          seconds("tensor_s"),
          seconds("data_s"),
          priced["update_s"].number(0, kMostSeconds),
          priced["other_s"].number(0, kMostSeconds)};
}

}  // namespace

StepReplay parse_replay(const std::string& text, const std::string& source) {
  std::string problem;
  const std::optional<ordered_json> json = parse_untrusted_json(text, &problem);
  if (!json) user_error("{}: {}", source, problem);
  const Value root(*json, source);
  if (!json->is_object() || root["format"].text() != kReplayFormat)
    user_error("{} is not a step that kintsugi plan --replay wrote ({})", source, kReplayFormat);
  StepReplay replay{.layout = root["layout"].text()};
  read_machine(root, replay);
  replay.slowdown = root["slowdown"].number(1e-3, 1e3);
  replay.groups = list_of(root["groups"], [&](const Value& group) {
    const auto most = static_cast<double>(replay.ranks);
    return StepReplay::Group{group["name"].text(), group["size"].count(1, most),
                             group["stride"].count(1, most)};
  });
  replay.calls = list_of(root["calls"], [&](const Value& call) {
    return StepReplay::Call{call["group"].index(replay.groups.size()),
                            collective_named(call["kind"]), call["bytes"].number(0, kMostBytes),
                            call["priced_s"].number(0, kMostSeconds)};
  });
  const StepReplay without_pieces = replay;
  replay.pieces =
      list_of(root["pieces"], [&](const Value& piece) { return items_of(piece, without_pieces); });
  read_pipeline(root["pipeline"], replay);
  replay.stages =
      list_of(root["stages"], [&](const Value& stage) { return stage_of(stage, replay); });
  if (static_cast<int>(replay.stages.size()) != replay.pipeline.stages)
    user_error("{} has {} stages, its pipeline {}", source, replay.stages.size(),
               replay.pipeline.stages);
  replay.priced = priced_of(root["priced"]);
  return replay;
}

}  // namespace kintsugi
