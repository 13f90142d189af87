#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstring>

#include "core/build_info.h"

namespace kintsugi {
namespace {

std::size_t padded(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// The note of type NT_GNU_BUILD_ID in a segment; empty if there is none.
std::string id_in(const std::byte* notes, std::size_t bytes, std::size_t alignment) {
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes, sizeof header);
    const std::size_t text = sizeof header + padded(header.n_namesz, alignment),
                      whole = text + padded(header.n_descsz, alignment);
    if (whole > bytes) break;
    const bool gnu =
        header.n_namesz == 4 && std::memcmp(notes + sizeof header, ELF_NOTE_GNU, 4) == 0;
    if (gnu && header.n_type == NT_GNU_BUILD_ID) {
      std::string id;
      for (std::size_t i = 0; i < header.n_descsz; ++i)
        id += fmt::format("{:02x}", std::to_integer<unsigned>(notes[text + i]));
      return id;
    }
    notes += whole;
    bytes -= whole;
  }
  return "";
}

// The first object is the program itself.
int look(dl_phdr_info* object, std::size_t, void* result) {
  auto& id = *static_cast<std::string*>(result);
  for (int i = 0; i < object->dlpi_phnum && id.empty(); ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    id = id_in(reinterpret_cast<const std::byte*>(object->dlpi_addr + segment.p_vaddr),
               segment.p_memsz, segment.p_align == 8 ? 8 : 4);
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string id;
  dl_iterate_phdr(look, &id);
  return id.empty() ? "unknown" : id;
}

}  // namespace kintsugi
