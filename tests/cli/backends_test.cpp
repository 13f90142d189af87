#include "cli/backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

const std::vector<Device> kDevices = {
    {.index = 0,
     .name = "H200",
     .uuid = "GPU-6f1c0000-0000-1111-2222-333344445555",
     .pci = "0000:1b:00.0",
     .memory_bytes = 1},
    {.index = 1,
     .name = "H200",
     .uuid = "GPU-6f1d0000-0000-1111-2222-333344445555",
     .pci = "0001:1b:00.0",
     .memory_bytes = 1},
};

std::string refusal(const std::string& choice) {
  try {
    choose_gpu(choice, kDevices);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ChooseGpu, ByNumberUuidOrPciId) {
  EXPECT_EQ(choose_gpu("0", kDevices), 0);
  EXPECT_EQ(choose_gpu("1", kDevices), 1);
  EXPECT_EQ(choose_gpu("GPU-6f1d0000-0000-1111-2222-333344445555", kDevices), 1);
  EXPECT_EQ(choose_gpu("gpu-6F1C", kDevices), 0);
  EXPECT_EQ(choose_gpu("0001:1B:00.0", kDevices), 1);
}

TEST(ChooseGpu, NamesThoseThereAre) {
  EXPECT_THAT(refusal("GPU-dead"),
              HasSubstr("'GPU-dead' matches none of this machine's GPUs (0: H200"));
  EXPECT_THAT(refusal("GPU-6f1"), HasSubstr("more than one"));
  EXPECT_THAT(refusal("1b:00.0"), HasSubstr("more than one"));
  EXPECT_THAT(refusal("first"), HasSubstr("0001:1b:00.0"));
}

}  // namespace
}  // namespace kintsugi
