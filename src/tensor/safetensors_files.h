#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/safetensors.h"

namespace kintsugi {

// How the tensors of a model are divided into files: stem.safetensors, or
// stem-0000i-of-0000n.safetensors and an index. Every file has at most max_bytes of data, unless
// one tensor is larger.
struct SafetensorsFiles {
  struct File {
    std::string name;
    std::vector<SafetensorsWriter::Announced> tensors;
  };
  std::vector<File> files;
  std::string index_name, index;  // the index file and its content; empty with one file
};
SafetensorsFiles divide_into_files(const std::string& stem,
                                   const std::vector<SafetensorsWriter::Announced>& tensors,
                                   std::uint64_t max_bytes);

}  // namespace kintsugi
