#include "train/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/exchange.h"
#include "core/file.h"
#include "core/log.h"
#include "model/initialize.h"
#include "tensor/safetensors.h"
#include "train/checkpoint_files.h"
#include "train/checkpoint_pieces.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

const char* const kOptimizerFolder = "optimizer/";

// One kind of tensor per parameter: its prefix, and what this rank holds of it.
struct Kind {
  std::string folder, prefix;
  DType dtype;
  std::function<Tensor(int bucket)> owned;
};

std::vector<Kind> kinds_of(Engine& engine) {
  const Sharding& sharding = engine.sharding();
  const Optimizer& optimizer = engine.optimizer();
  std::vector<Kind> kinds;
  const auto add = [&](const std::string& folder, const std::string& prefix, auto owned) {
    kinds.push_back({folder, prefix, owned(0).dtype(), owned});
  };
  add("", "", [&](int bucket) { return sharding.owned_weights(bucket); });
  if (optimizer.has_master())
    add(kOptimizerFolder, "master.", [&](int bucket) { return optimizer.master(bucket); });
  add(kOptimizerFolder, "exp_avg.", [&](int bucket) { return optimizer.moment1(bucket); });
  add(kOptimizerFolder, "exp_avg_sq.", [&](int bucket) { return optimizer.moment2(bucket); });
  return kinds;
}

void announce(CheckpointWriter& writer, const std::vector<Kind>& kinds, const std::string& folder,
              const std::string& stem, const ParameterSet& set, std::uint64_t max_bytes) {
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const Kind& kind : kinds)
    if (kind.folder == folder)
      for (const Parameter& parameter : set.parameters())
        tensors.push_back({kind.prefix + parameter.name, kind.dtype, parameter.shape});
  writer.tensors(folder, stem, tensors, max_bytes);
}

// Each element is written by one rank: its owner, or of several owners each a share.
void put_share(PieceWriter& writer, const Sharding& sharding, const Kind& kind) {
  const Communicator& replica = *sharding.groups().replica;
  for (int bucket = 0; bucket < static_cast<int>(sharding.set().buckets().size()); ++bucket) {
    const Sharding::Range owned = sharding.owned(bucket);
    const std::int64_t begin = owned.begin + owned.size() * replica.rank() / replica.size(),
                       end = owned.begin + owned.size() * (replica.rank() + 1) / replica.size();
    writer.put(kind.folder, kind.prefix, bucket, {begin, end},
               kind.owned(bucket).rows(begin - owned.begin, end - begin));
  }
}

std::string state_to_json(const TrainerState& state, DType precision) {
  return Json{{"format", 1},
              {"step", state.step},
              {"tokens", state.tokens},
              {"samples", state.samples},
              {"seed", state.seed},
              {"data", state.data},
              {"precision", to_string(precision)},
              {"loss_scale",
               {{"scale", state.loss_scale.scale},
                {"good_steps", state.loss_scale.good_steps},
                {"hysteresis", state.loss_scale.hysteresis}}}}
             .dump(2) +
         "\n";
}

void write_contents(const fs::path& directory, Engine& engine, const TrainerState& state,
                    const CheckpointOptions& options) {
  Communicator& host = *engine.sharding().groups().world;
  const EngineOptions& engine_options = engine.options();
  const std::vector<Kind> kinds = kinds_of(engine);
  std::optional<CheckpointWriter> writer;
  together(host, [&] {
    writer.emplace(host, directory);
    writer->text("config.json", write_hf_config(engine_options.model, engine_options.precision));
    writer->text("generation_config.json", write_hf_generation_config(engine_options.model));
    for (const Tokenizer::File& file : options.files) writer->text(file.name, file.content);
    writer->text("trainer.json", state_to_json(state, engine_options.precision));
    writer->folder(kOptimizerFolder);
    const ParameterSet whole(engine_options.model);
    announce(*writer, kinds, "", "model", whole, options.max_shard_bytes);
    announce(*writer, kinds, kOptimizerFolder, "optimizer", whole, options.max_shard_bytes);
  });
  std::optional<PieceWriter> pieces;
  together(host, [&] { pieces.emplace(*writer, engine); });
  together(host, [&] {
    for (const Kind& kind : kinds) put_share(*pieces, engine.sharding(), kind);
    pieces->rethrow();
  });
  writer->finish();
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    failure("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
}

bool is_checkpoint_name(const fs::path& path) {
  return path.filename().string().starts_with("step-");
}

std::vector<fs::path> complete_checkpoints(const fs::path& checkpoints) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoints, error))
    if (entry.is_directory() && is_checkpoint_name(entry.path()) &&
        fs::exists(entry.path() / "checksums.json"))
      found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

// Oldest first, never the one just written. A checkpoint that cannot be removed is left with a
// warning.
void remove_old(const fs::path& checkpoints, const fs::path& newest, std::int64_t keep) {
  if (keep <= 0) return;
  std::vector<fs::path> all = complete_checkpoints(checkpoints);
  std::erase(all, newest);
  while (static_cast<std::int64_t>(all.size()) >= keep) {
    std::error_code error;
    fs::remove_all(all.front(), error);
    if (error)
      log_warning("cannot remove the old checkpoint {}: {}", all.front().string(), error.message());
    all.erase(all.begin());
  }
}

// The finished temporary directory becomes the checkpoint, and `latest` points to it; or all is as
// before.
void publish(const fs::path& checkpoints, const std::string& name) {
  const fs::path target = checkpoints / name, link = checkpoints / ".latest.tmp";
  const fs::path replaced = checkpoints / fmt::format(".{}.old", name);
  std::error_code ignored;
  const bool replaces = fs::exists(target);  // the same step, saved again
  if (replaces) {
    fs::remove_all(replaced, ignored);
    rename_or_fail(target, replaced);
  }
  try {
    rename_or_fail(checkpoints / fmt::format(".{}.tmp", name), target);
    sync_directory(checkpoints);
    fs::remove(link, ignored);
    fs::create_directory_symlink(name, link);
    rename_or_fail(link, checkpoints / "latest");
    sync_directory(checkpoints);
  } catch (...) {
    fs::remove_all(target, ignored);
    if (replaces) fs::rename(replaced, target, ignored);
    throw;
  }
  fs::remove_all(replaced, ignored);
}

void withdraw(const fs::path& checkpoints, const std::string& name) {
  std::error_code ignored;
  fs::remove_all(checkpoints / fmt::format(".{}.tmp", name), ignored);
  fs::remove(checkpoints / ".latest.tmp", ignored);
}

}  // namespace

fs::path save_checkpoint(const fs::path& checkpoints, Engine& engine, const TrainerState& state,
                         const CheckpointOptions& options) {
  const std::string name = fmt::format("step-{:08}", state.step);
  const fs::path target = checkpoints / name,
                 temporary = checkpoints / fmt::format(".{}.tmp", name);
  engine.sharding().finish_weights();
  Communicator& host = *engine.sharding().groups().world;
  const bool first = host.rank() == 0;
  // What failed together, all ranks know of; anything else ends the job.
  const auto give_up = [&] [[noreturn]] (const std::exception& error) {
    if (first) withdraw(checkpoints, name);
    host.barrier();
    throw SharedFailure(
        fmt::format("the checkpoint of step {} was not saved, the ones before it are untouched: {}",
                    state.step, error.what()));
  };
  try {
    write_contents(temporary, engine, state, options);
    together(host, [&] {
      if (first) publish(checkpoints, name);
    });
  } catch (const SharedFailure& error) {
    give_up(error);
  } catch (const SharedUserError& error) {
    give_up(error);
  }
  if (first) remove_old(checkpoints, target, options.keep);
  return target;
}

void clean_up_checkpoints(const fs::path& checkpoints) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(checkpoints))
    if (entry.path().filename().string().starts_with(".step-")) found.push_back(entry.path());
  for (const fs::path& path : found) {
    const fs::path target = checkpoints / path.stem().string().substr(1);
    std::error_code error;
    if (path.extension() == ".old" && !fs::exists(target, error))
      fs::rename(path, target, error);
    else
      fs::remove_all(path, error);
    if (error) log_warning("cannot clean up {}: {}", path.string(), error.message());
  }
}

std::optional<fs::path> find_latest_checkpoint(const fs::path& checkpoints) {
  const fs::path latest = checkpoints / "latest";
  std::error_code error;
  if (fs::exists(latest / "checksums.json", error)) return fs::canonical(latest);
  const std::vector<fs::path> all = complete_checkpoints(checkpoints);
  if (all.empty()) return std::nullopt;
  return all.back();
}

namespace {

Json read_json(const fs::path& path) {
  try {
    return Json::parse(read_text_file(path));
  } catch (const nlohmann::json::exception&) {
    user_error(
        "{} is not valid JSON: the checkpoint is damaged; delete its directory and run again to "
        "continue from the one before",
        path.string());
  }
}

TrainerState state_from_json(const fs::path& path) {
  const Json json = read_json(path);
  try {
    TrainerState state;
    state.step = json.at("step");
    state.tokens = json.at("tokens");
    state.samples = json.at("samples");
    state.seed = json.at("seed");
    state.data = json.at("data");
    const Json& scale = json.at("loss_scale");
    state.loss_scale = {scale.at("scale"), scale.at("good_steps"), scale.at("hysteresis")};
    return state;
  } catch (const nlohmann::json::exception& error) {
    user_error("{} is not a trainer state: {}", path.string(), error.what());
  }
}

}  // namespace

namespace {

TrainerState load_verified(const fs::path& directory, Engine& engine) {
  const Sharding& sharding = engine.sharding();
  const EngineOptions& options = engine.options();
  ModelConfig saved = read_hf_config(directory / "config.json");
  // How long its sequences were is a claim of the model, not a part of it, where no table ends.
  if (saved.traits().positions != PositionKind::Learned)
    saved.max_positions = options.model.max_positions;
  if (write_hf_config(saved, options.precision) !=
      write_hf_config(options.model, options.precision))
    user_error(
        "the checkpoint {} holds another model than the configuration: compare its config.json "
        "with `model:`, or choose another run.dir",
        directory.string());
  const ParameterSet& set = engine.parameters();
  Optimizer& optimizer = engine.optimizer();
  const TrainerState state = state_from_json(directory / "trainer.json");
  const SafetensorsModel model(directory), rest(directory / "optimizer", "optimizer");
  const StoredParameters weights(model, set), first(rest, set, "exp_avg."),
      second(rest, set, "exp_avg_sq.");
  if (optimizer.has_master())
    engine.write_weights(weights, StoredParameters(rest, set, "master."));
  else
    engine.write_weights(weights, weights);
  for (int bucket = 0; bucket < static_cast<int>(set.buckets().size()); ++bucket) {
    const auto [begin, end] = sharding.owned(bucket);
    fill_from(first, engine.backend(), optimizer.moment1(bucket), set, begin, end);
    fill_from(second, engine.backend(), optimizer.moment2(bucket), set, begin, end);
  }
  return state;
}

}  // namespace

TrainerState load_checkpoint(const fs::path& directory, Engine& engine) {
  Communicator& host = *engine.groups().world;
  verify_checkpoint(host, directory);
  TrainerState state;
  together(host, [&] { state = load_verified(directory, engine); });
  return state;
}

}  // namespace kintsugi
