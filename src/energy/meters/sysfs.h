#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// The small files of sysfs, which hold one value each. Their content is not trusted.

struct SmallFile {
  std::string text = {};  // without white space at the end
  int error = 0;          // errno; 0: it was read
};
// Reads a regular file with one read(), so that the value is from one moment; never blocks. A file
// of more than a kilobyte is an error (EFBIG).
SmallFile read_small_file(const std::filesystem::path& path);

// These throw Failure with the path and the reason.
std::string small_text(const std::filesystem::path& path);
double small_number(const std::filesystem::path& path);  // finite and not negative

// "PATH: permission denied".
std::string why_unreadable(const std::filesystem::path& path, int error);

// Finite, not negative and nothing else; empty if it is no such number.
std::optional<double> parse_number(std::string_view text);
// Decimal digits and nothing else; empty if it is no such number.
std::optional<std::int64_t> parse_whole(std::string_view text);
// The number in a name such as accel3_energy or card12; empty if the name has another form.
std::optional<std::int64_t> number_in(std::string_view name, std::string_view before,
                                      std::string_view after = "");

// The names in a directory, sorted; empty if it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& directory);

// "0000:1b:00.0" of "0000:1B:00.0", "00000000:1B:00.0" (as NVML and CUDA write it) or "1b:00.0";
// "" if the text is no PCI address.
std::string pci_address(std::string_view text);

// The same of its numbers.
std::string pci_address(unsigned domain, unsigned bus, unsigned device, unsigned function = 0);

// Whether a GPU of AMD, by its directory in sysfs, is one of the two dies of a module (MI250X,
// MI250): the second of them has no sensors. True if the chip is not known.
bool may_be_a_die(const std::filesystem::path& device);

// The GPUs of NVIDIA and AMD in sys/bus/pci/devices; 0: unknown.
int count_gpus(const std::filesystem::path& root);

}  // namespace kintsugi
