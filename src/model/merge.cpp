#include "model/merge.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "core/log.h"
#include "core/new_directory.h"
#include "model/model_directory_files.h"
#include "tensor/elements.h"
#include "tensor/safetensors_files.h"

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

// A rename would delete an input that is the output, or inside it.
void check_output(const Models& models, const fs::path& output) {
  const fs::path target = fs::weakly_canonical(output);
  for (const auto& model : models) {
    const fs::path input = fs::weakly_canonical(model->directory);
    const auto end = std::mismatch(target.begin(), target.end(), input.begin(), input.end()).first;
    if (end == target.end())
      user_error("--output {} would replace the input {}: choose another directory",
                 output.string(), model->directory.string());
  }
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

std::vector<SafetensorsWriter::Announced> announced_tensors(const StoredModel& model,
                                                            std::optional<DType> dtype) {
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const std::string& name : model.names) {
    const SafetensorsEntry& entry = *model.tensors.find(name).entry;
    if (!entry.dtype)
      user_error("tensor {} in {} is stored as {}, which cannot be converted", name,
                 model.directory.string(), entry.dtype_name);
    if (entry.shape.size() > kMaxRank)
      user_error("tensor {} in {} has {} dimensions, at most {} are supported", name,
                 model.directory.string(), entry.shape.size(), kMaxRank);
    Shape shape;
    for (const std::int64_t extent : entry.shape) shape.append(extent);
    tensors.push_back({name, dtype && is_float(*entry.dtype) ? *dtype : *entry.dtype, shape});
  }
  return tensors;
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
  Merger(const Models& models, const MergeOptions& options)
      : models_(models),
        options_(options),
        reader_(memory_, options.block),
        doubles_(memory_, 2, options.block),
        rounded_(memory_, 1, options.block * sizeof(double)) {
    for (const std::string& name : models.front()->names)
      all_ += elements_of(*models.front()->tensors.find(name).entry);
  }

  void write(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor) {
    std::vector<Location> inputs;
    for (const auto& model : models_) inputs.push_back(locate_tensor(model->tensors, tensor.name));
    const std::int64_t elements = tensor.shape.elements();
    if (elements == 0) writer.append(tensor.name, nullptr, 0);
    const bool copied = !is_float(tensor.dtype) ||
                        (inputs.size() == 1 && inputs.front().entry->dtype == tensor.dtype);
    const Combination combination = copied ? Combination{} : combination_of(inputs, elements);
    for_each_block(elements, reader_.block(), [&](std::int64_t first, std::size_t count) {
      if (copied)
        copy(writer, tensor, inputs, first, count);
      else
        combine(writer, tensor, inputs, combination, first, count);
      done_ += static_cast<std::int64_t>(count);
      if (options_.progress) options_.progress(done_, all_);
    });
  }

  void report(MergeResult& result) const {
    result.elements = all_;
    result.peak_buffer_bytes = memory_.peak_bytes();
    result.non_finite = non_finite_;
    result.first_non_finite = first_non_finite_;
  }

 private:
  Combination combination_of(const std::vector<Location>& inputs, std::int64_t elements) {
    if (!options_.weights.empty()) return {options_.weights};
    if (options_.slerp) {
      double a_a = 0, a_b = 0, b_b = 0;
      for_each_block(elements, reader_.block(), [&](std::int64_t first, std::size_t count) {
        const std::span<double> a = doubles_.get(0, count), b = doubles_.get(1, count);
        reader_.read(inputs[0], first, a);
        reader_.read(inputs[1], first, b);
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
  void combine(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
               const std::vector<Location>& inputs, const Combination& combination,
               std::int64_t first, std::size_t count) {
    const std::span<double> sums = doubles_.get(0, count), values = doubles_.get(1, count);
    bool empty = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (combination.factors[i] == 0) continue;
      reader_.read(inputs[i], first, values);
      (empty ? scale_into : add_scaled)(sums, combination.factors[i], values);
      empty = false;
    }
    if (combination.divisor != 1)
      for (double& sum : sums) sum /= combination.divisor;
    const RoundingReport rounding = from_doubles(sums, tensor.dtype, rounded_[0]);
    if (rounding.overflows > 0)
      user_error("tensor {} has values that are too large for {}: choose another --dtype",
                 tensor.name, to_string(tensor.dtype));
    if (rounding.non_finite > 0 && non_finite_ == 0) first_non_finite_ = tensor.name;
    non_finite_ += rounding.non_finite;
    writer.append_part(tensor.name, rounded_[0], count * size_of(tensor.dtype));
  }

  // Integers, such as masks, are not averaged: they must be equal.
  void copy(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
            const std::vector<Location>& inputs, std::int64_t first, std::size_t count) {
    const std::span<const std::byte> bytes = reader_.stored(inputs.front(), first, count);
    std::memcpy(rounded_[0], bytes.data(), bytes.size());
    for (std::size_t i = 1; i < inputs.size(); ++i)
      if (std::memcmp(rounded_[0], reader_.stored(inputs[i], first, count).data(),
                      count * size_of(tensor.dtype)) != 0)
        user_error("tensor {} of {} numbers differs between {} and {}: it cannot be averaged",
                   tensor.name, to_string(tensor.dtype), models_.front()->directory.string(),
                   models_[i]->directory.string());
    writer.append_part(tensor.name, rounded_[0], count * size_of(tensor.dtype));
  }

  const Models& models_;
  const MergeOptions& options_;
  CountedMemory memory_;
  BlockReader reader_;
  DoubleBlocks doubles_;
  HostBuffers rounded_;  // one block of the result
  std::int64_t all_ = 0, done_ = 0;
  std::size_t non_finite_ = 0;
  std::string first_non_finite_;
};

}  // namespace

SlerpFactors slerp_factors(double a_a, double a_b, double b_b, double t) {
  constexpr double kNearlyParallel = 0.9995;
  const double norms = std::sqrt(a_a) * std::sqrt(b_b), cosine = a_b / norms;
  if (!(std::fabs(cosine) <= kNearlyParallel)) return {1 - t, t};  // also if a norm is zero
  const double angle = std::acos(cosine), sine = std::sin(angle);
  return {std::sin((1 - t) * angle) / sine, std::sin(t * angle) / sine};
}

MergeResult merge_models(const std::vector<fs::path>& paths, const fs::path& output,
                         const MergeOptions& options) {
  check_options(paths.size(), options);
  const Models models = open_models(paths);
  const StoredModel& first = *models.front();
  check_output(models, output);
  const SafetensorsFiles files =
      divide_into_files("model", announced_tensors(first, options.dtype), options.max_shard_bytes);
  MergeResult result{.tensors = first.names.size(), .files = files.files.size()};
  const std::vector<ModelDirectoryFile> texts =
      model_directory_files(first.directory, first.config, options.dtype);
  NewDirectory directory(output, options.overwrite, "config.json");
  Merger merger(models, options);
  for (const SafetensorsFiles::File& file : files.files) {
    SafetensorsWriter writer(directory.path() / file.name, file.tensors);
    for (const auto& tensor : file.tensors) merger.write(writer, tensor);
    result.bytes += writer.finish().bytes;
  }
  if (!files.index.empty()) directory.write(files.index_name, files.index);
  for (const ModelDirectoryFile& file : texts) directory.write(file.name, file.content);
  merger.report(result);
  directory.publish();
  return result;
}

}  // namespace kintsugi
