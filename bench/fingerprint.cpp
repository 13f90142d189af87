// Times the fingerprint of a model's weights, which every start from a directory computes.
//   build/bench_fingerprint llama-8b --directory /scratch/llama-8b
// Writes a model of this shape in bf16 there if the directory is missing, then takes the
// fingerprint with the files dropped from the page cache, and with what that has read in it.
#include "model/files/fingerprint.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>

#include "core/error.h"
#include "core/philox.h"
#include "model/config.h"
#include "model/parameter_set.h"
#include "tensor/safetensors.h"

using namespace kintsugi;
namespace fs = std::filesystem;

namespace {

void write_weights(const fs::path& directory, const ModelConfig& config) {
  std::vector<SafetensorsWriter::Announced> tensors;
  const ParameterSet set(config);
  for (const Parameter& parameter : set.parameters())
    tensors.push_back({parameter.name, DType::BF16, parameter.global});
  fs::create_directories(directory);
  const SafetensorsFiles files = divide_into_files("model", tensors, 5'000'000'000);
  std::vector<std::uint64_t> block(1 << 20);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = derive_key(1, i);
  for (const SafetensorsFiles::File& file : files.files) {
    SafetensorsWriter writer(directory / file.name, file.tensors);
    for (const auto& tensor : file.tensors)
      for (std::uint64_t left = tensor.bytes(); left > 0;) {
        const std::size_t count = std::min<std::uint64_t>(left, block.size() * sizeof(block[0]));
        writer.append_part(tensor.name, block.data(), count);
        left -= count;
      }
    writer.finish();
  }
  if (!files.index.empty()) write_file_atomically(directory / files.index_name, files.index);
}

void drop_from_cache(const SafetensorsModel& model) {
  for (const SafetensorsFile& file : model.files()) {
    const int descriptor = open_regular_file(file.path());
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
  }
}

double seconds_of(const SafetensorsModel& model) {
  const auto begin = std::chrono::steady_clock::now();
  fingerprint_of(model);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the fingerprint of a model's weights");
  std::string preset, directory;
  int repeats = 5;
  app.add_option("preset", preset)->required();
  app.add_option("--directory", directory)->required();
  app.add_option("--repeats", repeats)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    if (!fs::exists(directory)) write_weights(directory, load_preset(preset));
    for (int i = 0; i < repeats; ++i) {
      drop_from_cache(SafetensorsModel(directory));
      const SafetensorsModel model(directory);
      const double cold = seconds_of(model), warm = seconds_of(model);
      fmt::print("{} tensors in {} files: {:.3f} s, again {:.3f} s\n", model.names().size(),
                 model.files().size(), cold, warm);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
