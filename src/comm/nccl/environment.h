#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kintsugi::nccl {

// Sets NCCL variables that we rely on, unless the user has set them. Call it before NCCL is used.
void set_defaults();

// The NCCL variables of the environment: "NCCL_SOCKET_IFNAME=ib0 NCCL_NET_PLUGIN=…", or "".
std::string variables();

// Returns "IB" for an NCCL log that contains "… Using network IB".
std::optional<std::string> network_of(const std::string& log);

// Makes NCCL write a log, the only way to find out which network it uses. Construct it before NCCL
// is used.
class NetworkLog {
 public:
  explicit NetworkLog(bool enabled);
  ~NetworkLog();
  NetworkLog(const NetworkLog&) = delete;
  NetworkLog& operator=(const NetworkLog&) = delete;
  // Empty if it is not enabled, or if the user has set NCCL_DEBUG.
  std::optional<std::string> network() const;

 private:
  std::filesystem::path path_;
};

}  // namespace kintsugi::nccl
