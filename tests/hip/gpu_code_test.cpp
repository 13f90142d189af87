// What the program for AMD GPUs contains: machine code of every kernel for every chip, within the
// shared memory of a block and without registers in memory. Reads the code as the driver finds it:
// bundles in a section of the program, an ELF file for each chip in each bundle, and in its note
// a description of the kernels.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;
using Bytes = std::span<const char>;

template <class T>
T read_at(Bytes bytes, std::size_t offset) {
  T value;
  if (offset + sizeof(T) > bytes.size()) throw std::runtime_error("the file ends too early");
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The sections of an ELF file with this name, or, without a name, of this type.
std::vector<Bytes> sections_of(Bytes file, const std::string& name, std::uint32_t type = 0) {
  std::vector<Bytes> found;
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  const auto section = [&](std::size_t i) {
    return read_at<Elf64_Shdr>(file, header.e_shoff + i * header.e_shentsize);
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    const bool wanted =
        name.empty() ? s.sh_type == type : name == file.data() + names.sh_offset + s.sh_name;
    if (wanted) found.push_back(file.subspan(s.sh_offset, s.sh_size));
  }
  return found;
}

struct KernelFacts {
  std::int64_t shared_bytes = 0, scratch_bytes = 0;
};
using Kernels = std::map<std::string, KernelFacts>;  // by mangled name

// Adds the kernels that the notes of a chip's ELF file describe.
void add_kernels(Kernels& kernels, Bytes elf) {
  constexpr std::uint32_t kMetadata = 32;  // NT_AMDGPU_METADATA
  for (const Bytes notes : sections_of(elf, "", SHT_NOTE)) {
    for (std::size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
      const auto note = read_at<Elf64_Nhdr>(notes, at);
      const auto padded = [](std::size_t n) { return (n + 3) / 4 * 4; };
      const std::size_t text = at + sizeof(note) + padded(note.n_namesz);
      if (note.n_type == kMetadata) {
        const Bytes packed = notes.subspan(text, note.n_descsz);
        const Json facts = Json::from_msgpack(packed.begin(), packed.end());
        for (const Json& kernel : facts.at("amdhsa.kernels"))
          kernels[kernel.at(".name")] = {.shared_bytes = kernel.at(".group_segment_fixed_size"),
                                         .scratch_bytes = kernel.at(".private_segment_fixed_size")};
      }
      at = text + padded(note.n_descsz);
    }
  }
}

// The kernels of a program, by chip: "gfx90a".
std::map<std::string, Kernels> kernels_of(const std::string& program) {
  const std::string content = read_text_file(program);
  std::map<std::string, Kernels> chips;
  for (const Bytes section : sections_of(Bytes(content), ".hip_fatbin")) {
    const std::string_view whole(section.data(), section.size());
    constexpr std::string_view kMagic = "__CLANG_OFFLOAD_BUNDLE__";
    for (std::size_t bundle = whole.find(kMagic); bundle != whole.npos;
         bundle = whole.find(kMagic, bundle + 1)) {
      std::size_t at = bundle + kMagic.size();
      const auto entries = read_at<std::uint64_t>(section, at);
      at += 8;
      for (std::uint64_t i = 0; i < entries; ++i) {
        const auto offset = read_at<std::uint64_t>(section, at),
                   bytes = read_at<std::uint64_t>(section, at + 8),
                   length = read_at<std::uint64_t>(section, at + 16);
        const std::string_view target = whole.substr(at + 24, length);  // "hipv4-amdgcn-…--gfx90a"
        at += 24 + length;
        if (target.starts_with("host")) continue;
        add_kernels(chips[std::string(target.substr(target.rfind('-') + 1))],
                    section.subspan(bundle + offset, bytes));
      }
    }
  }
  return chips;
}

// The functions that the sources declare as kernels, without their templates' arguments.
std::set<std::string> kernel_names_in_sources() {
  std::set<std::string> names;
  const std::regex kernel(
      R"(__global__\s+void\s+(?:__launch_bounds__\([^{;]*?\)\s+|KINTSUGI_REGISTERS\(\w+\)\s+)?(\w+)\()");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           source_directory() + "/src/backend/gpu/kernels")) {
    if (!entry.is_regular_file()) continue;
    const std::string text = read_text_file(entry.path());
    for (std::sregex_iterator i(text.begin(), text.end(), kernel), end; i != end; ++i)
      names.insert((*i)[1]);
  }
  return names;
}

class GpuCode : public testing::Test {
 protected:
  void SetUp() override {
    const std::string program = built_program("kintsugi_hip");
    if (program.empty()) GTEST_SKIP() << "built without clang for AMD GPUs";
    chips_ = kernels_of(program);
  }
  std::map<std::string, Kernels> chips_;
};

TEST_F(GpuCode, HasEveryKernelForEveryChip) {
  ASSERT_EQ(chips_.size(), 2u);
  ASSERT_TRUE(chips_.contains("gfx90a") && chips_.contains("gfx942"));
  std::set<std::string> names[2];
  for (const auto& [name, facts] : chips_["gfx90a"]) names[0].insert(name);
  for (const auto& [name, facts] : chips_["gfx942"]) names[1].insert(name);
  EXPECT_EQ(names[0], names[1]);
  // Their fragments are those of NVIDIA's mma; paged_attention.cu computes the same.
  const std::set<std::string> nvidia_only = {"decode_kernel", "prompt_kernel"};
  const std::set<std::string> sources = kernel_names_in_sources();
  EXPECT_GT(sources.size(), 50u);
  for (const std::string& source : sources) {
    bool present = false;
    for (const std::string& name : names[0]) present |= name.find(source) != name.npos;
    EXPECT_EQ(present, !nvidia_only.contains(source)) << source;
  }
}

TEST_F(GpuCode, FitsIntoABlock) {
  constexpr std::int64_t kLds = 65536;
  for (const auto& [chip, kernels] : chips_)
    for (const auto& [name, facts] : kernels)
      EXPECT_LE(facts.shared_bytes, kLds) << chip << " " << name;
}

// Registers that do not fit are kept in memory, which takes a kernel its speed. Few may: those that
// compute maxima for fp8, which these chips have no matmuls for, and norms of very long rows.
TEST_F(GpuCode, KeepsItsRegisters) {
  const std::regex excused(
      "cast_tiles_kernel|maxima_kernel|backward_kernelINS0_4Bf16ELi8ELi4ELi0ELb1ELb0E");
  int few = 0;
  for (const auto& [chip, kernels] : chips_)
    for (const auto& [name, facts] : kernels) {
      if (facts.scratch_bytes == 0) continue;
      ++few;
      EXPECT_TRUE(std::regex_search(name, excused))
          << chip << " " << name << ": " << facts.scratch_bytes << " bytes a lane";
    }
  EXPECT_LE(few, 8);
}

}  // namespace
}  // namespace kintsugi
