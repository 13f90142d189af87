#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>

#include "backend/gpu/common.h"

namespace kintsugi::gpu {

// Records sequences of calls as graphs. The first call with a key runs without capture: it
// chooses algorithms and allocates workspace, which must not happen during capture. The second call
// is captured; it and all later ones launch the graph.
class GraphReplay {
 public:
  GraphReplay() = default;
  ~GraphReplay();
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;

  void run(std::uint64_t key, const std::function<void()>& calls, Stream stream);
  // Destroys all graphs, because memory that they may use is freed. None may still be running.
  void forget_all() noexcept;

 private:
  static constexpr std::size_t kMaxGraphs = 64;
  struct Entry {
    std::uint64_t key;
    Graph graph;  // nullptr: called once, not captured yet
  };
  static Graph capture(const std::function<void()>& calls, Stream stream);
  void forget_oldest(Stream stream);

  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> by_key_;
};

}  // namespace kintsugi::gpu
