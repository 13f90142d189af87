#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "backend/backend.h"
#include "model/parameter_store.h"
#include "tensor/safetensors.h"

namespace kintsugi {

// Where the elements of parameters come from. Any range can be read, so that a rank reads only what
// it holds.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // Elements [first, first + values.size()) of a whole parameter.
  virtual void read(const Parameter& parameter, std::int64_t first,
                    std::span<double> values) const = 0;
};

// Fresh weights: a function of the seed, the parameter's public name and the element's global
// index, so that every layout starts from the same model.
class FreshParameters final : public ParameterSource {
 public:
  explicit FreshParameters(std::uint64_t seed) : seed_(seed) {}
  void read(const Parameter& parameter, std::int64_t first,
            std::span<double> values) const override;

 private:
  std::uint64_t seed_;
};

// Tensors `prefix` + public name of a Hugging Face directory or file. UserError for one that is
// missing, has another shape or a type that cannot be converted.
class StoredParameters final : public ParameterSource {
 public:
  // Some parameters, if the files do not have all of the set's.
  StoredParameters(const SafetensorsModel& files, const ParameterSet& set, std::string prefix = "",
                   const std::function<bool(const Parameter&)>& has = {});
  void read(const Parameter& parameter, std::int64_t first,
            std::span<double> values) const override;

 private:
  const SafetensorsModel* files_;
  std::string prefix_;
};

// Elements [begin, end) of the set's numbering to `destination` (end - begin), rounded to its type;
// padding between parameters becomes 0.
void fill_from(const ParameterSource& source, Backend& backend, Tensor destination,
               const ParameterSet& set, std::int64_t begin, std::int64_t end);

// All weights of a store that has its own memory.
void initialize_parameters(Backend& backend, const ParameterStore& store, std::uint64_t seed);
void load_parameters(Backend& backend, const ParameterStore& store, const SafetensorsModel& source);

}  // namespace kintsugi
