#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "support/paths.h"

namespace kintsugi {

// Safetensors files read and written byte by byte, without the code under test.
struct RawTensor {
  std::string dtype;  // F32 or BF16
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};
using RawModel = std::map<std::string, RawTensor>;

inline std::string raw_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// All .safetensors files of a directory.
inline RawModel read_raw_model(const std::filesystem::path& directory) {
  RawModel model;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors" || entry.path().stem() == "expected") continue;
    const std::string bytes = raw_file(entry.path());
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    const auto header = nlohmann::json::parse(bytes.substr(8, length));
    for (const auto& [name, about] : header.items()) {
      if (name == "__metadata__") continue;
      RawTensor tensor{about["dtype"], about["shape"], {}};
      const std::size_t begin = 8 + length + about["data_offsets"][0].get<std::size_t>(),
                        end = 8 + length + about["data_offsets"][1].get<std::size_t>();
      const std::size_t size = tensor.dtype == "F32" ? 4 : 2;
      for (std::size_t at = begin; at < end; at += size) {
        std::uint32_t bits = 0;  // a bf16 is the upper half of a float
        std::memcpy(reinterpret_cast<char*>(&bits) + (4 - size), bytes.data() + at, size);
        float value = 0;
        std::memcpy(&value, &bits, 4);
        tensor.values.push_back(value);
      }
      model[name] = std::move(tensor);
    }
  }
  return model;
}

// The nearest number with `bits` significant bits, ties to even: 8 for bf16, 24 for fp32.
inline double nearest_with_bits(double value, int bits) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, bits - exponent)), exponent - bits);
}

inline void write_raw_file(const std::filesystem::path& path, const RawModel& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size(), size = tensor.dtype == "F32" ? 4 : 2;
    for (const double number : tensor.values) {
      const auto value = static_cast<float>(number);
      const char* bytes = reinterpret_cast<const char*>(&value);
      data.append(bytes + (4 - size), size);
    }
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8) << text << data;
}

// Writes model.safetensors, or one file per tensor and an index.
inline void write_raw_model(const std::filesystem::path& directory, const RawModel& model,
                            bool sharded) {
  std::filesystem::create_directories(directory);
  if (!sharded) return write_raw_file(directory / "model.safetensors", model);
  nlohmann::json map;
  int number = 0;
  for (const auto& [name, tensor] : model) {
    const std::string file = "model-" + std::to_string(++number) + ".safetensors";
    write_raw_file(directory / file, {{name, tensor}});
    map[name] = file;
  }
  std::ofstream(directory / "model.safetensors.index.json")
      << nlohmann::json{{"weight_map", map}}.dump();
}

// A model directory like a fixture of tests/data, with random weights.
inline void make_random_model(const std::filesystem::path& directory, const std::string& fixture,
                              unsigned seed, const std::string& dtype, bool sharded) {
  const std::filesystem::path source =
      std::filesystem::path(source_directory()) / "tests/data" / fixture;
  RawModel model = read_raw_model(source);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  for (auto& [name, tensor] : model) {
    tensor.dtype = dtype;
    for (double& value : tensor.values)
      value = nearest_with_bits(normal(random), dtype == "F32" ? 24 : 8);
  }
  write_raw_model(directory, model, sharded);
  std::filesystem::copy_file(source / "config.json", directory / "config.json");
}

}  // namespace kintsugi
