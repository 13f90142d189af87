#include "tensor/safetensors_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kintsugi {

SafetensorsFiles divide_into_files(const std::string& stem,
                                   const std::vector<SafetensorsWriter::Announced>& tensors,
                                   std::uint64_t max_bytes) {
  SafetensorsFiles result;
  std::vector<SafetensorsFiles::File>& files = result.files;
  files.emplace_back();
  std::uint64_t in_file = 0, total = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t bytes = tensor.bytes();
    if (!files.back().tensors.empty() && in_file + bytes > max_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().tensors.push_back(tensor);
    in_file += bytes;
    total += bytes;
  }
  if (files.size() == 1) {
    files.front().name = stem + ".safetensors";
    return result;
  }
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, files.size());
    for (const auto& tensor : files[i].tensors) weight_map[tensor.name] = files[i].name;
  }
  result.index_name = stem + ".safetensors.index.json";
  result.index = nlohmann::ordered_json{{"metadata", {{"total_size", total}}},
                                        {"weight_map", std::move(weight_map)}}
                     .dump(2) +
                 "\n";
  return result;
}

}  // namespace kintsugi
