#pragma once

#include <cstring>
#include <map>
#include <memory>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {

// A CPU backend in which a copy between host and device happens as late as allowed: in wait(). Code
// that does not wait, or that changes the source in the meantime, gets wrong results. Host memory
// has its own allocator; every copy is checked to have one side in it.
class LateBackend : public CpuBackend {
 public:
  explicit LateBackend(int threads, std::size_t host_bytes = std::size_t{1} << 40)
      : CpuBackend(threads), host_bytes_(host_bytes) {}
  ~LateBackend() override {
    // After an evaluation, a few copies of inputs may be pending.
    for (auto& [ticket, copy] : pending_)
      KINTSUGI_CHECK(copy.bytes > 0, "transfer {} of nothing", ticket);
  }

  Allocator& host_memory() override { return host_memory_; }
  bool is_on_host(const Tensor& x) const override { return host_memory_.contains(x.data()); }
  std::size_t available_host_bytes() const override { return host_bytes_; }

  Transfer to_device(Tensor device, Tensor host) override {
    check(device, host);
    return start(device.data(), host.data(), host.bytes());
  }
  Transfer to_host(Tensor host, Tensor device) override {
    check(device, host);
    return start(host.data(), device.data(), host.bytes());
  }
  void wait(Transfer transfer) override {
    if (transfer.ticket == 0) return;
    const auto found = pending_.find(transfer.ticket);
    KINTSUGI_CHECK(found != pending_.end(), "transfer {} is waited for twice", transfer.ticket);
    std::memcpy(found->second.to, found->second.from, found->second.bytes);
    pending_.erase(found);
  }
  void finish(Transfer transfer) override { wait(transfer); }

  std::int64_t transfers() const { return tickets_; }
  std::size_t pending() const { return pending_.size(); }

 private:
  class HostMemory final : public Allocator {
   public:
    void* allocate(std::size_t bytes) override {
      auto block = std::make_unique<std::byte[]>(bytes);
      const std::byte* begin = block.get();
      blocks_[begin] = {std::move(block), bytes};
      return const_cast<std::byte*>(begin);
    }
    void release(void* address, std::size_t) noexcept override {
      blocks_.erase(static_cast<const std::byte*>(address));
    }
    bool contains(const void* address) const {
      const auto after = blocks_.upper_bound(static_cast<const std::byte*>(address));
      if (after == blocks_.begin()) return false;
      const auto& [begin, block] = *std::prev(after);
      return address < begin + block.second;
    }

   private:
    std::map<const std::byte*, std::pair<std::unique_ptr<std::byte[]>, std::size_t>> blocks_;
  };
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  void check(const Tensor& device, const Tensor& host) const {
    KINTSUGI_CHECK(device.bytes() == host.bytes() && device.contiguous() && host.contiguous(),
                   "{} bytes against {}", device.bytes(), host.bytes());
    KINTSUGI_CHECK(host_memory_.contains(host.data()) && !host_memory_.contains(device.data()),
                   "a transfer between the wrong memories");
  }
  Transfer start(void* to, const void* from, std::size_t bytes) {
    pending_[++tickets_] = {to, from, bytes};
    return {tickets_};
  }

  std::size_t host_bytes_;
  HostMemory host_memory_;
  std::int64_t tickets_ = 0;
  std::map<std::int64_t, Copy> pending_;
};

}  // namespace kintsugi
