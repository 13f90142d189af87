#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/paths.h"

namespace kintsugi {

// Changes the sign of every element of the fp32 tensors of more than 64 KiB in a safetensors file.
// Nothing else in the file changes: names, shapes, small tensors.
inline void negate_large_tensors(const std::filesystem::path& path) {
  std::string bytes = content_of(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length));
  for (const auto& [name, about] : header.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = 8 + length + about["data_offsets"][0].get<std::size_t>(),
                      end = 8 + length + about["data_offsets"][1].get<std::size_t>();
    if (end - begin <= 64 << 10) continue;
    for (std::size_t at = begin + 3; at < end; at += 4)
      bytes[at] = static_cast<char>(bytes[at] ^ 0x80);
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace kintsugi
