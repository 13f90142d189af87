#pragma once

#include <array>
#include <map>

#include "comm/communicator.h"
#include "core/collective.h"

namespace kintsugi {

// The calls of one rank in the groups with one name, and their bytes by ring_bytes().
struct Traffic {
  struct Entry {
    std::int64_t calls = 0;
    double bytes = 0;
  };
  std::array<Entry, kCollectives> entries;

  Entry& operator[](Collective kind) { return entries[static_cast<int>(kind)]; }
  const Entry& operator[](Collective kind) const { return entries[static_cast<int>(kind)]; }
  double bytes() const;
};

// Forwards all calls and counts them in `traffic`, which must outlive it.
class CountingCommunicator : public ForwardingCommunicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, Traffic& traffic)
      : ForwardingCommunicator(std::move(inner)), traffic_(traffic) {}
  Work start(const Call& call) override;
  void barrier() override;

 private:
  Traffic& traffic_;
};

// Makes groups of the type CountingCommunicator and counts by group name.
class CountingWorld : public World {
 public:
  explicit CountingWorld(World& inner) : World(inner.place()), inner_(inner) {}
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override;

  const Traffic& traffic(const std::string& group) { return traffic_[group]; }
  void reset();

 private:
  World& inner_;
  std::map<std::string, Traffic> traffic_;
};

}  // namespace kintsugi
