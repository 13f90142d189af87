#include "tensor/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/units.h"

namespace kintsugi {

void* PlanningAllocator::allocate(std::size_t bytes) {
  const std::uintptr_t address = next_;
  next_ += (bytes + 4095) / 4096 * 4096;
  return reinterpret_cast<void*>(address);
}

std::string_view to_string(Region region) {
  switch (region) {
    case Region::Weights:
      return "weights";
    case Region::Gradients:
      return "gradients";
    case Region::Optimizer:
      return "optimizer";
    case Region::Activations:
      return "activations";
    case Region::Workspace:
      return "workspace";
    case Region::Communication:
      return "communication";
  }
  return "?";
}

Arena::~Arena() {
  for (const Entry& entry : entries_) allocator(entry.side).release(entry.address, entry.bytes);
}

Tensor Arena::allocate(Region region, std::string name, DType dtype, Shape shape, Side side) {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  entries_.reserve(entries_.size() + 1);
  void* address = allocator(side).allocate(std::max<std::size_t>(bytes, 1));
  entries_.push_back({side, region, std::move(name), address, bytes});
  return Tensor(address, dtype, shape);
}

std::size_t Arena::bytes(Region region, Side side) const {
  std::size_t sum = 0;
  for (const Entry& entry : entries_)
    sum += entry.region == region && entry.side == side ? entry.bytes : 0;
  return sum;
}

std::size_t Arena::total_bytes(Side side) const {
  std::size_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.side == side ? entry.bytes : 0;
  return sum;
}

std::string Arena::table_rows(Side side) const {
  std::string text;
  for (int i = 0; i < kRegions; ++i) {
    const Region region = static_cast<Region>(i);
    if (bytes(region, side) == 0) continue;
    std::map<std::string_view, std::size_t> by_name;
    for (const Entry& entry : entries_)
      if (entry.region == region && entry.side == side) by_name[entry.name] += entry.bytes;
    std::vector<std::pair<std::string_view, std::size_t>> largest(by_name.begin(), by_name.end());
    std::stable_sort(largest.begin(), largest.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    text += fmt::format("  {:<14}{:>12}  ", to_string(region),
                        format_bytes(static_cast<double>(bytes(region, side))));
    for (std::size_t k = 0; k < std::min<std::size_t>(largest.size(), 3); ++k)
      text += fmt::format("{}{} {}", k == 0 ? "" : ", ", largest[k].first,
                          format_bytes(static_cast<double>(largest[k].second)));
    text += largest.size() > 3 ? ", …\n" : "\n";
  }
  return text + fmt::format("  {:<14}{:>12}", "total",
                            format_bytes(static_cast<double>(total_bytes(side))));
}

std::string Arena::table() const {
  std::string text = "memory plan\n" + table_rows(Side::Device);
  if (total_bytes(Side::Host) > 0) text += "\nin host memory\n" + table_rows(Side::Host);
  return text;
}

}  // namespace kintsugi
