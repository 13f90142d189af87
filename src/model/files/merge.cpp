#include "model/files/merge.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "core/log.h"
#include "tensor/dtype.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Location = SafetensorsModel::Location;
using Models = std::vector<std::unique_ptr<StoredModel>>;

// ---- checks

void check_options(std::size_t models, const MergeOptions& options) {
  constexpr double kTolerance = 1e-6;
  if (models == 0) user_error("give at least one model directory");
  if (options.slerp && models != 2)
    user_error("--slerp interpolates between two models, but {} were given", models);
  if (options.weights.empty()) return;
  if (options.slerp) user_error("--slerp and --weights cannot be combined: give one of them");
  if (options.weights.size() != models)
    user_error("--weights has {} numbers for {} models: give one for each", options.weights.size(),
               models);
  for (const double weight : options.weights)
    if (!(std::isfinite(weight) && weight >= 0))
      user_error("--weights has {}: every weight must be zero or more", weight);
  const double sum = std::accumulate(options.weights.begin(), options.weights.end(), 0.0);
  if (std::fabs(sum - 1) <= kTolerance) return;
  if (!(sum > 0)) user_error("--weights sum to {}, but must sum to 1", sum);
  std::vector<std::string> normalized;
  for (const double weight : options.weights)
    normalized.push_back(fmt::format("{:.9g}", weight / sum));
  user_error("--weights sum to {:.9g}, but must sum to 1: for these proportions give {}", sum,
             fmt::join(normalized, ","));
}

void check_configs(const StoredModel& first, const StoredModel& other) {
  if (first.config.family != other.config.family)
    user_error("{} is a {} model and {} is a {} model: only models of one family can be merged",
               first.directory.string(), to_string(first.config.family), other.directory.string(),
               to_string(other.config.family));
  if (first.config == other.config) return;
  log_warning(
      "{} and {} have different configurations (kintsugi model diff shows them): the merged model "
      "has that of the first",
      first.directory.string(), other.directory.string());
}

std::string shape_text(const SafetensorsEntry& entry) {
  return fmt::format("[{}]", fmt::join(entry.shape, ", "));
}

void check_tensors(const StoredModel& first, const StoredModel& other) {
  for (const std::string& name : other.names)
    if (!locate_tensor(first.tensors, name))
      user_error(
          "tensor {} is in {} but not in {}: only models with the same tensors can be merged", name,
          other.directory.string(), first.directory.string());
  for (const std::string& name : first.names) {
    const Location a = first.tensors.find(name), b = locate_tensor(other.tensors, name);
    if (!b)
      user_error(
          "tensor {} is in {} but not in {}: only models with the same tensors can be merged", name,
          first.directory.string(), other.directory.string());
    if (a.entry->shape != b.entry->shape)
      user_error("tensor {} has shape {} in {} and {} in {}: only equal shapes can be merged", name,
                 shape_text(*a.entry), first.directory.string(), shape_text(*b.entry),
                 other.directory.string());
    const bool floats = a.entry->dtype && is_float(*a.entry->dtype);
    const bool same_kind = b.entry->dtype && floats == is_float(*b.entry->dtype);
    if (!same_kind || (!floats && a.entry->dtype != b.entry->dtype))
      user_error("tensor {} is stored as {} in {} and as {} in {}: these cannot be merged", name,
                 a.entry->dtype_name, first.directory.string(), b.entry->dtype_name,
                 other.directory.string());
  }
}

Models open_models(const std::vector<fs::path>& paths) {
  Models models;
  for (const fs::path& path : paths) {
    models.push_back(std::make_unique<StoredModel>(path));
    if (models.size() == 1) continue;
    check_configs(*models.front(), *models.back());
    check_tensors(*models.front(), *models.back());
  }
  return models;
}

// ---- arithmetic

// The result is (Σ factors[i] · x[i]) / divisor. The plain average divides once, so that sums that
// are exact in double are rounded once.
struct Combination {
  std::vector<double> factors;
  double divisor = 1;
};

class Merger {
 public:
  Merger(const Models& models, const MergeOptions& options) : models_(models), options_(options) {}

  void write(TensorBlocks& blocks, SafetensorsWriter& writer,
             const SafetensorsWriter::Announced& tensor) const {
    std::vector<Location> inputs;
    for (const auto& model : models_) inputs.push_back(locate_tensor(model->tensors, tensor.name));
    if (inputs.size() == 1) return blocks.converted(writer, tensor, inputs.front());
    if (!is_float(tensor.dtype)) return copy(blocks, writer, tensor, inputs);
    const Combination combination = combination_of(blocks, inputs, tensor.shape.elements());
    blocks.computed(writer, tensor, [&](std::int64_t first, std::span<double> sums) {
      combine(blocks, inputs, combination, first, sums);
    });
  }

 private:
  Combination combination_of(TensorBlocks& blocks, const std::vector<Location>& inputs,
                             std::int64_t elements) const {
    if (!options_.weights.empty()) return {options_.weights};
    if (options_.slerp) {
      double a_a = 0, a_b = 0, b_b = 0;
      for_each_block(elements, blocks.reader().block(), [&](std::int64_t first, std::size_t count) {
        const std::span<double> a = blocks.result(count), b = blocks.scratch(count);
        blocks.reader().read(inputs[0], first, a);
        blocks.reader().read(inputs[1], first, b);
        a_a += dot_product(a, a);
        a_b += dot_product(a, b);
        b_b += dot_product(b, b);
      });
      const SlerpFactors factors = slerp_factors(a_a, a_b, b_b, *options_.slerp);
      return {{factors.first, factors.second}};
    }
    return {std::vector<double>(inputs.size(), 1.0), static_cast<double>(inputs.size())};
  }

  // An input with factor 0 does not contribute, not even its infinities.
  static void combine(TensorBlocks& blocks, const std::vector<Location>& inputs,
                      const Combination& combination, std::int64_t first, std::span<double> sums) {
    const std::span<double> values = blocks.scratch(sums.size());
    bool empty = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (combination.factors[i] == 0) continue;
      blocks.reader().read(inputs[i], first, values);
      (empty ? scale_into : add_scaled)(sums, combination.factors[i], values);
      empty = false;
    }
    if (combination.divisor != 1)
      for (double& sum : sums) sum /= combination.divisor;
  }

  // Integers, such as masks, are not averaged: they must be equal.
  void copy(TensorBlocks& blocks, SafetensorsWriter& writer,
            const SafetensorsWriter::Announced& tensor, const std::vector<Location>& inputs) const {
    const auto check = [&](std::int64_t first, std::span<const std::byte> bytes) {
      const std::size_t count = bytes.size() / size_of(tensor.dtype);
      for (std::size_t i = 1; i < inputs.size(); ++i)
        if (std::memcmp(bytes.data(), blocks.reader().stored(inputs[i], first, count).data(),
                        bytes.size()) != 0)
          user_error("tensor {} of {} numbers differs between {} and {}: it cannot be averaged",
                     tensor.name, to_string(tensor.dtype), models_.front()->directory.string(),
                     models_[i]->directory.string());
    };
    blocks.copied(writer, tensor, inputs.front(), check);
  }

  const Models& models_;
  const MergeOptions& options_;
};

}  // namespace

SlerpFactors slerp_factors(double a_a, double a_b, double b_b, double t) {
  constexpr double kNearlyParallel = 0.9995;
  const double norms = std::sqrt(a_a) * std::sqrt(b_b), cosine = a_b / norms;
  if (!(std::fabs(cosine) <= kNearlyParallel)) return {1 - t, t};  // also if a norm is zero
  const double angle = std::acos(cosine), sine = std::sin(angle);
  return {std::sin((1 - t) * angle) / sine, std::sin(t * angle) / sine};
}

WrittenModel merge_models(const std::vector<fs::path>& paths, const fs::path& output,
                          const MergeOptions& options) {
  check_options(paths.size(), options);
  const Models models = open_models(paths);
  const StoredModel& first = *models.front();
  for (const auto& model : models) check_output_is_no_input(output, model->directory);
  for (const auto& model : models) model->verify();
  const Merger merger(models, options);
  return write_model(
      first, first.directory, output, options.output,
      [&](TensorBlocks& blocks, SafetensorsWriter& writer,
          const SafetensorsWriter::Announced& tensor) { merger.write(blocks, writer, tensor); });
}

}  // namespace kintsugi
