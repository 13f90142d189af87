#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"

namespace kintsugi {

// Reads a file of numbers with 4 bytes each, in groups.
template <std::size_t count, class Visit>
void read_numbers(const std::filesystem::path& path, std::uint64_t checksum, std::string_view stage,
                  Visit&& visit) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const bool whole = bytes.size() % (4 * count) == 0;
  if (!whole || hash64(bytes.data(), bytes.size()) != checksum)
    user_error("{} is damaged ({}): remove it with the .json of its {}, and run that again",
               path.string(), whole ? "its checksum differs" : "it is truncated", stage);
  std::array<std::uint32_t, count> numbers;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof numbers) {
    std::memcpy(numbers.data(), bytes.data() + at, sizeof numbers);
    visit(numbers);
  }
  file.check_intact();
}

}  // namespace kintsugi
