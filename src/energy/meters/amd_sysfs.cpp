#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/pci.h"
#include "energy/meters/small_file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

class AmdPower : public Meter {
 public:
  AmdPower(MeterIdentity identity, fs::path file)
      : Meter(std::move(identity)), file_(std::move(file)) {}
  MeterReading read() override { return {.watts = small_number(file_) * 1e-6}; }

 private:
  fs::path file_;
};

struct AmdCard {
  std::int64_t number = 0;  // of cardN
  fs::path device = {};
  std::string pci = {};  // "": unknown
  fs::path power = {};   // the file; empty: there is none
};

// hwmon/hwmonM of a card, the lowest M; empty: none.
fs::path hwmon_of(const fs::path& device) {
  std::optional<std::int64_t> lowest;
  for (const std::string& name : names_in(device / "hwmon"))
    if (const auto number = number_in(name, "hwmon"); number && (!lowest || *number < *lowest))
      lowest = number;
  return lowest ? device / "hwmon" / fmt::format("hwmon{}", *lowest) : fs::path();
}

// `device` is a link to the directory with the address as its name; a copied tree has only uevent.
std::string pci_of(const fs::path& device) {
  std::error_code error;
  const fs::path target = fs::read_symlink(device, error);
  if (const std::string address = pci_address(target.filename().string()); !address.empty())
    return address;
  constexpr std::string_view kKey = "PCI_SLOT_NAME=";
  const std::string text = read_small_file(device / "uevent").text;
  const std::size_t at = text.find(kKey);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + kKey.size();
  return pci_address(std::string_view(text).substr(begin, text.find('\n', begin) - begin));
}

std::vector<AmdCard> amd_cards(const fs::path& directory) {
  std::vector<AmdCard> cards;
  for (const std::string& name : names_in(directory)) {
    const auto number = number_in(name, "card");  // not card0-DP-1
    if (!number) continue;
    AmdCard card{.number = *number, .device = directory / name / "device"};
    const fs::path hwmon = hwmon_of(card.device);
    if (read_small_file(card.device / "vendor").text != "0x1002" &&
        (hwmon.empty() || read_small_file(hwmon / "name").text != "amdgpu"))
      continue;
    card.pci = pci_of(card.device);
    for (const char* file : {"power1_average", "power1_input"})
      if (card.power.empty() && !hwmon.empty() && read_small_file(hwmon / file).error != ENOENT)
        card.power = hwmon / file;
    cards.push_back(std::move(card));
  }
  const bool addresses = std::all_of(cards.begin(), cards.end(),
                                     [](const AmdCard& card) { return !card.pci.empty(); });
  std::sort(cards.begin(), cards.end(), [&](const AmdCard& a, const AmdCard& b) {
    return addresses ? a.pci < b.pci : a.number < b.number;
  });
  return cards;
}

// The second die of an MI250X gives no power or 0 W: the first one reports for both.
bool reports_nothing(const AmdCard& card) {
  return card.power.empty() || parse_whole(read_small_file(card.power).text) == 0;
}

// The number of the GPU in this run; empty: it is not used.
std::optional<std::size_t> number_of(const AmdCard& card, std::size_t index,
                                     const MeterSearch& search) {
  if (!search.gpus) return index;
  const auto at = std::find_if(search.gpus->begin(), search.gpus->end(), [&](const auto& gpu) {
    return !card.pci.empty() && pci_address(gpu) == card.pci;
  });
  if (at == search.gpus->end()) return {};
  return static_cast<std::size_t>(at - search.gpus->begin());
}

void add_second_die(const std::string& scope, std::optional<std::size_t> first,
                    const std::string& first_pci, FoundMeters& found) {
  found.missing.push_back(
      {"amdsmi",
       first ? fmt::format("second die of the module; its energy is in gpu{}", *first)
             : fmt::format("second die of the module; the first one ({}), which reports for both, "
                           "is not used",
                           first_pci.empty() ? "of unknown address" : first_pci),
       scope, first.has_value()});
}

void add_card(const AmdCard& card, const std::string& scope, FoundMeters& found) {
  if (card.power.empty())
    return found.missing.push_back(
        {"amdsmi",
         fmt::format("{} has no hwmon/hwmon*/power1_average or power1_input", card.device.string()),
         scope});
  const std::string detail =
      card.power.string() + (card.pci.empty() ? "" : fmt::format(" (PCI {})", card.pci));
  auto meter = std::make_unique<AmdPower>(MeterIdentity{.source = "amdsmi",
                                                        .scope = scope,
                                                        .level = EnergyLevel::Gpu,
                                                        .kind = MeterKind::Power,
                                                        .detail = detail},
                                          card.power);
  try {
    meter->read();
    found.meters.push_back(std::move(meter));
  } catch (const Failure& error) {
    found.missing.push_back({"amdsmi", error.what(), scope});
  }
}

}  // namespace

void add_amd_sysfs(const MeterSearch& search, FoundMeters& found) {
  for (const auto& meter : found.meters)
    if (meter->identity().source == "amdsmi") return;  // the library's counters are better
  const fs::path directory = search.root / "sys/class/drm";
  const std::vector<AmdCard> cards = amd_cards(directory);
  if (cards.empty())
    return found.missing.push_back(
        {"amdsmi", fmt::format("{} has no GPU of AMD", directory.string())});
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const bool second = i > 0 && reports_nothing(cards[i]) && !reports_nothing(cards[i - 1]);
    const std::optional<std::size_t> number = number_of(cards[i], i, search);
    if (!number) continue;
    const std::string scope = fmt::format("gpu{}", *number);
    if (second)
      add_second_die(scope, number_of(cards[i - 1], i - 1, search), cards[i - 1].pci, found);
    else
      add_card(cards[i], scope, found);
  }
}

}  // namespace kintsugi
