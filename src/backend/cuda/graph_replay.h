#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>

#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// Sequences of calls as CUDA graphs. The first run of a key is an ordinary one: it chooses
// algorithms and takes the work space, which a capture may not do. The second is recorded, and
// launched from then on.
class GraphReplay {
 public:
  GraphReplay() = default;
  ~GraphReplay();
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;

  void run(std::uint64_t key, const std::function<void()>& calls, Stream stream);
  // Memory goes that recordings may use; the device does not work on them any more.
  void forget_all() noexcept;

 private:
  static constexpr std::size_t kMost = 16;  // recordings kept
  struct Entry {
    std::uint64_t key;
    cudaGraphExec_t graph;  // nullptr: run once, not recorded yet
  };
  static cudaGraphExec_t record(const std::function<void()>& calls, Stream stream);
  void forget_oldest(Stream stream);

  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> by_key_;
};

}  // namespace kintsugi::cuda
