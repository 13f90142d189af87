#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/progress.h"
#include "model/files/file_loader.h"
#include "model/files/fingerprint.h"
#include "model/files/stored_model.h"
#include "model/parameter_store.h"
#include "tensor/safetensors.h"

namespace kintsugi {

// Provides the values of parameters: random, or from files. A rank requests only the ranges it
// holds.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // Writes elements [begin, end) of the parameter set's buffer to `destination` (end - begin),
  // rounded to its dtype. Padding between parameters becomes 0.
  void fill(Backend& backend, const Tensor& destination, const ParameterSet& set,
            std::int64_t begin, std::int64_t end) const;

 private:
  friend class ChosenParameters;
  // Fills `destination` with the elements from `first` on of this rank's shard of a parameter.
  virtual void fill_parameter(Backend& backend, const Tensor& destination,
                              const Parameter& parameter, int tp_rank,
                              std::int64_t first) const = 0;
};

// Random initial weights. Each is a function of the seed, the parameter's public name and the
// element's global index, so that every layout starts from the same model.
class FreshParameters final : public ParameterSource {
 public:
  explicit FreshParameters(std::uint64_t seed) : seed_(seed) {}

 private:
  void fill_parameter(Backend& backend, const Tensor& destination, const Parameter& parameter,
                      int tp_rank, std::int64_t first) const override;

  std::uint64_t seed_;
};

// Each parameter from its own source, which must outlive this object: a base model and new
// adapters.
class ChosenParameters final : public ParameterSource {
 public:
  using Choose = std::function<const ParameterSource&(const Parameter& parameter)>;
  explicit ChosenParameters(Choose choose) : choose_(std::move(choose)) {}

 private:
  void fill_parameter(Backend& backend, const Tensor& destination, const Parameter& parameter,
                      int tp_rank, std::int64_t first) const override {
    choose_(parameter).fill_parameter(backend, destination, parameter, tp_rank, first);
  }

  Choose choose_;
};

// Per new row of a table, the rows in the file that it is the mean of.
using SubtokenRows = std::vector<std::vector<std::int32_t>>;

// Tables of a vocabulary that has grown: the files hold only the first `rows` rows of these
// parameters. Each new row is the mean of its subtokens' rows, or of all rows in the file if it has
// none.
struct GrownTables {
  std::vector<std::string> names = {};
  std::int64_t rows = 0;
  SubtokenRows subtokens = {};  // from row `rows` on; missing entries count as empty

  bool has(const Parameter& parameter) const;
  // The shape of a parameter in the files.
  Shape stored(const Parameter& parameter) const;
};

// Reads the tensors `prefix` + public name of a Hugging Face directory or file. Throws UserError if
// one is missing, has another shape or a type that cannot be converted. fill() only announces the
// elements to the loader; FileLoader::run() loads them.
class StoredParameters final : public ParameterSource {
 public:
  // `has` selects the parameters that the files hold; without it, all of the set.
  StoredParameters(FileLoader& loader, const SafetensorsModel& files, const ParameterSet& set,
                   std::string prefix = "", const std::function<bool(const Parameter&)>& has = {},
                   GrownTables grown = {});

 private:
  void fill_parameter(Backend& backend, const Tensor& destination, const Parameter& parameter,
                      int tp_rank, std::int64_t first) const override;

  FileLoader* loader_;
  const SafetensorsModel* files_;
  std::string prefix_;
  GrownTables grown_;
};

// These fill all weights of a store.
void initialize_parameters(Backend& backend, const ParameterStore& store, std::uint64_t seed);

struct LoadOptions {
  UnusedWeights unused = UnusedWeights::Refuse;
  VerifyShare verify = {};     // the share of this rank in verifying the files
  ProgressCall progress = {};  // bytes
};
// `source` has the weights of the model `config`. UserError if a tensor is missing or left over, or
// if a file does not match its checksum.
void load_parameters(Backend& backend, const ParameterStore& store, const SafetensorsModel& source,
                     const ModelConfig& config, const LoadOptions& options = {});

}  // namespace kintsugi
