#include "model/fp8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/units.h"
#include "model/parameter_set.h"

namespace kintsugi {
namespace {

bool has(const std::vector<std::string>& filter, std::string_view site) {
  return std::ranges::find(filter, site) != filter.end();
}

}  // namespace

void add_fp8(ModelSpec& model, const Fp8Config& fp8) {
  if (!fp8.on()) return;
  const auto layers = static_cast<std::int64_t>(model.layers.size());
  int sites = 0;
  for (std::int64_t i = fp8.bf16_layers.first; i < layers - fp8.bf16_layers.last; ++i)
    for (const LinearUse& use : model.layers[i].linears())
      if (!use.site.empty() && !has(fp8.filter, use.site))
        use.linear->fp8 = Fp8Spec{.one_scale = fp8.recipe == Fp8Recipe::Tensorwise &&
                                               use.experts == 0,  // their rows have scales
                                  .power_of_two = fp8.power_of_two_scales,
                                  .wgrad = fp8.wgrad,
                                  .fast_forward = fp8.fast_accumulation != FastAccumulation::None,
                                  .fast_backward = fp8.fast_accumulation == FastAccumulation::All,
                                  .site = sites++};
}

std::vector<std::string> fp8_sites(LayerSpec layer) {
  std::vector<std::string> names;
  for (const LinearUse& use : layer.linears())
    if (use.linear->fp8) names.emplace_back(use.site);
  return names;
}

std::vector<std::string> fp8_sites(const ModelSpec& model) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.layers.size(); ++i)
    for (const std::string& site : fp8_sites(model.layers[i]))
      names.push_back(fmt::format("layers.{}.{}", i, site));
  return names;
}

void check_fp8(const ModelConfig& config) {
  const Fp8Config& fp8 = config.fp8;
  if (!fp8.on()) return;
  ModelSpec model = model_spec(config);
  std::vector<std::string> sites = {"head"};
  for (LayerSpec& layer : model.layers)
    for (const LinearUse& use : layer.linears())
      if (!use.site.empty() && !has(sites, use.site)) sites.emplace_back(use.site);
  for (const std::string& site : fp8.filter)
    if (!has(sites, site)) {
      const std::string near = nearest_word(site, sites);
      user_error("train.fp8.filter has no site '{}'{}; the sites are {}", site,
                 near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near),
                 fmt::join(sites, ", "));
    }
  if (!has(fp8.filter, "head"))
    user_error("train.fp8.filter must include head: its matmuls are not run in fp8");
  if (fp8_sites(model).empty())
    user_error("train.fp8: filter and bf16_layers leave no matmul of the {} layers in fp8",
               config.layers);
}

Fp8Use fp8_use(const ModelConfig& config, int tensor) {
  ModelSpec model = model_spec(config);
  ModelShard shard = whole_model(config);
  shard.tp = tensor;
  const ParameterSet set(config, shard);
  std::set<std::string> in_fp8, unaligned;
  for (LayerSpec& layer : model.layers)
    for (const LinearUse& use : layer.linears())
      if (use.linear->fp8)
        (set[set.index(use.linear->weights.front())].fp8 ? in_fp8 : unaligned).emplace(use.site);
  return {{in_fp8.begin(), in_fp8.end()}, {unaligned.begin(), unaligned.end()}};
}

std::string fp8_summary(const ModelConfig& config, int tensor) {
  const Fp8Use use = fp8_use(config, tensor);
  return fmt::format("fp8, {} scales: {} of {} layers{}",
                     config.fp8.recipe == Fp8Recipe::Rowwise ? "per-row" : "per-tensor",
                     fmt::join(use.sites, ", "),
                     config.layers - config.fp8.bf16_layers.first - config.fp8.bf16_layers.last,
                     use.unaligned.empty()
                         ? ""
                         : fmt::format("; not {}: a size is no multiple of {}",
                                       fmt::join(use.unaligned, ", "), kFp8Multiple));
}

}  // namespace kintsugi
