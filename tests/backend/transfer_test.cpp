// Host memory of a backend, and copies between host and device.
#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

class TransferTest : public testing::TestWithParam<Setting> {
 protected:
  Tensor host(std::int64_t n) {
    return arena_.allocate(Region::Workspace, "host", type(), {n}, Side::Host);
  }
  Tensor device(std::int64_t n) {
    return arena_.allocate(Region::Workspace, "device", type(), {n});
  }
  DType type() const { return GetParam().type; }
  // Elements first, first + 1, …, modulo 100.
  Values counting(std::int64_t n, std::int64_t first) {
    Values values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<double>((first + i) % 100));
    return values;
  }
  void write(const Tensor& x, const Values& values) {
    backend_->upload(x, encode(values, type()).data());
  }
  Values read(const Tensor& x) {
    std::vector<std::byte> bytes(x.bytes());
    backend_->download(bytes.data(), x);
    return decoded(bytes.data(), x.elements());
  }
  Values decoded(const std::byte* bytes, std::int64_t n) {
    Values values;
    for (std::int64_t i = 0; i < n; ++i)
      values.push_back(decode(bytes + static_cast<std::size_t>(i) * size_of(type()), type()));
    return values;
  }

  std::unique_ptr<Backend> backend_ = GetParam().backend.make();
  Arena arena_{*backend_};
};

TEST_P(TransferTest, HostTensorsAreWrittenReadAndFilled) {
  for (const std::int64_t n : {1, 63, 5000, 3'000'000}) {
    const Tensor x = host(n);
    write(x, counting(n, 7));
    EXPECT_TRUE(read(x) == counting(n, 7));
    // The host can read the memory directly.
    EXPECT_TRUE(decoded(static_cast<const std::byte*>(x.data()), n) == counting(n, 7));
    backend_->fill(x, 3.0);
    EXPECT_TRUE(read(x) == Values(static_cast<std::size_t>(n), 3.0));
    backend_->fill(x.rows(0, n / 2), 0.0);
    EXPECT_EQ(read(x).front(), n > 1 ? 0.0 : 3.0);
    EXPECT_EQ(read(x).back(), 3.0);
  }
}

TEST_P(TransferTest, AreBehindOperationsBeforeAndAheadOfThoseAfter) {
  const std::int64_t n = 2'000'000;
  const Tensor x = device(n), y = device(n), first = host(n), second = host(n);
  backend_->fill(x, 1.0);
  const auto one = backend_->to_host(first, x);
  backend_->wait(one);
  backend_->fill(x, 2.0);
  const auto two = backend_->to_host(second, x);
  backend_->finish(two);
  EXPECT_TRUE(decoded(static_cast<const std::byte*>(first.data()), n) ==
              Values(static_cast<std::size_t>(n), 1.0));
  EXPECT_TRUE(decoded(static_cast<const std::byte*>(second.data()), n) ==
              Values(static_cast<std::size_t>(n), 2.0));
  backend_->fill(y, 5.0);
  const auto back = backend_->to_device(x, first);
  backend_->wait(back);
  backend_->add(y, x);
  EXPECT_TRUE(read(y) == Values(static_cast<std::size_t>(n), 6.0));
}

// A ring of buffers like the offloaded optimizer's: every element is copied to the device,
// increased by one and copied back. There are more copies than the pool of events holds.
TEST_P(TransferTest, ManyRunAtATime) {
  const std::int64_t block_size = 1000, blocks = 700;
  const Tensor all = host(block_size * blocks), one = device(block_size);
  write(all, counting(block_size * blocks, 0));
  backend_->fill(one, 1.0);
  struct Slot {
    Tensor buffer;
    Backend::Transfer transfer = {};
  };
  std::vector<Slot> slots(3);
  for (Slot& slot : slots) slot.buffer = device(block_size);
  for (int round = 0; round < 2; ++round)
    for (std::int64_t i = 0; i < blocks; ++i) {
      Slot& slot = slots[static_cast<std::size_t>(i) % slots.size()];
      backend_->wait(slot.transfer);
      const Tensor block = all.rows(i * block_size, block_size);
      backend_->wait(backend_->to_device(slot.buffer, block));
      backend_->add(slot.buffer, one);
      slot.transfer = backend_->to_host(block, slot.buffer);
    }
  for (const Slot& slot : slots) backend_->wait(slot.transfer);
  Values expected = counting(block_size * blocks, 0);
  for (double& value : expected) value += 2.0;
  EXPECT_TRUE(read(all) == expected);
}

TEST_P(TransferTest, TheHostComputesWhereItsMemoryIs) {
  Backend* on_host = backend_->host();
  ASSERT_NE(on_host, nullptr);
  const Tensor x = host(10), y = host(10);
  write(x, counting(10, 0));
  on_host->fill(y, 4.0);
  on_host->add(y, x);
  Values expected = counting(10, 0);
  for (double& value : expected) value += 4.0;
  EXPECT_EQ(read(y), expected);
}

TEST_P(TransferTest, HaveTwoEqualSides) {
  EXPECT_THROW(backend_->to_host(host(10), device(11)), std::exception);
  EXPECT_THROW(backend_->to_device(device(10), host(11)), std::exception);
}

TEST_P(TransferTest, SaysWhatHostMemoryIsFree) {
  EXPECT_GT(backend_->available_host_bytes(), std::size_t{1} << 20);
}

INSTANTIATE_TEST_SUITE_P(Backends, TransferTest,
                         testing::ValuesIn(settings({DType::F32, DType::BF16})),
                         [](const auto& info) {
                           return info.param.backend.name + "_" +
                                  std::string(to_string(info.param.type));
                         });

}  // namespace
}  // namespace kintsugi
