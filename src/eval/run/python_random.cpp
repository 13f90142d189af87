#include "eval/run/python_random.h"

#include <bit>
#include <cmath>
#include <unordered_set>

#include "core/error.h"

namespace kintsugi {

// init_by_array of Matsumoto and Nishimura's MT19937, with the words of the seed as the key.
PythonRandom::PythonRandom(std::uint64_t seed) {
  std::vector<std::uint32_t> key = {static_cast<std::uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<std::uint32_t>(seed >> 32));
  state_[0] = 19650218;
  const auto mixed = [&](std::size_t i) { return state_[i - 1] ^ (state_[i - 1] >> 30); };
  for (std::size_t i = 1; i < kWords; ++i)
    state_[i] = 1812433253U * mixed(i) + static_cast<std::uint32_t>(i);
  std::size_t i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  for (std::size_t k = 0; k < kWords; ++k) {  // the key is shorter than the state
    const std::size_t j = k % key.size();
    state_[i] = (state_[i] ^ (mixed(i) * 1664525U)) + key[j] + static_cast<std::uint32_t>(j);
    advance();
  }
  for (std::size_t k = 1; k < kWords; ++k) {
    state_[i] = (state_[i] ^ (mixed(i) * 1566083941U)) - static_cast<std::uint32_t>(i);
    advance();
  }
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7fffffffU);
    state_[i] = state_[(i + 397) % kWords] ^ (y >> 1) ^ ((y & 1U) != 0 ? 0x9908b0dfU : 0U);
  }
  next_ = 0;
}

std::uint32_t PythonRandom::word() {
  if (next_ == kWords) refill();
  std::uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

std::uint64_t PythonRandom::bits(unsigned count) {
  if (count <= 32) return word() >> (32 - count);
  const std::uint64_t low = word();
  return low | static_cast<std::uint64_t>(word() >> (64 - count)) << 32;
}

double PythonRandom::random() {
  const std::uint32_t high = word() >> 5, low = word() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

std::uint64_t PythonRandom::below(std::uint64_t n) {
  const auto count = static_cast<unsigned>(std::bit_width(n));
  std::uint64_t value = bits(count);
  while (value >= n) value = bits(count);
  return value;
}

std::size_t PythonRandom::choice(std::size_t n) {
  return static_cast<std::size_t>(random() * static_cast<double>(n));
}

std::vector<std::size_t> PythonRandom::sample(std::size_t n, std::size_t k) {
  KINTSUGI_CHECK(k <= n, "a sample of {} from {}", k, n);
  std::vector<std::size_t> chosen;
  // The size from which Python remembers what was drawn instead of copying the list.
  double limit = 21;
  if (k > 5) limit += std::pow(4, std::ceil(std::log(static_cast<double>(k) * 3) / std::log(4.0)));
  if (static_cast<double>(n) <= limit) {
    std::vector<std::size_t> pool(n);
    for (std::size_t i = 0; i < n; ++i) pool[i] = i;
    for (std::size_t i = 0; i < k; ++i) {
      const std::size_t j = below(n - i);
      chosen.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return chosen;
  }
  std::unordered_set<std::size_t> drawn;
  while (chosen.size() < k)
    if (const std::size_t j = below(n); drawn.insert(j).second) chosen.push_back(j);
  return chosen;
}

}  // namespace kintsugi
