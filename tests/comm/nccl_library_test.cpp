// Loading NCCL or RCCL, with tests/emulator/rocm in its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "comm/nccl/library.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nccl::Library;
using testing::HasSubstr;

class NcclLibrary : public testing::Test {
 protected:
  // The root of a system that has this file as its RCCL.
  const fs::path& root_with(const std::string& file) {
    fs::create_directories(root_ / "opt/rocm/lib");
    fs::create_symlink(file, root_ / "opt/rocm/lib/librccl.so.1");
    return root_.path();
  }
  TemporaryDirectory root_;
};

TEST_F(NcclLibrary, HasTheNameAndTheVersionOfTheVendor) {
  const Library rccl("hip", root_with(rocm_stand_in("alone/librccl.so.1")));
  EXPECT_EQ(rccl.name(), "RCCL");
  EXPECT_EQ(rccl.version(), "2.20.5");
  EXPECT_EQ(nccl::library_name("cuda"), "NCCL");
  EXPECT_NE(rccl.comm_split, nullptr);
  EXPECT_NE(rccl.comm_register, nullptr);
  EXPECT_NE(rccl.comm_deregister, nullptr);
}

TEST_F(NcclLibrary, AnOldOneHasNoNewFunctions) {
  const Library rccl("hip", root_with(rocm_stand_in("old/librccl.so.1")));
  EXPECT_EQ(rccl.version(), "2.17.1");
  EXPECT_EQ(rccl.comm_split, nullptr);
  EXPECT_EQ(rccl.comm_register, nullptr);
  EXPECT_EQ(rccl.comm_deregister, nullptr);
}

TEST_F(NcclLibrary, AMissingOneIsNamedWithItsPackage) {
  EXPECT_EQ(user_error_of([&] { Library("hip", root_.path()); }),
            "several ranks with GPUs need RCCL, but librccl.so.1 is not installed: install rccl "
            "from AMD's ROCm repository, or add the folder of the library to LD_LIBRARY_PATH");
  EXPECT_EQ(
      user_error_of([&] { Library("cuda", root_.path()); }),
      "several ranks with GPUs need NCCL, but libnccl.so.2 is not installed: install libnccl2 "
      "from NVIDIA's repository, or add the folder of the library to LD_LIBRARY_PATH");
}

TEST_F(NcclLibrary, AFileThatIsNoLibraryIsRefused) {
  const std::string text = root_.write("text", "no library");
  EXPECT_THAT(user_error_of([&] { Library("hip", root_with(text)); }),
              HasSubstr("need RCCL, but cannot load librccl.so.1: "));
}

TEST_F(NcclLibrary, ALibraryWithoutARequiredFunctionIsRefused) {
  EXPECT_EQ(user_error_of([&] { Library("hip", root_with(fake_library("nvml"))); }),
            "this RCCL is too old: librccl.so.1 has no ncclGetVersion");
}

TEST_F(NcclLibrary, ErrorsHaveTheTextOfTheLibrary) {
  const Library rccl("hip", root_with(rocm_stand_in("alone/librccl.so.1")));
  EXPECT_NO_THROW(rccl.check(nccl::Result::Success, "ncclSend"));
  int count = 0;
  try {
    rccl.check(rccl.comm_count(nullptr, &count), "ncclCommCount");
    FAIL();
  } catch (const Failure& error) {
    EXPECT_STREQ(error.what(), "ncclCommCount failed: invalid argument: no such communicator");
  }
}

}  // namespace
}  // namespace kintsugi
