#include "energy/estimate.h"

#include <fmt/format.h>

#include <utility>

namespace kintsugi {
namespace {

class ConstantPower : public Meter {
 public:
  ConstantPower(MeterIdentity identity, double watts) : Meter(std::move(identity)), watts_(watts) {}
  MeterReading read() override { return {.watts = watts_}; }

 private:
  double watts_;
};

}  // namespace

void add_estimate(const MeterSearch& search, FoundMeters& found) {
  if (!(search.node_w > 0))
    return found.missing.push_back(
        {"estimate", "no watts are given for a node (energy.node_w, kintsugi energy --node-w)"});
  found.meters.push_back(std::make_unique<ConstantPower>(
      MeterIdentity{.source = "estimate",
                    .scope = "node",
                    .level = EnergyLevel::Node,
                    .kind = MeterKind::Estimate,
                    .detail = fmt::format("{:g} W per node, as given", search.node_w)},
      search.node_w));
}

}  // namespace kintsugi
