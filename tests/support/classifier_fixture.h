#pragma once

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/config.h"
#include "support/paths.h"
#include "support/raw_model.h"
#include "support/temporary_directory.h"
#include "tensor/safetensors.h"

namespace kintsugi {

// A reference run of PyTorch (tests/data/make_finetune_fixtures.py), and the classifier that it
// starts from as a model directory.
class ClassifierFixture {
 public:
  explicit ClassifierFixture(const std::string& family)
      : expected_(std::filesystem::path(test_data_directory()) /
                  ("finetune/classification-" + family + ".safetensors")),
        base_(std::filesystem::path(test_data_directory()) / family) {
    const auto& ids = expected_.find("ids")->shape;
    steps = ids[0];
    rows = ids[1];
    length = ids[2];
    labels = expected_.find("class_weights")->shape[0];
    config = read_hf_config(base_ / "config.json");
    for (std::int64_t i = 0; i < labels; ++i) config.labels.push_back("c" + std::to_string(i));
    config.complete_and_check();
    RawModel model = read_raw_model(base_);
    model.erase("lm_head.weight");
    RawTensor score{"F32", {labels, config.hidden_size}, {}};
    for (const float value : floats("score.weight")) score.values.push_back(value);
    model["score.weight"] = std::move(score);
    write_raw_model(directory_.path(), model, false);
    directory_.write("config.json", write_hf_config(config, DType::F32));
  }

  const std::filesystem::path& directory() const { return directory_.path(); }
  const std::filesystem::path& base() const { return base_; }  // the language model

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const SafetensorsEntry* entry = expected_.find(name);
    if (entry == nullptr) throw std::runtime_error("no " + name);
    const auto bytes = expected_.bytes(*entry);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> floats(const std::string& name) const { return read<float>(name); }
  std::vector<std::int32_t> integers(const std::string& name) const {
    return read<std::int32_t>(name);
  }

  // The documents of the first step.
  std::vector<std::vector<std::int32_t>> documents() const {
    const auto ids = integers("ids"), lengths = integers("lengths");
    std::vector<std::vector<std::int32_t>> all;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto first = ids.begin() + row * length;
      all.emplace_back(first, first + lengths[static_cast<std::size_t>(row)]);
    }
    return all;
  }

  std::int64_t steps = 0, rows = 0, length = 0, labels = 0;
  ModelConfig config;

 private:
  SafetensorsFile expected_;
  std::filesystem::path base_;
  TemporaryDirectory directory_;
};

}  // namespace kintsugi
