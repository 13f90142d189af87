#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kintsugi {

// XXH3, 64 bits: for checksums of files and for keys, not for secrets.
std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed = 0);
inline std::uint64_t hash64(std::string_view text) { return hash64(text.data(), text.size()); }

// The same hash over data that arrives in pieces.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  void* state_;
};

std::string hex64(std::uint64_t value);

}  // namespace kintsugi
