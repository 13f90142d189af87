#include "energy/power/power_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "support/errors.h"
#include "support/fake_tree.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ControlRefused& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

class NvmlPower : public testing::Test {
 protected:
  NvmlPower() {
    for (int i = 0; i < 3; ++i) {
      tree_.set("pci" + std::to_string(i), "0000:" + std::to_string(10 + i) + ":00.0");
      tree_.set("limit" + std::to_string(i), "650000");
    }
  }
  FakeTree tree_{"nvml", "usr/lib64/libnvidia-ml.so.1"};
  const std::vector<std::string> gpus_ = {"0000:12:00.0", "0000:10:00.0"};
};

TEST_F(NvmlPower, IsSetOnTheGivenGpusAndRestored) {
  {
    PowerControl control(tree_.search(gpus_));
    EXPECT_EQ(control.gpus(), 2U);
    EXPECT_DOUBLE_EQ(control.power_limit_w().value(), 650);
    EXPECT_DOUBLE_EQ(control.power_range_w()->low, 200);
    EXPECT_DOUBLE_EQ(control.power_range_w()->high, 700);
    control.set_power_limit(500);
    control.set_power_limit(412.5);
    EXPECT_EQ(tree_.get("limit0"), "412500");
    EXPECT_EQ(tree_.get("limit1"), "650000");  // of another job
    EXPECT_EQ(tree_.get("limit2"), "412500");
    EXPECT_EQ(control.restore(), "");
    EXPECT_EQ(tree_.get("limit2"), "650000");
    control.set_power_limit(300);
  }
  EXPECT_EQ(tree_.get("limit0"), "650000");
  EXPECT_EQ(tree_.get("limit2"), "650000");
}

TEST_F(NvmlPower, IsLeftAloneWithoutARequest) {
  { PowerControl control(tree_.search(gpus_)); }
  EXPECT_EQ(tree_.get("history"), "");
  EXPECT_EQ(tree_.get("clock0"), "");
}

TEST_F(NvmlPower, HasARangeThatAllGpusAllow) {
  tree_.set("lowest0", "350000");
  PowerControl control(tree_.search(gpus_));
  for (const double watts : {349.0, 701.0, 0.0, -1.0, std::nan("")})
    EXPECT_THAT(user_error_of([&] { control.set_power_limit(watts); }),
                AllOf(HasSubstr("350"), HasSubstr("700 W")));
  EXPECT_EQ(tree_.get("history"), "");
  control.set_power_limit(350);
  EXPECT_EQ(tree_.get("limit2"), "350000");
}

TEST_F(NvmlPower, WithoutPermissionSaysWhoRefusedAndWhatHelps) {
  tree_.set("permission", "no");
  PowerControl control(tree_.search(gpus_));
  EXPECT_THAT(refusal_of([&] { control.set_power_limit(500); }),
              AllOf(HasSubstr("500 W"), HasSubstr("0000:12:00.0"), HasSubstr("NVML"),
                    HasSubstr("Insufficient Permissions"), HasSubstr("--gpu-freq"),
                    HasSubstr("administrator")));
  EXPECT_THAT(refusal_of([&] { control.lock_clock(1500); }),
              AllOf(HasSubstr("1500 MHz"), HasSubstr("Insufficient Permissions")));
  EXPECT_DOUBLE_EQ(control.power_limit_w().value(), 650);
}

// The second GPU refuses: the first one gets its former limit back.
TEST_F(NvmlPower, IsSetOnAllGpusOrOnNone) {
  PowerControl control(tree_.search({"0000:10:00.0", "0000:11:00.0"}));
  tree_.set("refuse1", "yes");
  EXPECT_THAT(refusal_of([&] { control.set_power_limit(500); }), HasSubstr("0000:11:00.0"));
  EXPECT_EQ(tree_.get("limit0"), "650000");
  EXPECT_EQ(tree_.get("history"), ",500000,650000");
}

TEST_F(NvmlPower, LocksSupportedClocks) {
  {
    PowerControl control(tree_.search(gpus_));
    EXPECT_THAT(control.clocks_mhz(), ElementsAre(1980, 1500, 1005, 345));
    EXPECT_THAT(user_error_of([&] { control.lock_clock(1400); }),
                AllOf(HasSubstr("345 to 1980 MHz"), HasSubstr("1500")));
    control.lock_clock(1005);
    EXPECT_EQ(tree_.get("clock0"), "1005-1005");
    EXPECT_EQ(tree_.get("clock1"), "");
  }
  EXPECT_EQ(tree_.get("clock0"), "unlocked");
  EXPECT_EQ(tree_.get("clock2"), "unlocked");
}

// ---- a process that was killed

class PowerLeftBehind : public NvmlPower {
 protected:
  // A process that ends without its destructors.
  void set_and_die(double watts) {
    const pid_t child = fork();
    if (child == 0) {
      PowerControl control(tree_.search(gpus_));
      control.set_power_limit(watts);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
  }
  std::filesystem::path record(const std::string& pci = "0000:12:00.0") {
    return power_record_file(tree_.root(), pci);
  }
  // The limit after a run that sets 400 W and restores.
  std::string limit_after_a_run() {
    {
      PowerControl control(tree_.search(gpus_));
      control.set_power_limit(400);
      EXPECT_EQ(tree_.get("limit2"), "400000");
    }
    return tree_.get("limit2");
  }
};

TEST_F(PowerLeftBehind, IsNotTakenForTheFormerLimit) {
  set_and_die(500);
  set_and_die(450);
  EXPECT_EQ(tree_.get("limit2"), "450000");
  EXPECT_EQ(limit_after_a_run(), "650000");
  EXPECT_EQ(tree_.get("limit0"), "650000");
  EXPECT_FALSE(std::filesystem::exists(record()));
}

TEST_F(PowerLeftBehind, IsRestoredOnRequest) {
  set_and_die(500);
  PowerControl control(tree_.search(gpus_));
  EXPECT_EQ(control.restore(), "");
  EXPECT_EQ(tree_.get("limit2"), "650000");
  EXPECT_FALSE(std::filesystem::exists(record()));
}

// Somebody else has set 600 W since, or the node was booted.
TEST_F(PowerLeftBehind, IsForgottenIfTheLimitHasChanged) {
  set_and_die(500);
  tree_.set("limit2", "600000");
  EXPECT_EQ(limit_after_a_run(), "600000");
}

TEST_F(PowerLeftBehind, IsKnownAsLongAsItIsNotRestored) {
  {
    PowerControl control(tree_.search(gpus_));
    control.set_power_limit(500);
    tree_.set("permission", "no");
    EXPECT_THAT(control.restore(), AllOf(HasSubstr("650 W"), HasSubstr("not restored")));
  }
  tree_.set("permission", "yes");
  EXPECT_EQ(limit_after_a_run(), "650000");
}

TEST_F(PowerLeftBehind, IsNotReadFromHostileFiles) {
  tree_.set("limit2", "500000");
  for (const char* text : {"", "650", "650 500 500", "650 500 500 1\n", "a b c\n", "nan 500 500\n",
                           "-650 500 500\n", "9999 500 500\n", "1 500 500\n", "0 500 500\n"}) {
    std::ofstream(record()) << text;
    EXPECT_EQ(limit_after_a_run(), "500000") << text;
  }
  const std::string valid = "650 500 500\n";
  const auto elsewhere = tree_.root() / "elsewhere";
  std::ofstream(elsewhere) << valid;
  std::filesystem::create_symlink(elsewhere, record());
  EXPECT_EQ(limit_after_a_run(), "500000");
  EXPECT_EQ(content_of(elsewhere), valid);  // nothing is written through the link
  std::filesystem::remove(record());
  std::filesystem::create_hard_link(elsewhere, record());
  EXPECT_EQ(limit_after_a_run(), "500000");
  EXPECT_EQ(content_of(elsewhere), valid);
  std::filesystem::remove(record());
  ASSERT_EQ(mkfifo(record().c_str(), 0600), 0);  // must not block
  EXPECT_EQ(limit_after_a_run(), "500000");
  std::filesystem::remove(record());
  std::ofstream(record()) << valid;
  if (geteuid() == 0) {
    ASSERT_EQ(chown(record().c_str(), 65534, 65534), 0);  // of another user
    EXPECT_EQ(limit_after_a_run(), "500000");
    std::filesystem::remove(record());
    std::ofstream(record()) << valid;
  }
  EXPECT_EQ(limit_after_a_run(), "650000");
}

// The daemon of EAR may do what this process may not.
TEST_F(NvmlPower, AsksEarWhereNvmlRefuses) {
  tree_.add("ear", "usr/lib/libear_api.so");
  tree_.set("permission", "no");
  const auto ear_state = [&] { return content_of(tree_.root() / "usr/lib/state"); };
  {
    PowerControl control(tree_.search({"0000:11:00.0"}));
    control.lock_clock(1500);
    EXPECT_THAT(ear_state(), HasSubstr("gpufreq1 1500000\n"));
  }
  EXPECT_THAT(ear_state(), HasSubstr("gpufreq1 1980000\n"));  // the highest: no limit
}

TEST_F(NvmlPower, NeedsEveryGpuThatWasNamed) {
  PowerControl control(tree_.search({"0000:10:00.0", "0000:77:00.0"}));
  EXPECT_EQ(control.gpus(), 0U);
  EXPECT_THAT(control.problem(), HasSubstr("0000:77:00.0"));
  EXPECT_THAT(refusal_of([&] { control.set_power_limit(500); }), HasSubstr("0000:77:00.0"));
}

TEST_F(NvmlPower, IsNotSetOnGpusThatAreDivided) {
  tree_.set("mig0", "1");
  PowerControl control(tree_.search(gpus_));
  EXPECT_EQ(control.gpus(), 0U);
  EXPECT_THAT(control.problem(), HasSubstr("MIG"));
}

TEST(Power, OfAMachineWithoutGpusIsRefusedInOneLine) {
  TemporaryDirectory empty;
  PowerControl control(MeterSearch{.root = empty.path()});
  EXPECT_EQ(control.gpus(), 0U);
  EXPECT_FALSE(control.power_limit_w().has_value());
  const std::string line = refusal_of([&] { control.lock_clock(1000); });
  EXPECT_THAT(line, AllOf(HasSubstr("libnvidia-ml.so.1"), HasSubstr("AMD")));
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

// Two dies of one module and a network card that has a power sensor too.
class AmdPower : public testing::Test {
 protected:
  AmdPower() {
    device("0000:c1:00.0", "amdgpu", "500000000", "560000000");
    device("0000:c6:00.0", "amdgpu", "0", "0");
    device("0000:d0:00.0", "mlx5", "10000000", "75000000");
  }
  void device(const std::string& pci, const std::string& name, const std::string& cap,
              const std::string& highest) {
    const std::string folder = "sys/bus/pci/devices/" + pci + "/hwmon/hwmon4/";
    std::filesystem::create_directories(tree_ / folder);
    tree_.write(folder + "name", name + "\n");
    tree_.write(folder + "power1_cap", cap + "\n");
    tree_.write(folder + "power1_cap_min", "0\n");
    tree_.write(folder + "power1_cap_max", highest + "\n");
  }
  std::string cap(const std::string& pci) {
    return content_of(tree_ / ("sys/bus/pci/devices/" + pci + "/hwmon/hwmon4/power1_cap"));
  }
  TemporaryDirectory tree_;
};

TEST_F(AmdPower, IsSetOncePerModule) {
  for (const bool named : {false, true}) {
    MeterSearch search{.root = tree_.path()};
    if (named) search.gpus = std::vector<std::string>{"0000:C1:00.0", "0000:c6:00.0"};
    {
      PowerControl control(search);
      EXPECT_EQ(control.gpus(), 1U);
      EXPECT_DOUBLE_EQ(control.power_limit_w().value(), 500);
      EXPECT_DOUBLE_EQ(control.power_range_w()->high, 560);
      control.set_power_limit(350.5);
      EXPECT_EQ(cap("0000:c1:00.0"), "350500000");
    }
    EXPECT_EQ(cap("0000:c1:00.0"), "500000000");
    EXPECT_EQ(cap("0000:c6:00.0"), "0\n");
    EXPECT_EQ(cap("0000:d0:00.0"), "10000000\n");
  }
}

TEST_F(AmdPower, ThatCannotBeWrittenIsRefusedWithTheFile) {
  const auto file = tree_ / "sys/bus/pci/devices/0000:c1:00.0/hwmon/hwmon4/power1_cap";
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);  // root may write any file, but no directory
  PowerControl control(MeterSearch{.root = tree_.path()});
  EXPECT_THAT(refusal_of([&] { control.set_power_limit(300); }),
              AllOf(HasSubstr(file.string()), HasSubstr("AMD GPU 0000:c1:00.0"),
                    HasSubstr("administrator")));
  EXPECT_THAT(refusal_of([&] { control.lock_clock(1000); }), HasSubstr("clock"));
}

}  // namespace
}  // namespace kintsugi
