// The stages of a run, as configurations.
#include "train/config/stages.h"

#include <algorithm>
#include <set>

#include "core/error.h"

namespace kintsugi {

std::int64_t RunConfig::stage_count() const {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(stages.size()));
}

RunConfig RunConfig::at_stage(std::int64_t number) const {
  if (number < 0 || number >= stage_count())
    user_error("there is no stage {}: the configuration has {}", number + 1, stage_count());
  if (stages.empty()) return *this;
  return {stages[static_cast<std::size_t>(number)], stages};
}

RunConfig RunConfig::alone() const {
  RunConfig config = *this;
  if (stage > 0) config.data.seed = static_cast<std::int64_t>(data_seed());
  config.stages.clear();
  config.stage = 0;
  return config;
}

void complete_stage_names(std::vector<StageConfig>& stages) {
  for (StageConfig& stage : stages)
    if (stage.stage_name.empty()) stage.stage_name = fmt::format("stage-{}", stage.stage + 1);
}

void relate_stages(const YamlDocument& document, std::vector<StageConfig>& stages) {
  std::set<std::string> names;
  std::int64_t positions = 0;
  for (StageConfig& stage : stages) {
    const std::string key = fmt::format("stages[{}]", stage.stage);
    if (!names.insert(stage.stage_name).second)
      user_error("{}: {}.name: there are two stages named {}: give each its own name",
                 document.where(key), key, stage.stage_name);
    if (stage.stage_name.find_first_not_of("0123456789") == std::string::npos)
      user_error(
          "{}: {}.name: {} is a number, which `data where --stage` takes as the position of a "
          "stage: choose another name",
          document.where(key), key, stage.stage_name);
    if (stage.data.tokenizer != stages.front().data.tokenizer)
      user_error("{}: {}.data.tokenizer: all stages have the same tokenizer: remove it",
                 document.where(key), key);
    if (stage.optimizer.kind != stages.front().optimizer.kind)
      user_error("{}: {}.optimizer.kind: all stages have the same optimizer: remove it",
                 document.where(key), key);
    if (!stage.train.save)
      user_error(
          "{}: train.save is false, but a stage starts from the checkpoint of the stage before: "
          "remove it",
          document.where("train.save"));
    // What an earlier stage has trained stays trained.
    if (stage.model.positions() != PositionKind::Learned)
      positions = stage.model.max_positions = std::max(positions, stage.model.max_positions);
    // The first stage may follow that of run.from.
    if (stage.stage > 0) stage.rope_scaling_given = true;
  }
}

std::string RunConfig::stage_title() const {
  return stages.empty() ? ""
                        : fmt::format("stage {} of {} ({})", stage + 1, stages.size(), stage_name);
}

std::int64_t RunConfig::steps_after() const {
  std::int64_t steps = 0;
  for (std::size_t i = static_cast<std::size_t>(stage) + 1; i < stages.size(); ++i)
    steps += stages[i].total_steps();
  return steps;
}

}  // namespace kintsugi
