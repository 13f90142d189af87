#include "train/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "model/initialize.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

// One tensor to store: its public name and where its elements lie on the device.
struct Item {
  std::string name;
  Tensor tensor;
};

// Collects files of a checkpoint under construction and their hashes.
class DirectoryWriter {
 public:
  explicit DirectoryWriter(fs::path directory) : directory_(std::move(directory)) {
    std::error_code error;
    fs::remove_all(directory_, error);
    fs::create_directories(directory_, error);
    if (error) failure("cannot create {}: {}", directory_.string(), error.message());
  }

  void text(const std::string& name, const std::string& content) {
    FileWriter writer(directory_ / name);
    writer.write(content.data(), content.size());
    writer.close();
    hashes_[name] = hex64(hash64(content));
  }

  // Tensors in files of at most max_bytes: stem.safetensors, or stem-0000i-of-0000n.safetensors
  // with an index.
  void tensors(Backend& backend, const std::string& folder, const std::string& stem,
               const std::vector<Item>& items, std::uint64_t max_bytes) {
    std::vector<std::vector<Item>> shards(1);
    std::uint64_t in_shard = 0, total = 0;
    for (const Item& item : items) {
      if (!shards.back().empty() && in_shard + item.tensor.bytes() > max_bytes) {
        shards.emplace_back();
        in_shard = 0;
      }
      shards.back().push_back(item);
      in_shard += item.tensor.bytes();
      total += item.tensor.bytes();
    }
    Json weight_map = Json::object();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string file = shards.size() == 1 ? fmt::format("{}.safetensors", stem)
                                                  : fmt::format("{}-{:05}-of-{:05}.safetensors",
                                                                stem, i + 1, shards.size());
      shard(backend, folder + file, shards[i]);
      for (const Item& item : shards[i]) weight_map[item.name] = file;
    }
    if (shards.size() > 1)
      text(folder + stem + ".safetensors.index.json",
           Json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(2) + "\n");
  }

  void folder(const std::string& name) {
    std::error_code error;
    fs::create_directories(directory_ / name, error);
    if (error) failure("cannot create {}: {}", (directory_ / name).string(), error.message());
  }

  void finish() {
    text("checksums.json", Json{{"algorithm", "xxh3-64"}, {"files", hashes_}}.dump(2) + "\n");
    for (const auto& entry : fs::directory_iterator(directory_))
      if (entry.is_directory()) sync_directory(entry.path());
    sync_directory(directory_);
  }

 private:
  void shard(Backend& backend, const std::string& name, const std::vector<Item>& items) {
    std::vector<SafetensorsWriter::Announced> announced;
    for (const Item& item : items)
      announced.push_back({item.name, item.tensor.dtype(), item.tensor.shape()});
    SafetensorsWriter writer(directory_ / name, std::move(announced));
    for (const Item& item : items) {
      host_.resize(item.tensor.bytes());
      backend.download(host_.data(), item.tensor);
      writer.append(item.name, host_.data(), host_.size());
    }
    hashes_[name] = hex64(writer.finish().hash);
  }

  fs::path directory_;
  std::map<std::string, std::string> hashes_;
  std::vector<std::byte> host_;
};

// A flat buffer's tensors, each under prefix + public name.
void append_items(std::vector<Item>& items, const ParameterSet& set, const Tensor& flat,
                  const std::string& prefix) {
  for (const Parameter& parameter : set.parameters()) {
    const std::int64_t n = parameter.shape.elements();
    items.push_back(
        {prefix + parameter.name, flat.rows(parameter.offset, n).view(parameter.shape)});
  }
}

std::vector<Item> optimizer_items(Engine& engine) {
  const Optimizer& optimizer = engine.optimizer();
  std::vector<Item> items;
  if (optimizer.has_master())
    append_items(items, engine.parameters(), optimizer.master(), "master.");
  append_items(items, engine.parameters(), optimizer.moment1(), "exp_avg.");
  append_items(items, engine.parameters(), optimizer.moment2(), "exp_avg_sq.");
  return items;
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

void write_contents(DirectoryWriter& writer, Engine& engine, const TrainerState& state,
                    const CheckpointOptions& options) {
  const EngineOptions& engine_options = engine.options();
  writer.text("config.json", write_hf_config(engine_options.model, engine_options.precision));
  writer.text("generation_config.json", write_hf_generation_config(engine_options.model));
  for (const Tokenizer::File& file : options.tokenizer) writer.text(file.name, file.content);
  std::vector<Item> weights;
  append_items(weights, engine.parameters(), engine.store().weights(), "");
  writer.tensors(engine.backend(), "", "model", weights, options.max_shard_bytes);
  writer.folder("optimizer");
  writer.tensors(engine.backend(), "optimizer/", "optimizer", optimizer_items(engine),
                 options.max_shard_bytes);
  writer.text("trainer.json", state_to_json(state, engine_options.precision));
  writer.finish();
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

}  // namespace

fs::path save_checkpoint(const fs::path& checkpoints, Engine& engine, const TrainerState& state,
                         const CheckpointOptions& options) {
  const std::string name = fmt::format("step-{:08}", state.step);
  const fs::path target = checkpoints / name,
                 temporary = checkpoints / fmt::format(".{}.tmp", name);
  const fs::path replaced = checkpoints / fmt::format(".{}.old", name);
  const fs::path link = checkpoints / ".latest.tmp";
  try {
    DirectoryWriter writer(temporary);
    write_contents(writer, engine, state, options);
    if (fs::exists(target)) rename_or_fail(target, replaced);  // the same step, saved again
    rename_or_fail(temporary, target);
    sync_directory(checkpoints);
    std::error_code ignored;
    fs::remove(link, ignored);
    fs::create_directory_symlink(name, link);
    rename_or_fail(link, checkpoints / "latest");
    sync_directory(checkpoints);
    fs::remove_all(replaced, ignored);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    fs::remove(link, ignored);
    if (!fs::exists(target, ignored) && fs::exists(replaced, ignored))
      fs::rename(replaced, target, ignored);
    failure("the checkpoint of step {} was not saved, the ones before it are untouched: {}",
            state.step, error.what());
  }
  remove_old(checkpoints, target, options.keep);
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

void verify_checksums(const fs::path& directory) {
  const Json checksums = read_json(directory / "checksums.json");
  if (!checksums.contains("files") || !checksums["files"].is_object())
    user_error("{} lists no files: the checkpoint is damaged",
               (directory / "checksums.json").string());
  for (const auto& [name, expected] : checksums["files"].items()) {
    const MappedFile file(directory / name);
    if (!expected.is_string() ||
        hex64(hash64(file.bytes().data(), file.bytes().size())) != expected.get<std::string>())
      user_error(
          "{} does not match its checksum: it is damaged; delete this checkpoint's directory and "
          "run again to continue from the one before",
          (directory / name).string());
  }
}

void load_flat(Backend& backend, const ParameterSet& set, const Tensor& flat,
               const SafetensorsModel& source, const std::string& prefix) {
  for (const Parameter& parameter : set.parameters()) {
    const auto found = source.find(prefix + parameter.name);
    const std::int64_t n = parameter.shape.elements();
    if (!found || found.entry->dtype != flat.dtype() ||
        found.bytes().size() != static_cast<std::size_t>(n) * size_of(flat.dtype()))
      user_error("the checkpoint's optimizer state has no {}{} of type {} and shape {}", prefix,
                 parameter.name, to_string(flat.dtype()), to_string(parameter.shape));
    backend.upload(flat.rows(parameter.offset, n), found.bytes().data());
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

TrainerState load_checkpoint(const fs::path& directory, Engine& engine) {
  verify_checksums(directory);
  const EngineOptions& options = engine.options();
  const ModelConfig saved = read_hf_config(directory / "config.json");
  if (write_hf_config(saved, options.precision) !=
      write_hf_config(options.model, options.precision))
    user_error(
        "the checkpoint {} holds another model than the configuration: compare its config.json "
        "with `model:`, or choose another run.dir",
        directory.string());
  Backend& backend = engine.backend();
  const ParameterSet& set = engine.parameters();
  Optimizer& optimizer = engine.optimizer();
  const TrainerState state = state_from_json(directory / "trainer.json");
  const SafetensorsModel optimizer_state(directory / "optimizer", "optimizer");
  // Padding between tensors is zero in a fresh run; keep it so.
  backend.fill(engine.store().weights(), 0.0);
  if (optimizer.has_master()) backend.fill(optimizer.master(), 0.0);
  optimizer.zero_state();
  load_parameters(backend, engine.store(), Tensor(), SafetensorsModel(directory));
  if (optimizer.has_master())
    load_flat(backend, set, optimizer.master(), optimizer_state, "master.");
  load_flat(backend, set, optimizer.moment1(), optimizer_state, "exp_avg.");
  load_flat(backend, set, optimizer.moment2(), optimizer_state, "exp_avg_sq.");
  return state;
}

}  // namespace kintsugi
