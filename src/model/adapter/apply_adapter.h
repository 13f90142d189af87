#pragma once

#include "backend/backend.h"
#include "model/adapter/stored_adapter.h"
#include "model/files/fingerprint.h"
#include "model/initialize.h"
#include "model/parameter_store.h"

namespace kintsugi {

// Merges an adapter into weights in memory, which are those of its base model: adds the low-rank
// matrices, and replaces the parameters that were trained whole. A rank changes its shard. Sums are
// rounded once. Its files are verified first; `verify` is the share of this rank.
void apply_adapter(Backend& backend, const ParameterStore& store, const StoredAdapter& adapter,
                   VerifyShare verify = {});

// Reads the trained parameters of a model with adapters from a PEFT directory: the adapters and the
// modules that are trained whole. Throws UserError if one is missing, or if the directory has
// others. fill() only announces the elements to the loader.
class AdapterParameters final : public ParameterSource {
 public:
  // `model` is the whole model, of which a rank holds a shard.
  AdapterParameters(FileLoader& loader, const StoredAdapter& adapter, const ModelConfig& model);

 private:
  void fill_parameter(Backend& backend, const Tensor& destination, const Parameter& parameter,
                      int tp_rank, std::int64_t first) const override;

  FileLoader* loader_;
  const StoredAdapter* adapter_;
};

}  // namespace kintsugi
