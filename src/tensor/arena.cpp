#include "tensor/arena.h"

#include <fmt/format.h>

#include <map>

#include "core/units.h"

namespace kintsugi {

void* PlanningAllocator::allocate(std::size_t bytes) {
  const std::uintptr_t address = next_;
  next_ += (bytes + 4095) / 4096 * 4096;
  return reinterpret_cast<void*>(address);
}

std::string_view to_string(Region region) {
  return enum_name(
      region, {"weights", "gradients", "optimizer", "activations", "workspace", "communication"});
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

std::vector<Arena::Allocation> Arena::list(Side side) const {
  std::map<std::pair<Region, std::string_view>, std::size_t> sums;
  for (const Entry& entry : entries_)
    if (entry.side == side && entry.bytes > 0) sums[{entry.region, entry.name}] += entry.bytes;
  std::vector<Allocation> all;
  for (const auto& [key, bytes] : sums) all.push_back({key.first, std::string(key.second), bytes});
  std::ranges::stable_sort(
      all, [](const Allocation& a, const Allocation& b) { return a.bytes > b.bytes; });
  return all;
}

std::string Arena::table_rows(Side side) const {
  const std::vector<Allocation> all = list(side);
  std::string text;
  for (int i = 0; i < kRegions; ++i) {
    const Region region = static_cast<Region>(i);
    if (bytes(region, side) == 0) continue;
    text += fmt::format("  {:<14}{:>12}  ", to_string(region),
                        format_bytes(static_cast<double>(bytes(region, side))));
    int shown = 0;
    for (const Allocation& one : all) {
      if (one.region != region) continue;
      if (++shown > 3) break;
      text += fmt::format("{}{} {}", shown == 1 ? "" : ", ", one.name,
                          format_bytes(static_cast<double>(one.bytes)));
    }
    text += shown > 3 ? ", …\n" : "\n";
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
