#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kintsugi {

// Python's random.Random with an integer seed: the same numbers, because lm-evaluation-harness
// draws examples and bootstrap samples with it.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);

  double random();                                                // [0, 1)
  std::uint64_t below(std::uint64_t n);                           // _randbelow(n), n > 0
  std::size_t choice(std::size_t n);                              // one index of random.choices()
  std::vector<std::size_t> sample(std::size_t n, std::size_t k);  // indices; k <= n

 private:
  static constexpr std::size_t kWords = 624;
  std::uint32_t word();                // the next output of MT19937
  std::uint64_t bits(unsigned count);  // getrandbits, at most 64
  void refill();

  std::array<std::uint32_t, kWords> state_;
  std::size_t next_ = kWords;
};

}  // namespace kintsugi
