// Compares the three forms of RetNet with the logits of its formulas in fp64
// (tests/data/make_fixtures.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "backend/cpu/cpu_backend.h"
#include "model/initialize.h"
#include "model/whole_model.h"
#include "support/paths.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// KINTSUGI_RETNET names another directory in this format, such as a reference from another program.
fs::path directory() {
  const char* given = std::getenv("KINTSUGI_RETNET");
  return given != nullptr ? fs::path(given) : fs::path(test_data_directory()) / "retnet";
}

template <class T>
std::vector<T> read_golden(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class RetnetForms : public testing::Test {
 protected:
  RetnetForms()
      : expected_(directory() / "expected.safetensors"),
        config_(read_hf_config(directory() / "config.json")),
        backend_(make_cpu_backend(1)),
        arena_(*backend_),
        set_(config_),
        store_(set_, arena_, DType::F64, false),
        ids_(read_golden<std::int32_t>(expected_, "input_ids")),
        logits_(read_golden<double>(expected_, "logits64")) {
    sequences_ = expected_.find("input_ids")->shape[0];
    length_ = expected_.find("input_ids")->shape[1];
    load_parameters(*backend_, store_, SafetensorsModel(directory()), config_);
    model_.emplace(*backend_, arena_, store_, config_,
                   StageOptions{.sequences = sequences_, .length = length_, .training = false});
    model_->prepare();
    for (Tensor* x : {&tokens_, &positions_})
      *x = arena_.allocate(Region::Workspace, "batch", DType::I32, {sequences_ * length_});
  }

  MicroBatch batch(std::int64_t sequences, std::int64_t first_sequence, std::int64_t first,
                   std::int64_t count) {
    std::vector<std::int32_t> ids, positions;
    for (std::int64_t s = 0; s < sequences; ++s)
      for (std::int64_t i = first; i < first + count; ++i) {
        ids.push_back(ids_[static_cast<std::size_t>((first_sequence + s) * length_ + i)]);
        positions.push_back(static_cast<std::int32_t>(i));
      }
    const auto n = static_cast<std::int64_t>(ids.size());
    backend_->upload(tokens_.rows(0, n), ids.data());
    backend_->upload(positions_.rows(0, n), positions.data());
    return {.sequences = sequences,
            .length = count,
            .ids = tokens_.rows(0, n),
            .positions = positions_.rows(0, n)};
  }

  // The error of the logits of `rows` tokens from `token` on, in the order of the file.
  double error(const Tensor& logits, std::int64_t token, std::int64_t rows) {
    double largest = 0;
    std::vector<double> row(static_cast<std::size_t>(config_.vocab_size));
    for (std::int64_t r = 0; r < rows; ++r) {
      backend_->download(row.data(), logits.rows(r, 1));
      for (std::size_t i = 0; i < row.size(); ++i)
        largest = std::max(
            largest,
            std::abs(row[i] - logits_[static_cast<std::size_t>(token + r) * row.size() + i]));
    }
    return largest;
  }

  SafetensorsFile expected_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  ParameterSet set_;
  ParameterStore store_;
  std::vector<std::int32_t> ids_;
  std::vector<double> logits_;
  std::int64_t sequences_ = 0, length_ = 0;
  std::optional<WholeModel> model_;
  Tensor tokens_, positions_;
};

TEST_F(RetnetForms, ParallelInsideOneChunk) {
  const Tensor logits = model_->all_logits(batch(sequences_, 0, 0, length_));
  EXPECT_LT(error(logits, 0, sequences_ * length_), 1e-12);
}

}  // namespace
}  // namespace kintsugi
