#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "model/parameter_set.h"
#include "tensor/safetensors.h"

namespace kintsugi {

// Fresh weights: a function of the seed, the parameter's public name and the element's global
// index, so that every layout starts from the same model. `master`, when it is not the weights
// themselves, receives them unrounded.
void initialize_parameters(Backend& backend, const ParameterStore& store, Tensor master,
                           std::uint64_t seed);

// Weights from a Hugging Face directory or file, converted to the store's precision. Throws
// UserError for a tensor that is missing, has another shape or a type we cannot convert.
void load_parameters(Backend& backend, const ParameterStore& store, Tensor master,
                     const SafetensorsModel& source);

}  // namespace kintsugi
