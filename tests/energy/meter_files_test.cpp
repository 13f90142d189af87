// The meters that are files, read from trees as machines have them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "core/error.h"
#include "energy/meters/sysfs.h"
#include "energy/sysfs_tree.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class MeterFiles : public testing::Test {
 protected:
  FoundMeters find(MeterSearch search = {}) const {
    search.root = tree_.root();
    return find_meters(search);
  }
  SysfsTree tree_;
};

TEST_F(MeterFiles, ANodeWithoutMetersSaysWhy) {
  const FoundMeters found = find();
  EXPECT_THAT(found.meters, IsEmpty());
  for (const char* source : {"pm_counters", "rapl", "amdsmi", "hwmon", "estimate"})
    EXPECT_NE(why_missing(found, source), "") << source;
}

// ---- pm_counters

TEST_F(MeterFiles, PmCountersMeterNodeCpuMemoryAndModules) {
  tree_.write_pm_counters({}, 10);
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 7u);
  const MeterReading node = read(found, "pm_counters", "node");
  EXPECT_EQ(node.joules, 2178501771 + 1000);
  EXPECT_EQ(node.watts, 1000);
  EXPECT_DOUBLE_EQ(*node.time_s, 1734094387.462336);
  EXPECT_EQ(node.scan, 12355);
  EXPECT_EQ(node.restarts, 1733476187953442);
  EXPECT_EQ(read(found, "pm_counters", "cpu").watts, 200);
  EXPECT_EQ(read(found, "pm_counters", "memory").watts, 50);
  EXPECT_EQ(read(found, "pm_counters", "gpu3").watts, 180);
  EXPECT_EQ(meter_of(found, "pm_counters", "gpu3")->identity().level, EnergyLevel::Gpu);
  EXPECT_EQ(meter_of(found, "pm_counters", "gpu4"), nullptr);
}

TEST_F(MeterFiles, PmCountersOfOneModuleHaveNoNumber) {
  tree_.write_pm_counters({.modules = 0}, 1);
  tree_.write("sys/cray/pm_counters/accel_energy", "77 J 5 us");  // no end of line
  tree_.write("sys/cray/pm_counters/accel_power_cap", "0 W 5 us");
  const FoundMeters found = find();
  EXPECT_EQ(read(found, "pm_counters", "gpu0").joules, 77);
  EXPECT_EQ(found.meters.size(), 4u);
}

TEST_F(MeterFiles, PmCountersThatAreMissingAreNamed) {
  tree_.write_pm_counters({}, 1);
  tree_.remove("sys/cray/pm_counters/energy");
  tree_.remove("sys/cray/pm_counters/accel1_energy");
  tree_.remove("sys/cray/pm_counters/accel1_power");
  const FoundMeters found = find();
  EXPECT_EQ(found.meters.size(), 5u);
  EXPECT_THAT(why_missing(found, "pm_counters", "node"), HasSubstr("no such file"));
  EXPECT_THAT(why_missing(found, "pm_counters", "gpu1"), HasSubstr("accel1_energy"));
}

TEST_F(MeterFiles, PmCountersWithoutFreshnessHaveNoScan) {
  tree_.write_pm_counters({}, 1);
  tree_.remove("sys/cray/pm_counters/freshness");
  tree_.remove("sys/cray/pm_counters/startup");
  const MeterReading node = read(find(), "pm_counters", "node");
  EXPECT_TRUE(node.joules);
  EXPECT_FALSE(node.scan);
  EXPECT_FALSE(node.restarts);
}

TEST_F(MeterFiles, HostilePmCountersAreOneReason) {
  for (const char* text :
       {"", "J", "12", "12 W 5 us", "-5 J 5 us", "nan J 5 us", "inf J", "1e400 J", "0x10 J", "12J",
        "\x1b[2J J", "99999999999999999999999999999999 K"}) {
    tree_.write_pm_counters({}, 1);
    tree_.write("sys/cray/pm_counters/energy", text);
    EXPECT_THAT(why_missing(find(), "pm_counters", "node"), HasSubstr("is not of the form"))
        << text;
  }
  tree_.write("sys/cray/pm_counters/energy", std::string(5000, '1') + " J 5 us");
  EXPECT_THAT(why_missing(find(), "pm_counters", "node"), HasSubstr("too long"));
  tree_.write_pm_counters({}, 1);
  tree_.write("sys/cray/pm_counters/freshness", "soon");
  EXPECT_THAT(why_missing(find(), "pm_counters", "node"), HasSubstr("'soon' is no number"));
}

// A reading has energy and power of one scan, while another thread writes scan after scan.
TEST_F(MeterFiles, PmCountersAreReadFromOneScan) {
  tree_.write_pm_counters({.modules = 0}, 0);
  tree_.write("sys/cray/pm_counters/freshness", "0");
  const FoundMeters found = find();
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int scan = 1; !stop; ++scan) {
      // The power says which scan it belongs to.
      tree_.write("sys/cray/pm_counters/freshness", fmt::format("{}", 2 * scan));
      tree_.write("sys/cray/pm_counters/energy", fmt::format("{} J {} us", scan, scan));
      tree_.write("sys/cray/pm_counters/power", fmt::format("{} W {} us", scan, scan));
      tree_.write("sys/cray/pm_counters/freshness", fmt::format("{}", 2 * scan + 1));
    }
  });
  int complete = 0, refused = 0;
  while (complete < 50 && refused < 100000) {
    try {
      const MeterReading reading = read(found, "pm_counters", "node");
      if (*reading.scan % 2 == 0) continue;  // of a scan that is being written
      EXPECT_EQ(reading.joules, reading.watts);
      ++complete;
    } catch (const Failure& error) {
      EXPECT_THAT(error.what(), HasSubstr("changed during each"));
      ++refused;
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(complete, 0);
}

// ---- RAPL

TEST_F(MeterFiles, RaplZonesAreFoundByName) {
  tree_.write_rapl("intel-rapl:0", "package-1", 5);
  tree_.write_rapl("intel-rapl:1", "package-0", 7);
  tree_.write_rapl("intel-rapl:0:0", "dram", 11);
  tree_.write_rapl("intel-rapl:1/intel-rapl:1:0", "dram", 13);  // only below its package
  tree_.write_rapl("intel-rapl:1:1", "core", 100);
  tree_.write_rapl("intel-rapl:2", "psys", 1000);
  tree_.write_rapl("intel-rapl-mmio:0", "package-0", 7);  // the same counter again
  tree_.make_directory("sys/class/powercap/intel-rapl");
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 3u);
  EXPECT_EQ(read(found, "rapl", "package0").joules, 7);
  EXPECT_EQ(read(found, "rapl", "package1").joules, 5);
  EXPECT_DOUBLE_EQ(*read(found, "rapl", "memory").joules, 24);
  EXPECT_NEAR(meter_of(found, "rapl", "memory")->identity().range_j, 262143.328850, 1e-9);
  EXPECT_THAT(why_missing(found, "rapl"), HasSubstr("psys"));
}

TEST_F(MeterFiles, RaplDiesOfAPackageAreAddedUp) {
  tree_.write_rapl("intel-rapl:0", "package-0-die-0", 5);
  tree_.write_rapl("intel-rapl:1", "package-0-die-1", 7);
  tree_.write_rapl("intel-rapl:2", "package-1-die-0", 1);
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 2u);
  EXPECT_DOUBLE_EQ(*read(found, "rapl", "package0").joules, 12);
  EXPECT_THAT(why_missing(found, "rapl"), HasSubstr("no dram zone"));  // as on AMD
}

TEST_F(MeterFiles, RaplThatIsDeniedNamesTheRemedy) {
  tree_.write_rapl("intel-rapl:0", "package-0", 5);
  tree_.write_rapl("intel-rapl:1", "package-1", 5);
  ASSERT_EQ(::chmod(tree_.root().c_str(), 0755), 0);
  ASSERT_EQ(::chmod((tree_.root() / "sys/class/powercap/intel-rapl:1/energy_uj").c_str(), 0), 0);
  const WithoutRights guard;
  const FoundMeters found = find();
  EXPECT_EQ(found.meters.size(), 1u);
  EXPECT_THAT(why_missing(found, "rapl", "package1"),
              AllOf(HasSubstr("intel-rapl:1/energy_uj: permission denied"), HasSubstr("chmod a+r"),
                    Not(HasSubstr("\n"))));
}

TEST_F(MeterFiles, HostileRaplIsOneReason) {
  tree_.write_rapl("intel-rapl:0", "package-0", 5);
  const std::string file = "sys/class/powercap/intel-rapl:0/energy_uj";
  for (const char* text : {"", "-1", "nan", "12 13", "0x12", "1e999"}) {
    tree_.write(file, text);
    EXPECT_THAT(why_missing(find(), "rapl", "package0"), HasSubstr("is no number")) << text;
  }
  tree_.remove(file);
  EXPECT_THAT(why_missing(find(), "rapl", "package0"), HasSubstr("no such file"));
  tree_.make_directory(file);
  EXPECT_THAT(why_missing(find(), "rapl", "package0"), HasSubstr("is a directory"));
  tree_.remove(file);
  ASSERT_EQ(::mkfifo((tree_.root() / file).c_str(), 0600), 0);  // a read could block for ever
  EXPECT_THAT(why_missing(find(), "rapl", "package0"), HasSubstr("no regular file"));
  tree_.remove(file);
  tree_.link(file, "energy_uj");
  EXPECT_THAT(why_missing(find(), "rapl", "package0"), HasSubstr("symbolic links"));
}

TEST_F(MeterFiles, AMeterThatDisappearsFailsWithTheReason) {
  tree_.write_rapl("intel-rapl:0", "package-0", 5);
  const FoundMeters found = find();
  tree_.remove("sys/class/powercap/intel-rapl:0");
  try {
    read(found, "rapl", "package0");
    FAIL() << "it was read";
  } catch (const Failure& error) {
    EXPECT_THAT(error.what(), HasSubstr("energy_uj: no such file"));
  }
}

// ---- GPUs of AMD

class AmdFiles : public MeterFiles {
 protected:
  // `link`: device is a link to a directory with the PCI address as its name, as in sysfs.
  void add_card(int card, const std::string& pci, const std::string& watts, bool link = true,
                const std::string& file = "power1_average") const {
    const std::string device = fmt::format("sys/class/drm/card{}/device", card);
    std::string directory = device;
    if (link) {
      directory = "sys/devices/pci0000:00/" + pci;
      tree_.make_directory(directory);
      tree_.link(device, (tree_.root() / directory).string());
    } else {
      tree_.write(device + "/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=" + pci + "\nMODALIAS=x\n");
    }
    tree_.write(directory + "/vendor", "0x1002\n");
    const std::string hwmon = directory + fmt::format("/hwmon/hwmon{}/", card + 2);
    tree_.write(hwmon + "name", "amdgpu\n");
    if (!watts.empty()) tree_.write(hwmon + file, watts + "000000\n");
  }
};

TEST_F(AmdFiles, GpusHaveTheOrderOfTheirAddresses) {
  add_card(1, "0000:d9:00.0", "400");
  add_card(2, "0000:c1:00.0", "300", false, "power1_input");
  tree_.make_directory("sys/class/drm/card1-DP-1");
  tree_.make_directory("sys/class/drm/renderD128");
  tree_.write("sys/class/drm/card0/device/vendor", "0x1a03\n");  // of the board
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 2u);
  EXPECT_EQ(read(found, "amdsmi", "gpu0").watts, 300);
  EXPECT_EQ(read(found, "amdsmi", "gpu1").watts, 400);
  EXPECT_EQ(meter_of(found, "amdsmi", "gpu1")->identity().kind, MeterKind::Power);
  EXPECT_THAT(meter_of(found, "amdsmi", "gpu1")->identity().detail, HasSubstr("0000:d9:00.0"));
}

// Four dies of two modules: one second die reports 0 W, the other nothing.
TEST_F(AmdFiles, TwoDiesOfAModuleAreReadOnce) {
  add_card(0, "0000:c1:00.0", "500");
  add_card(1, "0000:c6:00.0", "0");
  add_card(2, "0000:c9:00.0", "450");
  add_card(3, "0000:ce:00.0", "");
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 2u);
  EXPECT_EQ(read(found, "amdsmi", "gpu0").watts, 500);
  EXPECT_EQ(read(found, "amdsmi", "gpu2").watts, 450);
  EXPECT_EQ(why_missing(found, "amdsmi", "gpu1"),
            "second die of the module; its energy is in gpu0");
  EXPECT_EQ(why_missing(found, "amdsmi", "gpu3"),
            "second die of the module; its energy is in gpu2");
}

// As with eight ranks on the dies of four modules: each watt once, and none is missing.
TEST_F(AmdFiles, RanksOnBothDiesCountAModuleOnce) {
  std::vector<std::string> gpus;
  for (int i = 0; i < 8; ++i) {
    gpus.insert(gpus.begin(), fmt::format("0000:{:x}:00.0", 0xc1 + 8 * (i / 2) + 5 * (i % 2)));
    add_card(i, gpus.front(), i % 2 == 0 ? std::to_string(400 + i) : "0");
  }
  const MeterSearch search{.root = tree_.root(), .gpus = gpus};
  const FoundMeters found = find(search);
  const LevelMeters chosen = choose_meters(found, search, {})[EnergyLevel::Gpu];
  EXPECT_EQ(chosen.uncovered, "");
  double watts = 0;
  for (const std::size_t i : chosen.meters) watts += found.meters[i]->read().watts.value();
  EXPECT_EQ(watts, 400 + 402 + 404 + 406);
}

// A chip of one die that reports nothing is not counted by its neighbour.
TEST_F(AmdFiles, ABrokenSensorIsNoSecondDie) {
  add_card(0, "0000:c1:00.0", "500");
  add_card(1, "0000:c6:00.0", "0");
  tree_.write("sys/devices/pci0000:00/0000:c6:00.0/device", "0x7408\n");  // MI250X
  EXPECT_THAT(why_missing(find(), "amdsmi", "gpu1"), HasSubstr("second die"));
  tree_.write("sys/devices/pci0000:00/0000:c6:00.0/device", "0x74a1\n");  // MI300X
  EXPECT_THAT(why_missing(find(), "amdsmi", "gpu1"), Not(HasSubstr("second die")));
}

// A run numbers its GPUs itself, and need not use all.
TEST_F(AmdFiles, GpusOfARunAreFoundByAddress) {
  const char* addresses[] = {"0000:11:00.0", "0000:2f:00.0", "0000:3e:00.0", "0000:5d:00.0"};
  for (int i = 0; i < 4; ++i) add_card(i, addresses[i], std::to_string(100 * (i + 1)));
  const FoundMeters found =
      find({.gpus = std::vector<std::string>{"0000:5D:00.0", "00000000:11:00.0", "0000:3e:00.0",
                                             "0000:2f:00.0"}});
  ASSERT_EQ(found.meters.size(), 4u);
  EXPECT_EQ(read(found, "amdsmi", "gpu0").watts, 400);
  EXPECT_EQ(read(found, "amdsmi", "gpu1").watts, 100);
  EXPECT_EQ(read(found, "amdsmi", "gpu2").watts, 300);
  EXPECT_EQ(read(found, "amdsmi", "gpu3").watts, 200);
  const FoundMeters one = find({.gpus = std::vector<std::string>{"0000:2f:00.0"}});
  ASSERT_EQ(one.meters.size(), 1u);
  EXPECT_EQ(read(one, "amdsmi", "gpu0").watts, 200);
}

TEST_F(AmdFiles, ASecondDieAloneIsNotMetered) {
  add_card(0, "0000:c1:00.0", "500");
  add_card(1, "0000:c6:00.0", "0");
  const FoundMeters found = find({.gpus = std::vector<std::string>{"0000:c6:00.0"}});
  EXPECT_THAT(found.meters, IsEmpty());
  EXPECT_THAT(why_missing(found, "amdsmi", "gpu0"),
              AllOf(HasSubstr("second die"), HasSubstr("0000:c1:00.0")));
}

TEST(PciAddress, HasOneForm) {
  EXPECT_EQ(pci_address("0000:1B:00.0"), "0000:1b:00.0");
  EXPECT_EQ(pci_address("00000000:1b:00.0"), "0000:1b:00.0");
  EXPECT_EQ(pci_address("00000003:1b:00.0"), "0003:1b:00.0");
  EXPECT_EQ(pci_address("1b:00.0"), "0000:1b:00.0");
  for (const char* text : {"", ":", "::", "0000:1b:00", "0000:1g:00.0", "00010000:1b:00.0",
                           "0000:1b:00.0 ", "0000:0000:1b:00.0", "card0"})
    EXPECT_EQ(pci_address(text), "") << text;
}

// ---- hwmon and the estimate

TEST_F(MeterFiles, GraceModulesAreAddedUp) {
  const auto add = [&](int number, const std::string& domain, int watts, const char* inner) {
    const std::string directory = fmt::format("sys/class/hwmon/hwmon{}/", number);
    tree_.write(directory + "name", "power_meter\n");
    tree_.write(directory + inner + "power1_average", fmt::format("{}000000\n", watts));
    tree_.write(directory + inner + "power1_oem_info", domain + "\n");
  };
  add(1, "Module Power Socket 0", 600, "");
  add(2, "Grace Power Socket 0", 150, "");
  add(3, "CPU Power Socket 0", 100, "device/");
  add(4, "SysIO Power Socket 0", 20, "device/");
  add(5, "Module Power Socket 1", 500, "device/");
  add(6, "Grace Power Socket 1", 130, "device/");
  tree_.write("sys/class/hwmon/hwmon7/name", "amdgpu\n");
  tree_.write("sys/class/hwmon/hwmon7/power1_average", "300000000\n");
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 2u);
  EXPECT_DOUBLE_EQ(*read(found, "hwmon", "node").watts, 1100);
  EXPECT_DOUBLE_EQ(*read(found, "hwmon", "cpu").watts, 280);
  EXPECT_EQ(meter_of(found, "hwmon", "cpu")->identity().kind, MeterKind::Power);
  add(8, "", 100, "");
  EXPECT_THAT(why_missing(find(), "hwmon"), HasSubstr("hwmon8/power1_oem_info"));
}

TEST_F(MeterFiles, AnEstimateIsMadeOnlyOfGivenWatts) {
  const FoundMeters found = find({.node_w = 750});
  ASSERT_EQ(found.meters.size(), 1u);
  EXPECT_EQ(found.meters[0]->identity().kind, MeterKind::Estimate);
  EXPECT_EQ(read(found, "estimate", "node").watts, 750);
}

}  // namespace
}  // namespace kintsugi
