#include "train/save_interval.h"

#include <algorithm>
#include <cmath>

namespace kintsugi {
namespace {

constexpr double kDay = 24 * 3600;
constexpr double kInterruptions = 419, kDays = 54, kNodes = 16384 / 8;
constexpr double kReportedChange = 0.1;

}  // namespace

double young_daly_s(double cost_s, double mtbf_s) { return std::sqrt(2 * cost_s * mtbf_s); }

double mtbf_of_nodes_s(double nodes) {
  return kDays * kDay * kNodes / kInterruptions / std::max(nodes, 1.0);
}

SaveInterval::SaveInterval(double mtbf_s, Clock::time_point start)
    : mtbf_s_(mtbf_s), seconds_(young_daly_s(cost_s_, mtbf_s)), last_(start) {}

bool SaveInterval::due(Clock::time_point now) const {
  return std::chrono::duration<double>(now - last_).count() >= seconds_;
}

bool SaveInterval::measured(double cost_s, double duration_s) {
  cost_s_ = cost_s;
  seconds_ = std::max(young_daly_s(cost_s, mtbf_s_), duration_s);
  if (std::abs(seconds_ - reported_s_) <= kReportedChange * reported_s_) return false;
  reported_s_ = seconds_;
  return true;
}

}  // namespace kintsugi
